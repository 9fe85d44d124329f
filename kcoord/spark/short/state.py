"""The newest record of every key, as `kcoord.spark.jobs.state` defines it, and tables made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord.core.groups.cause_header import CAUSE_HEADER
from kcoord.core.outcome import OFFSETS_TOPIC, TRANSACTION_TOPIC
from kcoord.log.serde import LEGACY_OFFSET_COMMIT, OFFSET_COMMIT
from kcoord.spark.jobs.snapshot import RAW_COLUMNS, decode_rows
from kcoord.spark.jobs.state import LOG_COLUMNS, MARKERS
from kcoord.spark.jobs.verify import CONTROL_NAMES
from kcoord.spark.short.runs import ends_of, flags, in_order, integers, keys_of, largest_of
from kcoord.spark.tables.rows import DecodedTable
from kcoord.spark.tables.schemas import arrow_schema

COORDINATORS: Final = pa.array([OFFSETS_TOPIC, TRANSACTION_TOPIC])
COMMIT: Final = ("group_id", "topic", "partition")


def latest(records: pa.Table, cluster_of: Callable[[str], str] | None = None, groups: Sequence[str] = ()) -> pa.Table:
    """The newest record of every key, unless it is a tombstone. The arguments are those of the job of Spark, but
    `cluster_of` returns the cluster of a log."""
    if groups and cluster_of is None:
        records = records.filter(pc.is_in(records.column("group_id"), value_set=pa.array(groups)))
    is_control = pc.is_in(records.column("record_name"), value_set=CONTROL_NAMES)
    is_counted = pc.and_(
        pc.is_in(records.column("log_topic"), value_set=COORDINATORS),
        pc.and_(records.column("key").is_valid(), pc.invert(is_control)),
    )
    counted = records.filter(is_counted).combine_chunks()
    keys = _keys(counted)
    order = in_order(keys, integers(counted.column("log_offset")))
    state = counted.take(np.sort(order[ends_of(keys[order])]))
    if cluster_of is not None:
        state = _of_furthest(state, cluster_of)
        if groups:
            # Not before: a group may be gone from the log that counts.
            state = state.filter(pc.is_in(state.column("group_id"), value_set=pa.array(groups)))
    return state.filter(~flags(state.column("is_tombstone"))).combine_chunks()


def _keys(records: pa.Table) -> Any:
    """Numbers of the keys of records."""
    # The oldest commits have keys of another type for the same state.
    kinds = integers(records.column("record_type"))
    is_offsets = flags(pc.equal(records.column("log_topic"), OFFSETS_TOPIC))
    is_commit = is_offsets & ((kinds == LEGACY_OFFSET_COMMIT) | (kinds == OFFSET_COMMIT))
    keys = np.zeros(records.num_rows, np.int64)
    commits, count = keys_of(records.filter(is_commit), [*LOG_COLUMNS, *COMMIT])
    keys[is_commit] = commits
    keys[~is_commit] = keys_of(records.filter(~is_commit), [*LOG_COLUMNS, "key"])[0] + count
    return keys


def _of_furthest(state: pa.Table, cluster_of: Callable[[str], str]) -> pa.Table:
    """Of the replicas of a partition in a cluster that which goes furthest. The last record of a log is the newest one
    of its key, so the state knows how far its log goes."""
    places = list(zip(*(state.column(name).to_pylist() for name in (*LOG_COLUMNS, "log_offset")), strict=True))
    clusters = {log: cluster_of(log) for log in {place[0] for place in places}}
    furthest: dict[tuple[str, str, int], tuple[int, str]] = {}
    for log, topic, partition, offset in places:
        replicas = (clusters[log], topic, partition)
        furthest[replicas] = max(furthest.get(replicas, (-1, "")), (offset, log))
    keep = [furthest[clusters[log], topic, partition][1] == log for log, topic, partition, _ in places]
    return state.filter(pa.array(keep, pa.bool_()))


def decoded(state: pa.Table, decoder: type[DecodedTable]) -> pa.Table:
    """The rows that the decoder of a table makes of the state of groups. Raises DecodeError."""
    of_groups = state.filter(pc.equal(state.column("log_topic"), OFFSETS_TOPIC))
    causes = pa.array([cause_of(headers) for headers in of_groups.column("headers").to_pylist()], pa.binary())
    batches = of_groups.append_column("cause", causes).select(RAW_COLUMNS).combine_chunks().to_batches()
    rows: Iterator[pa.RecordBatch] = decode_rows(iter(batches), decoder())
    return pa.Table.from_batches(rows, arrow_schema(decoder.NAME)).combine_chunks()


def cause_of(headers: Sequence[Mapping[str, Any]] | None) -> bytes | None:
    """The value of the header with the cause of an epoch; None without one."""
    for header in headers or ():
        if header["key"] == CAUSE_HEADER and header["value"] is not None:
            return bytes(header["value"])
    return None


def open_records(records: pa.Table) -> int:
    """How many records belong to transactions without an end. `records` was read with read_uncommitted."""
    is_of_producer = pc.and_(
        pc.is_in(records.column("log_topic"), value_set=COORDINATORS), records.column("producer_id").is_valid()
    )
    seen = records.filter(is_of_producer).combine_chunks()
    producers, count = keys_of(seen, [*LOG_COLUMNS, "producer_id"])
    is_marker = flags(pc.is_in(seen.column("record_name"), value_set=pa.array(MARKERS)))
    offsets = integers(seen.column("log_offset"))
    ended = largest_of(producers[is_marker], offsets[is_marker], count)
    return int((~is_marker & (offsets > ended[producers])).sum())
