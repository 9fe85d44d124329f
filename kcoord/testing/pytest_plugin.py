"""Fixtures `kcoord` and `kcoord_server`."""
