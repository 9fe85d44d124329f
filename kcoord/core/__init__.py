"""The deterministic heart: events in, outcomes out. No clock, socket, file, logger or randomness lives here."""
