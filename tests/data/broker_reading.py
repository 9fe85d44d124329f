"""What consumers see of the topics in the end, read_uncommitted and read_committed."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.data.broker_life import Life
from tests.interop import tools


def in_base64(data: bytes | str | None) -> str | None:
    if data is None:
        return None
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def partitions(life: Life) -> list[tuple[str, int]]:
    """Of all topics that are not Kafka's own."""
    topics = life.admin.list_topics(timeout=10).topics
    return sorted(
        (name, p) for name, topic in topics.items() if not name.startswith("__") for p in topic.partitions
    )


def read(life: Life, topic: str, partition: int, isolation: str) -> Iterator[Message]:
    """Every message from the first to the end that this isolation shows."""
    config: dict[str, Any] = {
        "bootstrap.servers": life.bootstrap,
        "group.id": "reader",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    consumer = Consumer(
        {
            **config,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    try:
        while True:
            message = consumer.poll(20)
            if message is None:
                raise TimeoutError(f"{topic}-{partition} has no end")
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            else:
                raise RuntimeError(str(error))
    finally:
        consumer.close()


def facts(message: Message) -> dict[str, Any]:
    kind, timestamp = message.timestamp()
    pairs: Any = message.headers() or []
    headers = [[name, in_base64(value)] for name, value in pairs]
    found: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
    }
    # librdkafka counts from 1 what Kafka counts from 0.
    found.update(timestamp=timestamp, timestamp_type=kind - 1, key=in_base64(message.key()))
    found.update(value=in_base64(message.value()), headers=headers)
    return found


def messages(life: Life) -> list[dict[str, Any]]:
    """All that a read_uncommitted consumer sees; `committed` tells whether a read_committed one saw the same."""
    found = []
    for topic, partition in partitions(life):
        committed = {
            message.offset(): facts(message) for message in read(life, topic, partition, "read_committed")
        }
        for message in read(life, topic, partition, "read_uncommitted"):
            seen = facts(message)
            shown = committed.pop(message.offset(), None)
            assert shown is None or shown == seen
            found.append({**seen, "committed": shown is not None})
        assert not committed, f"only read_committed saw {topic}-{partition} {list(committed)}"
    return found


def ends(life: Life) -> dict[str, dict[str, int]]:
    """Log start offset, last stable offset and high watermark of each partition."""
    found = {}
    for topic, partition in partitions(life):
        at = TopicPartition(topic, partition)
        both = {}
        for isolation in ("read_uncommitted", "read_committed"):
            config = {"bootstrap.servers": life.bootstrap, "group.id": "reader", "isolation.level": isolation}
            consumer = Consumer({**config, "log_level": 0})
            both[isolation] = consumer.get_watermark_offsets(at, timeout=20)
            consumer.close()
        low, high = both["read_uncommitted"]
        found[f"{topic}-{partition}"] = {"start": low, "last_stable": both["read_committed"][1], "high": high}
    return found


def java_offsets(life: Life, topic: str, count: int) -> list[list[int]]:
    """[partition, offset] of what Java's read_committed consumer printed of a topic."""
    at = ["--bootstrap-server", life.bootstrap, "--topic", topic, "--from-beginning", "--timeout-ms", "8000"]
    at += ["--group", "java-reader", "--command-property", "enable.auto.commit=false"]
    at += ["--isolation-level", "read_committed", "--max-messages", str(count + 1)]
    at += ["--formatter-property", "print.offset=true", "--formatter-property", "print.partition=true"]
    shown = tools.run(tools.CONSOLE_CONSUMER, *at)
    return sorted([int(p), int(o)] for p, o in re.findall(r"Partition:(\d+)\tOffset:(\d+)\t", shown.out))
