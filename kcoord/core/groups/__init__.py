"""Groups: what their log says of them, their members, their timers, and what both protocols share."""
