"""A short log with a bit of everything that the jobs look at: messages, commits, rebalances."""

from __future__ import annotations

from typing import Final

from kcoord.core.groups.embedded_protocol import encode_assignment
from kcoord.core.outcome import OFFSETS_TOPIC
from kcoord.log.directory import open_directory
from kcoord.log.journal import Journal
from kcoord.log.partition_log import PartitionLog
from kcoord.log.serde import encode_record
from kcoord.log.storage import DiskStorage
from kcoord.protocol.records.consumer_protocol_assignment import ConsumerProtocolAssignment, TopicPartition
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.wire.record_batch import BatchBuilder

TOPIC: Final = "orders"
GROUPS: Final = 4
GENERATIONS: Final = 6
MESSAGES: Final = 40
# 2025-10-09 08:53:20 UTC, and the time from one generation to the next.
START_MS: Final = 1_760_000_000_000
STEP_MS: Final = 10_000
UUID: Final = "c2FtcGxlLXNhbXBsZS1zYQ"
TOPIC_IDS: Final = {OFFSETS_TOPIC: b"\x00" * 15 + b"\x02", TOPIC: b"\x00" * 15 + b"\x03"}
# A consumer's subscription to TOPIC, in version 0: the topics, no user data.
SUBSCRIPTION: Final = b"\x00\x00\x00\x00\x00\x01\x00\x06" + TOPIC.encode() + b"\xff\xff\xff\xff"

Pair = tuple[bytes, bytes | None]


def write_sample_log(root: str) -> None:
    """Write a data directory. Raises OSError."""
    directory = open_directory(DiskStorage(root), 1, UUID, UUID)
    try:
        journal = Journal(directory, "os")
        logs = {name: directory.create_log(name, 0, topic_id) for name, topic_id in TOPIC_IDS.items()}
        _append(journal, logs[TOPIC], START_MS, [(b"key", b"value")] * MESSAGES)
        for generation in range(1, GENERATIONS + 1):
            at_ms = START_MS + generation * STEP_MS
            for number in range(GROUPS):
                _append(journal, logs[OFFSETS_TOPIC], at_ms, _of_group(f"group-{number}", generation, at_ms))
        journal.commit()
    finally:
        directory.close(True)


def _of_group(group: str, generation: int, at_ms: int) -> list[Pair]:
    """A generation with another member than the one before, and a commit."""
    assignment = encode_assignment(ConsumerProtocolAssignment([TopicPartition(TOPIC, [0])]), 0)
    name = f"member-{generation % 2}"
    member = MemberMetadata(name, None, "client", "/127.0.0.1", 60_000, 10_000, SUBSCRIPTION, assignment)
    metadata = GroupMetadataValue("consumer", generation, "range", name, at_ms, [member])
    offset = OffsetCommitValue(generation * 3, -1, "", at_ms)
    return [
        encode_record(GroupMetadataKey(group), metadata),
        encode_record(OffsetCommitKey(group, TOPIC, 0), offset),
    ]


def _append(journal: Journal, log: PartitionLog, at_ms: int, pairs: list[Pair]) -> None:
    builder = BatchBuilder()
    for key, value in pairs:
        builder.append(at_ms, key, value)
    first = log.end_offset
    journal.append(log, builder.build(first, 0), first, first + len(pairs) - 1, at_ms)
