"""State for tests: topics, records and offsets without a client, seeds, snapshots."""
