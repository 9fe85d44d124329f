"""The state of groups at a point as tables: offsets, groups and members.

The tables have the columns of `offset_commits`, `group_metadata` and `members`, and are made by the same decoders;
`is_tombstone` is false everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

import pyarrow as pa
from pyspark.sql import functions as F

from kcoord.core.groups.cause_header import CAUSE_HEADER
from kcoord.core.outcome import OFFSETS_TOPIC
from kcoord.log.record_plain import uuid_text
from kcoord.log.serde import LEGACY_OFFSET_COMMIT, OFFSET_COMMIT
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.spark.jobs.cause_column import cause_bytes
from kcoord.spark.jobs.state import Offsets, committed_at, latest
from kcoord.spark.tables.group_metadata import GroupMetadataTable
from kcoord.spark.tables.members import MembersTable
from kcoord.spark.tables.offset_commits import OffsetCommitsTable
from kcoord.spark.tables.rows import (
    DecodedTable,
    RecordPlace,
    coordinator_record_type,
    decode_group_record,
    known,
    micros,
    place_columns,
)
from kcoord.spark.tables.schemas import spark_schema
from kcoord.wire.primitives import ZERO_UUID
from kcoord.wire.record_batch import BatchBuilder, BatchHeader, Record, parse_header

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# What decoders need of a record; `cause` is the value of the only header that they read. Not all headers: before each
# row that goes to Python, Spark measures its batch, which for a column of lists takes longer with each row in it.
RAW_COLUMNS: Final = (
    "log",
    "log_topic",
    "log_partition",
    "log_offset",
    "log_timestamp",
    "key",
    "value",
    "cause",
)


@dataclass(frozen=True)
class Snapshot:
    """`records` are the rows of the table `records` that make up the state; the others are decoded from them."""

    records: DataFrame
    offsets: DataFrame
    groups: DataFrame
    members: DataFrame


def snapshot(
    records: DataFrame,
    time: datetime | None = None,
    before_offset: Offsets | None = None,
    cluster: Column | None = None,
) -> Snapshot:
    """The state at a point, or at the end; `cluster` is for `latest`.

    `records` is the table of that name: with isolationLevel=read_uncommitted if a point is given, because a transaction
    that is committed now may have been open then; else with read_committed, which is read only once.
    """
    is_past = time is not None or before_offset is not None
    counted = committed_at(records, time, before_offset) if is_past else records
    state = latest(counted, cluster)
    return Snapshot(state, offsets_of(state), groups_of(state), members_of(state))


def offsets_of(state: DataFrame) -> DataFrame:
    return _decoded(state, OffsetsDecoder)


def groups_of(state: DataFrame) -> DataFrame:
    return _decoded(state, GroupMetadataTable)


def members_of(state: DataFrame) -> DataFrame:
    return _decoded(state, MembersTable)


def _decoded(state: DataFrame, table: type[DecodedTable]) -> DataFrame:
    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return decode_rows(batches, table())

    of_groups = state.where(F.col("log_topic") == OFFSETS_TOPIC)
    rows = of_groups.withColumn("cause", cause_bytes()).select(*RAW_COLUMNS)
    return rows.mapInArrow(decode, spark_schema(table.NAME))


def decode_rows(batches: Iterator[pa.RecordBatch], decoder: DecodedTable) -> Iterator[pa.RecordBatch]:
    """Rows of RAW_COLUMNS through the decoder of a table. Raises DecodeError."""
    header = plain_header()
    for batch in batches:
        millis = batch.column("log_timestamp").cast(pa.int64())
        columns = [batch.column(name) if name != "log_timestamp" else millis for name in RAW_COLUMNS]
        for row in zip(*(column.to_pylist() for column in columns), strict=True):
            log, topic, partition, offset, timestamp_us, key, value, cause = row
            timestamp_ms = -1 if timestamp_us is None else timestamp_us // 1000
            record = Record(offset, timestamp_ms, key, value, [] if cause is None else [(CAUSE_HEADER, cause)])
            decoder.add(RecordPlace(log, topic, partition), record, header)
            if decoder.is_full:
                yield decoder.take()
    while len(decoder):
        yield decoder.take()


def plain_header() -> BatchHeader:
    """The header of a batch outside of transactions."""
    builder = BatchBuilder()
    builder.append(0, b"", b"")
    return parse_header(builder.build(0, -1))


@final
class OffsetsDecoder(DecodedTable):
    """Offsets from single records; the reader has a faster way for whole segments."""

    NAME: ClassVar[str] = OffsetCommitsTable.NAME
    COLUMNS = OffsetCommitsTable.COLUMNS

    def add(self, where: RecordPlace, record: Record, header: BatchHeader) -> None:
        if coordinator_record_type(record) not in (LEGACY_OFFSET_COMMIT, OFFSET_COMMIT):
            return
        key, value = decode_group_record(record)
        if isinstance(key, OffsetCommitKey):
            about = (key.group, key.topic, key.partition)
            committed = _value_columns(value if isinstance(value, OffsetCommitValue) else None)
            self._put(place_columns(where, record) + about + committed + (None, value is None))


def _value_columns(value: OffsetCommitValue | None) -> tuple[Any, ...]:
    """From `committed_offset` to `topic_id`."""
    if value is None:
        return (None,) * 6
    return (
        value.offset,
        known(value.leader_epoch),
        value.metadata,
        micros(value.commit_timestamp),
        micros(value.expire_timestamp),
        None if value.topic_id == ZERO_UUID else uuid_text(value.topic_id),
    )
