"""From options to rows: which files there are, what is read of each, by which task, and how streams follow a log."""
