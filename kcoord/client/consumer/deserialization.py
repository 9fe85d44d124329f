"""Turns the bytes of keys and values into what the user wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kcoord.client.consumer.records import ConsumerRecord
from kcoord.client.errors import KafkaError, SerializationFailed

Deserializer = Callable[[bytes], Any]


def deserialize(deserializer: Deserializer | None, data: bytes | None, what: str, record: ConsumerRecord) -> Any:
    """Keys and values that are None stay None. Raises SerializationFailed, which names the record."""
    if deserializer is None or data is None:
        return data
    try:
        return deserializer(data)
    except KafkaError:
        raise
    except Exception as error:
        where = f"partition {record.topic}-{record.partition}, offset {record.offset}"
        raise SerializationFailed(f"the {what} at {where}: {error!r}; seek to skip the record") from error
