"""The classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the rebalance between them."""
