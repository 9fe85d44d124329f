"""Server-side assignors (KIP-848): the target assignment as a function of subscriptions and the last target."""
