"""What the records of groups mean over time: why groups rebalanced, and rules that every log must obey."""
