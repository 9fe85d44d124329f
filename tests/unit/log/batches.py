"""Batches to append, for the tests of the log."""

from __future__ import annotations

from typing import Any

from kcoord.log.directory import LogDirectory, open_directory
from kcoord.log.journal import Journal
from kcoord.log.log_config import LogConfig
from kcoord.log.partition_log import PartitionLog
from kcoord.log.storage import Storage
from kcoord.wire.record_batch import BatchBuilder, decode_records
from tests.harness.record_batches import parse_batches

TOPIC_ID = bytes(range(16))


def make_batch(
    base: int, count: int = 1, timestamp: int = 1000, size: int = 10, codec: int = 0, epoch: int = 0
) -> bytes:
    b = BatchBuilder()
    for i in range(count):
        b.append(timestamp + i, b"k%d" % (base + i), bytes(size))
    return b.build(base, epoch, codec=codec)


def add(journal: Journal, log: PartitionLog, count: int = 1, timestamp: int = 1000, **more: int) -> bytes:
    batch = make_batch(log.end_offset, count, timestamp, **more)
    last = log.end_offset + count - 1
    journal.append(log, batch, log.end_offset, last, timestamp + count - 1, more.get("epoch", 0))
    return batch


def reopen(storage: Storage, config: LogConfig | None = None, **more: Any) -> LogDirectory:
    return open_directory(storage, 1, "cluster", "directory", config=config, **more)


def offsets(data: bytes) -> list[int]:
    found = []
    for header in parse_batches(data):
        found += [record.offset for record in decode_records(data, header.pos, header, 1 << 24)]
    return found
