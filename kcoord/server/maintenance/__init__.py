"""What happens to a server's logs beside the traffic: compaction, retention, snapshots and state checkpoints."""
