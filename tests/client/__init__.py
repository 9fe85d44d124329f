"""The client against a server in this process; `tests/interop` runs the same tests against a real broker."""
