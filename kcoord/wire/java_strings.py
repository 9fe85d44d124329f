"""Java's order of strings, by UTF-16 code unit. Kafka sorts by it; Python sorts by code point."""

from __future__ import annotations


def java_order(text: str) -> bytes:
    """A key for `sorted`. Surrogates without a partner are kept, since Java's strings may have them."""
    return text.encode("utf-16-be", "surrogatepass")
