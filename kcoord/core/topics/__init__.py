"""Topics: the registry that the metadata log makes, features, and definitions of configurations."""
