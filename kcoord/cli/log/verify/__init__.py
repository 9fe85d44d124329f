"""`kcoord log verify`: finds errors in a data directory."""
