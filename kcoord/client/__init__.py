"""An asyncio client for kcoord and every other Kafka cluster."""
