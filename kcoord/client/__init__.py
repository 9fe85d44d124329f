"""An asyncio client for kcoord and every other Kafka cluster.

The names of `__all__` are imported when they are used, so that a command which needs one of them starts quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kcoord.client.admin.admin import Admin
    from kcoord.client.consumer.consumer import Consumer, SubscriptionPattern
    from kcoord.client.consumer.listener import RebalanceListener
    from kcoord.client.consumer.records import ConsumerRecord
    from kcoord.client.errors import BrokerError, KafkaError
    from kcoord.client.metadata import GroupMetadata
    from kcoord.client.partition import TopicPartition
    from kcoord.client.producer.batch import RecordMetadata
    from kcoord.client.producer.producer import Producer

__all__ = [
    "Admin",
    "BrokerError",
    "Consumer",
    "ConsumerRecord",
    "GroupMetadata",
    "KafkaError",
    "Producer",
    "RebalanceListener",
    "RecordMetadata",
    "SubscriptionPattern",
    "TopicPartition",
]

_MODULES: Final = {
    "Admin": "kcoord.client.admin.admin",
    "BrokerError": "kcoord.client.errors",
    "Consumer": "kcoord.client.consumer.consumer",
    "ConsumerRecord": "kcoord.client.consumer.records",
    "GroupMetadata": "kcoord.client.metadata",
    "KafkaError": "kcoord.client.errors",
    "Producer": "kcoord.client.producer.producer",
    "RebalanceListener": "kcoord.client.consumer.listener",
    "RecordMetadata": "kcoord.client.producer.batch",
    "SubscriptionPattern": "kcoord.client.consumer.consumer",
    "TopicPartition": "kcoord.client.partition",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
