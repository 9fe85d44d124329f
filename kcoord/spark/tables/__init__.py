"""The tables: which columns each has, and how they are made from records."""
