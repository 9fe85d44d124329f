"""The details of a migration: each offset and each group's record, and the result of the rules for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from kcoord.log.serde import UnknownRecord, decode_record
from kcoord.protocol.records.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.share_group_metadata import ShareGroupMetadataKey
from kcoord.protocol.records.streams_group_metadata import StreamsGroupMetadataKey
from kcoord.spark.jobs.migration_rules import Rules
from kcoord.spark.reader.slices import TIME_MS_MAX
from kcoord.spark.tables.rows import CLASSIC, CONSUMER, SHARE, STREAMS

OFFSET: Final = "offset"
# `kind` is `offset` or the group's. `why` is the rule for the group; "" for none.
DETAILS: Final = pa.schema(
    [
        ("cluster", pa.string()),
        ("group_id", pa.string()),
        ("new_group", pa.string()),
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("new_topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("metadata", pa.string()),
        ("commit_ms", pa.int64()),
        ("expire_ms", pa.int64()),
        ("epoch", pa.int32()),
        ("protocol_type", pa.string()),
        ("state_ms", pa.int64()),
        ("is_dropped", pa.bool_()),
        ("why", pa.string()),
        ("problem", pa.string()),
    ]
)
DETAILS_SQL: Final = (
    "cluster string, group_id string, new_group string, kind string, topic string, new_topic string, partition int, "
    "offset bigint, metadata string, commit_ms bigint, expire_ms bigint, epoch int, protocol_type string, "
    "state_ms bigint, is_dropped boolean, why string, problem string"
)
Row = tuple[Any, ...]


def details_of(batches: Iterator[pa.RecordBatch], rules: Rules) -> Iterator[pa.RecordBatch]:
    """Rows of log, log_timestamp, key and value become rows of DETAILS. Raises DecodeError."""
    for batch in batches:
        found: list[Row] = []
        micros = batch.column(1).cast(pa.int64()).to_pylist()
        columns = (
            batch.column(0).to_pylist(),
            micros,
            batch.column(2).to_pylist(),
            batch.column(3).to_pylist(),
        )
        for log, time_us, key, value in zip(*columns, strict=True):
            row = detail(rules, rules.cluster_of(log), -1 if time_us is None else time_us // 1000, key, value)
            if row is not None:
                found.append(row)
        values: list[Any] = [list(column) for column in zip(*found, strict=True)] or [[] for _ in DETAILS]
        arrays = [pa.array(column, field.type) for column, field in zip(values, DETAILS, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=DETAILS)


def detail(rules: Rules, cluster: str, time_ms: int, key_bytes: bytes, value_bytes: bytes | None) -> Row | None:
    """A record of the state; None for one that is not migrated. Raises DecodeError."""
    key, value = decode_record(key_bytes, value_bytes)
    if isinstance(key, UnknownRecord):
        return None
    if isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue):
        group = rules.group(cluster, key.group)
        topic = rules.topic(cluster, key.topic)
        commit_ms = _time(value.commit_timestamp, time_ms)
        expire_ms = value.expire_timestamp
        return (
            cluster,
            key.group,
            group.name,
            OFFSET,
            key.topic,
            topic.name,
            key.partition,
            value.offset,
            value.metadata,
            commit_ms,
            expire_ms,
            None,
            None,
            None,
            group.name is None or topic.name is None,
            group.why,
            group.problem or (topic.problem if group.name is not None else ""),
        )
    about: tuple[str, str, int | None, str | None, int]
    if isinstance(key, GroupMetadataKey) and isinstance(value, GroupMetadataValue):
        changed_ms = _time(value.current_state_timestamp, time_ms)
        about = (key.group, CLASSIC, value.generation, value.protocol_type, changed_ms)
    elif isinstance(key, ConsumerGroupMetadataKey) and isinstance(value, ConsumerGroupMetadataValue):
        about = (key.group_id, CONSUMER, value.epoch, None, time_ms)
    elif isinstance(key, ShareGroupMetadataKey):
        about = (key.group_id, SHARE, None, None, time_ms)
    elif isinstance(key, StreamsGroupMetadataKey):
        about = (key.group_id, STREAMS, None, None, time_ms)
    else:
        return None
    group_id, kind, epoch, protocol_type, state_ms = about
    group = rules.group(cluster, group_id)
    is_dropped = group.name is None
    fields = (None, None, None, None, None, None, None, epoch, protocol_type, state_ms)
    return (cluster, group_id, group.name, kind, *fields, is_dropped, group.why, group.problem)


def _time(own_ms: int, record_ms: int) -> int:
    """The time in a record, or when it was written; a time that does not fit into a column counts as none."""
    return own_ms if 0 <= own_ms <= TIME_MS_MAX else record_ms
