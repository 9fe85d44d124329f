"""What the records of groups mean over time: why groups rebalanced, and what must be true of every record."""
