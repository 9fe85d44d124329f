"""A Kafka group coordinator you can hold in your hand."""

__version__ = "0.1.0"
