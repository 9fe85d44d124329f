"""The consumer protocol (KIP-848): heartbeats, target assignments, reconciliation, subscriptions, and migration."""
