"""`kcoord log state`, `diff` and `timeline`: the state of the coordinator at a point of its log, and its changes."""
