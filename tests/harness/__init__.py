"""Helpers shared by the tests that need another process: Kafka's own Java, a real broker, a kcoord server."""
