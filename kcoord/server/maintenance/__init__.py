"""Background work on a server's logs: compaction, retention, snapshots and state checkpoints."""
