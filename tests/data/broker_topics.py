"""Topics and their messages: keys, values, headers, timestamps and codecs of every kind."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition
from kafka import KafkaProducer

from tests.data.broker_life import Life, done, now_ms, wait_until
from tests.interop import tools

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FOR_EVER = "9223372036854775807"
# The last one because segments are rolled when the times of their records differ by that much.
ANY_TIME = {
    "message.timestamp.before.max.ms": FOR_EVER,
    "message.timestamp.after.max.ms": FOR_EVER,
    "segment.ms": FOR_EVER,
}
SMALL = {"internal.segment.bytes": "16384", "index.interval.bytes": "512"}
YEAR_2500_MS = 16_725_225_600_000


def producer(life: Life, **settings: Any) -> Producer:
    config = {key.replace("_", "."): value for key, value in settings.items()}
    return Producer({"bootstrap.servers": life.bootstrap, "log_level": 0, **config})


def make(life: Life, topic: str, partitions: int, settings: dict[str, str]) -> None:
    life.create(topic, partitions, **settings)


def orders(life: Life) -> None:
    """Three partitions of several segments: an idempotent producer, batches of 1 to 10, 720 records."""
    make(life, "orders", 3, SMALL)
    sender = producer(life, enable_idempotence=True, linger_ms=50, batch_num_messages=10)
    start = 1_700_000_000_000
    for i in range(720):
        headers: list[tuple[str, Any]] = [("trace", b"%08x" % (i * 2654435761 % 2**32)), ("source", b"shop")]
        value = b'{"order": %d, "amount": %d, "note": "%s"}' % (i, i * 37 % 1000, b"n" * (i % 60))
        sender.produce(
            "orders", value, b"customer-%d" % (i % 40), i % 3, timestamp=start + i * 1000, headers=headers
        )
        if i % 24 == 23:
            sender.flush()
    sender.flush()


def codecs(life: Life) -> None:
    """One topic per codec: ten batches of librdkafka's, then one of Java's, whose framing may differ."""
    for codec in CODECS:
        topic = f"codec-{codec}"
        make(life, topic, 1, SMALL)
        sender = producer(life, compression_type=codec, linger_ms=100)
        for i in range(60):
            sender.produce(
                topic, b"value %d of %s " % (i, codec.encode()) * (1 + i % 20), b"k%d" % (i % 7), 0
            )
            if i % 6 == 5:
                sender.flush()
        lines = "".join(f"line {i} of {codec} from Java\n" for i in range(40))
        at = ["--bootstrap-server", life.bootstrap, "--topic", topic, "--compression-codec", codec]
        sent = tools.run(tools.CONSOLE_PRODUCER, *at, stdin=lines)
        assert sent.code == 0, sent


def odd(life: Life) -> None:
    """What a reader may trip over: nulls, empty bytes, bytes that are no text, headers, times that go back."""
    make(life, "odd", 2, ANY_TIME)
    sender = producer(life)
    headers: list[list[tuple[str, Any]]] = [
        [],
        [("empty", b""), ("null", None)],
        [("twice", b"1"), ("twice", b"2"), ("", b"no name")],
        [("schlüssel", "größe".encode()), ("bytes", bytes(range(256)))],
        [(f"h{i}", b"%d" % i) for i in range(50)],
    ]
    pairs: list[tuple[bytes | None, bytes | None]] = [
        (None, b"no key"),
        (b"no value", None),
        (None, None),
        (b"", b""),
        (b"\xff\xfe\x00\x01", bytes(range(256))),
        ("schlüssel".encode(), "日本語 \U0001f680".encode()),
        (b"large", b"x" * 20_000),
    ]
    times = (1, 999, YEAR_2500_MS, 1_500_000_000_123, 2, 1_700_000_000_000, 253_402_300_799_999)
    for partition in (0, 1):
        for i, (key, value) in enumerate(pairs):
            header = headers[i % len(headers)]
            sender.produce("odd", value, key, partition, timestamp=times[i], headers=header)
            if partition == 0:
                sender.flush()
    sender.flush()
    old = KafkaProducer(bootstrap_servers=life.bootstrap)
    for stamp in (0, 5):
        old.send("odd", value=b"the epoch", key=b"kafka-python", partition=0, timestamp_ms=stamp).get(20)
    old.close()


def appended(life: Life) -> None:
    """The broker's time instead of the producer's, in plain batches and in compressed ones."""
    make(life, "appended", 1, {"message.timestamp.type": "LogAppendTime", **SMALL})
    for codec in ("none", "zstd"):
        sender = producer(life, compression_type=codec, linger_ms=50)
        for i in range(30):
            sender.produce("appended", b"value %d" % i, b"key %d" % i, 0, timestamp=1_600_000_000_000 + i)
            if i % 10 == 9:
                sender.flush()


def compacted(life: Life, data: Path) -> None:
    """Ten keys over and over with some tombstones, which the cleaner has gone through: batches with gaps."""
    settings = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "min.compaction.lag.ms": "0",
    }
    make(life, "compacted", 1, {**settings, "delete.retention.ms": "86400000", **SMALL})
    sender = producer(life, linger_ms=50)
    for i in range(600):
        value = None if i % 29 == 0 else b"state %d of a key, and more" % i
        sender.produce("compacted", value, b"key-%02d" % (i % 10 if i % 4 else 10 + i % 50), 0)
        if i % 20 == 19:
            sender.flush()
    checkpoint = data / "cleaner-offset-checkpoint"

    def cleaned() -> bool:
        return checkpoint.exists() and "compacted 0 " in checkpoint.read_text()

    wait_until("the cleaner", cleaned, 60)


def trimmed(life: Life) -> None:
    """Records deleted up to offset 150, in the middle of a segment."""
    make(life, "trimmed", 1, SMALL)
    sender = producer(life, linger_ms=50)
    for i in range(250):
        sender.produce("trimmed", b"value %d " % i * 20, None, 0)
        if i % 10 == 9:
            sender.flush()
    done(life.admin.delete_records([TopicPartition("trimmed", 0, 150)]))
    life.note("admin", "delete records", topic="trimmed", partition=0, before=150)


def delete(life: Life, topic: str) -> None:
    done(life.admin.delete_topics([topic]))
    life.note("admin", "delete topic", topic=topic)
    wait_until(f"{topic} to be gone", lambda: topic not in life.admin.list_topics(timeout=10).topics)


def more_orders(life: Life, count: int, leader: str) -> None:
    """After a restart, so with another leader epoch."""
    sender = producer(life, enable_idempotence=True)
    for i in range(count):
        sender.produce(
            "orders", b'{"order": "%s %d"}' % (leader.encode(), i), b"late", i % 3, timestamp=now_ms()
        )
        time.sleep(0.002)
    sender.flush()
