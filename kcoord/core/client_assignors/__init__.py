"""Client-side assignors of the consumer protocol: who computes, and what is done with the result."""
