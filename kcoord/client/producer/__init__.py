"""The producer: batches, idempotence, back-pressure."""

from kcoord.client.producer.batch import RecordMetadata as RecordMetadata
from kcoord.client.producer.producer import Producer as Producer
