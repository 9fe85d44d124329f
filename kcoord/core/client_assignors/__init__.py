"""Client-side assignors of the consumer protocol: which member computes, and how its result is stored."""
