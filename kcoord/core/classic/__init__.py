"""The classic protocol: JoinGroup, SyncGroup, heartbeats, leaving, and the rebalance between them."""
