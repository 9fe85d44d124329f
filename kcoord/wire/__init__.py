"""The byte formats of the Kafka protocol: primitive types, record batches, compression, checksums and frames."""
