"""Test fixtures for programs that talk to kcoord."""
