"""`kcoord log repair`: repairs a damaged data directory so that it can be opened."""
