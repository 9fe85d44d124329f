"""`kcoord log compact`: compaction of a stopped server's logs."""
