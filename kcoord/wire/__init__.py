"""Bytes only: primitive types, record batches, compression, checksums and frames of the Kafka protocol."""
