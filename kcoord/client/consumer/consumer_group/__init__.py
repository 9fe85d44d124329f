"""The consumer's part in a consumer group (KIP-848): heartbeats, reconciliation, and assignors of its own."""
