"""Test fixtures for programs that use Kafka clients."""
