"""The consumer's part in a classic group: joining, heartbeats, and the leader's work."""
