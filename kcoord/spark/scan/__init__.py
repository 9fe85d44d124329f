"""From the bytes of record batches to columns, compiled to native code."""
