"""Server-side assignors (KIP-848): who gets which partitions, as a function of subscriptions and the last target."""
