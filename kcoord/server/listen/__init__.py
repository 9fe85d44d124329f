"""Sockets: where to listen, whom to let in, and what one connection reads and writes."""
