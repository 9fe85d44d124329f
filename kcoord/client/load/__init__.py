"""The parts of a load generator that cost per request: natively compiled, without I/O. `kcoord bench` uses them."""
