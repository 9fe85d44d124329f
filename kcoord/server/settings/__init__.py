"""Settings: the table of all there are, and how they are read from files, the environment and flags."""
