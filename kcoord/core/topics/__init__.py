"""Topics: the registry that the metadata log builds, features, and definitions of configurations."""
