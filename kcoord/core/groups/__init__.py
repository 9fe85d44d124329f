"""Groups: their hard state and its replay, their members, their timers, and what both protocols share."""
