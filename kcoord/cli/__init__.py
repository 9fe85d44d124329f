"""The `kcoord` command."""
