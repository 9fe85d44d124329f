"""One synchronous step from bytes to bytes: decode, handle, replay, append, park, release. No sockets, no clocks."""
