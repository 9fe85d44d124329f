"""The table `offset_commits`: every commit of an offset. `commit_rows.py` makes the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from kcoord.core.outcome import OFFSETS_TOPIC
from kcoord.log.serde import LEGACY_OFFSET_COMMIT, OFFSET_COMMIT
from kcoord.protocol.records.offset_commit import decode_offset_commit_value
from kcoord.spark.scan.commits import CommitScan
from kcoord.spark.tables.rows import coordinator_record_type, decode_group_record
from kcoord.spark.tables.table import (
    BIGINT,
    GROUP_ID,
    INT,
    IS_TOMBSTONE,
    PLACE,
    STRING,
    TIMESTAMP,
    Column,
    SliceRequest,
    Table,
)
from kcoord.wire.primitives import Reader
from kcoord.wire.record_batch import Record

if TYPE_CHECKING:
    from kcoord.spark.tables.commit_rows import CommitRows


@final
class OffsetCommitsTable(Table):
    NAME: ClassVar[str] = "offset_commits"
    ROW: ClassVar[str] = "a commit of one partition's offset, or its tombstone"
    TOPICS: ClassVar[tuple[str, ...]] = (OFFSETS_TOPIC,)
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        *PLACE,
        GROUP_ID,
        Column("topic", STRING, "the topic of the committed offset", "topics"),
        Column("partition", INT, "its partition", "partitions"),
        Column("committed_offset", BIGINT, "the offset; -1 is none"),
        Column("leader_epoch", INT, "the leader epoch of the last record read, if the client sent one"),
        Column("metadata", STRING, "the client's own text"),
        Column("commit_timestamp", TIMESTAMP, "when it was committed"),
        Column("expire_timestamp", TIMESTAMP, "when it expires; only old clients set it"),
        Column("topic_id", STRING, "the topic's id, if the record has one"),
        Column("producer_id", BIGINT, "the producer, if the commit is part of a transaction"),
        IS_TOMBSTONE,
    )

    @classmethod
    def check(cls, topic: str, record: Record) -> None:
        """Unlike `records`, the scan refuses bytes after the fields of a key or a value."""
        if topic not in cls.TOPICS or coordinator_record_type(record) not in (LEGACY_OFFSET_COMMIT, OFFSET_COMMIT):
            return
        decode_group_record(record)
        r = Reader(record.key or b"")
        r.int16()
        r.string()
        r.string()
        r.int32()
        r.expect_end()
        if record.value is not None:
            r = Reader(record.value)
            decode_offset_commit_value(r, r.int16())
            r.expect_end()

    @classmethod
    def scan_rows(cls, request: SliceRequest) -> CommitRows:
        from kcoord.spark.tables.arrow import schema_of
        from kcoord.spark.tables.commit_rows import CommitRows

        scan = CommitScan(request.wanted, request.rows.wants_commit if request.rows.narrows_commits else None)
        return CommitRows(scan, request.part, request.corrupt, schema_of(cls, request.columns))
