"""From rows to logs: a directory that a server opens, in Kafka's format."""
