"""Listeners, accepting connections, limits, and reading and writing of each connection."""
