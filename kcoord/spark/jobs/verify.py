"""Replays every history of a group and of a transactional id and checks the rules, in parallel.

Records are grouped by log and key and sorted by offset. Each task goes through its share, and holds the state of one
group at a time, and of a few before it in the same core. Short logs are read in their own order instead, each by one
task, which then holds the states of all its groups: for them Spark's shuffle takes longer than the check.

Rules about states depend on what compaction removed (`kcoord.spark.jobs.histories`). Only all offsets of a log show
that: each task counts the records of each log, and violations that do not hold for the log are dropped at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from kcoord.core.outcome import OFFSETS_TOPIC, TRANSACTION_TOPIC
from kcoord.log.typed_records import CONTROL_TYPES
from kcoord.spark.jobs.histories import ABOVE_FLOOR, ALWAYS, AT_END, AT_FLOOR, WHOLE
from kcoord.spark.jobs.history_walk import HistoryWalk, Place
from kcoord.spark.planned import BatchFunction
from kcoord.spark.tables.arrow import batch_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOG_COLUMNS: Final = ("log", "log_topic", "log_partition")
# The columns needed of the table `records`.
RECORD_COLUMNS: Final = (
    *LOG_COLUMNS, "log_offset", "log_timestamp", "record_name", "group_id", "transactional_id", "key", "value",
    "producer_id",
)  # fmt: skip
COLUMNS: Final = ("kind", "id", *LOG_COLUMNS, "log_offset", "rule", "message")
ROWS_MAX: Final = 10_000
# What a walk takes.
WALKED: Final = (*LOG_COLUMNS, "log_offset", "timestamp_ms", "id", "key", "value", "in_transaction")
CONTROL_NAMES: Final = pa.array(list(CONTROL_TYPES.values()), pa.string())
NO_ID: Final = pa.scalar(None, pa.string())
# Reads whole logs: what the function makes of their rows, with this schema; None if it cannot.
ReadLogs = Callable[[BatchFunction, str], "DataFrame | None"]

CHECKED: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("id", pa.string()),
        ("log", pa.string()),
        ("log_topic", pa.string()),
        ("log_partition", pa.int32()),
        ("log_offset", pa.int64()),
        ("rule", pa.string()),
        ("message", pa.string()),
        ("holds", pa.string()),
        # Rows without a rule: how many records of a log a task has seen.
        ("counted", pa.int64()),
        ("lowest", pa.int64()),
        ("highest", pa.int64()),
        ("floor", pa.int64()),
        ("above_floor", pa.int64()),
    ]
)
CHECKED_SQL: Final = (
    "kind string, id string, log string, log_topic string, log_partition int, log_offset bigint, rule string, "
    "message string, holds string, counted bigint, lowest bigint, highest bigint, floor bigint, above_floor bigint"
)


def verify(
    records: DataFrame,
    floors: Mapping[Place, int] | None = None,
    offsets_partitions: int = 0,
    ids: Sequence[str] = (),
) -> DataFrame:
    """Violations: kind (`group` or `transaction`), id, log, log_topic, log_partition, log_offset, rule, message.

    `records` is the table of that name with isolationLevel=read_uncommitted: markers have offsets, too. `floors` are
    the offsets up to which logs were compacted (`kcoord.spark.jobs.places` finds them; NEVER: a log lost its
    beginning). Without them, states of a compacted log are only checked at its end. `offsets_partitions` is the number
    of partitions of `__consumer_offsets`; with it, the partition of each group is checked as well. `ids` limits the
    check to these groups and transactional ids; `records` must still have all of them, because the rules depend on
    what compaction removed.
    """
    known = dict(floors or {})
    sorted_records = _by_history(records, ids)

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return check_histories(batches, known, offsets_partitions)

    return that_hold(sorted_records.mapInArrow(check, CHECKED_SQL))


def verify_short(
    read_logs: ReadLogs,
    floors: Mapping[Place, int] | None = None,
    offsets_partitions: int = 0,
    ids: Sequence[str] = (),
) -> DataFrame | None:
    """The same for short logs; None if `read_logs` returns that. It reads RECORD_COLUMNS of the logs of coordinators.
    A task has the states of all keys of a log at the same time, and nothing is shuffled or sorted.
    """
    known = dict(floors or {})

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return check_logs(batches, known, offsets_partitions, ids)

    checked = read_logs(check, CHECKED_SQL)
    return None if checked is None else that_hold(checked)


def _by_history(records: DataFrame, ids: Sequence[str]) -> DataFrame:
    is_control = F.coalesce(F.col("record_name").isin(list(CONTROL_TYPES.values())), F.lit(False))
    key_id = F.when(~is_control, F.coalesce("group_id", "transactional_id"))
    if ids:
        key_id = F.when(key_id.isin(*ids), key_id)
    wanted = records.where(F.col("log_topic").isin(OFFSETS_TOPIC, TRANSACTION_TOPIC))
    return (
        wanted.select(
            *LOG_COLUMNS,
            "log_offset",
            F.coalesce(F.unix_millis("log_timestamp"), F.lit(-1)).alias("timestamp_ms"),
            key_id.alias("id"),
            # The others only count.
            F.when(key_id.isNotNull(), F.col("key")).alias("key"),
            F.when(key_id.isNotNull(), F.col("value")).alias("value"),
            F.col("producer_id").isNotNull().alias("in_transaction"),
        )
        .repartition(*LOG_COLUMNS, "id")
        .sortWithinPartitions(*LOG_COLUMNS, "id", "log_offset")
    )


def that_hold(checked: DataFrame) -> DataFrame:
    """Of rows of CHECKED the violations that hold for their logs, by what is known of the gaps of each."""
    of_log = Window.partitionBy(*LOG_COLUMNS)
    end = F.max("highest").over(of_log) + 1
    is_whole = (F.min("lowest").over(of_log) == 0) & (F.sum("counted").over(of_log) == end)
    with_logs = checked.withColumns(
        {
            "is_whole": is_whole,
            "end": end,
            "floor": F.max("floor").over(of_log),
            "above": F.sum("above_floor").over(of_log),
        }
    )
    floor = F.col("floor")
    is_whole_above = (floor <= F.col("end")) & (F.col("above") == F.col("end") - floor)
    holds = F.col("holds")
    keeps = (
        (holds == ALWAYS)
        | ((holds == WHOLE) & F.col("is_whole"))
        | ((holds == ABOVE_FLOOR) & (F.col("is_whole") | is_whole_above))
        | ((holds == AT_FLOOR) & ~F.col("is_whole") & is_whole_above)
        | ((holds == AT_END) & ~F.col("is_whole") & ~is_whole_above)
    )
    return with_logs.where(F.col("rule").isNotNull() & keeps).select(*COLUMNS)


def check_histories(
    batches: Iterator[pa.RecordBatch], floors: Mapping[Place, int], offsets_partitions: int
) -> Iterator[pa.RecordBatch]:
    """What a task does: rows with the columns WALKED, sorted by log, key and offset, become rows of CHECKED."""
    return _walk(batches, HistoryWalk(floors, offsets_partitions, True))


def check_logs(
    batches: Iterator[pa.RecordBatch], floors: Mapping[Place, int], offsets_partitions: int, ids: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The same for all rows of logs of coordinators, with RECORD_COLUMNS, in the order of each log."""
    wanted = pa.array(ids, pa.string())
    rows = (_with_ids(batch, wanted) for batch in batches)
    return _walk(rows, HistoryWalk(floors, offsets_partitions, False))


def _with_ids(batch: pa.RecordBatch, wanted: pa.Array) -> pa.RecordBatch:
    """Rows with RECORD_COLUMNS as `_by_history` has them."""
    is_control = pc.fill_null(pc.is_in(batch.column("record_name"), value_set=CONTROL_NAMES), False)
    key_id = pc.coalesce(batch.column("group_id"), batch.column("transactional_id"))
    key_id = pc.if_else(is_control, NO_ID, key_id)
    if len(wanted):
        key_id = pc.if_else(pc.is_in(key_id, value_set=wanted), key_id, NO_ID)
    time_us = batch.column("log_timestamp").cast(pa.int64())
    columns = [
        *(batch.column(name) for name in LOG_COLUMNS),
        batch.column("log_offset"),
        # A log has milliseconds.
        pc.fill_null(pc.divide(time_us, 1000), -1),
        key_id,
        batch.column("key"),
        batch.column("value"),
        pc.is_valid(batch.column("producer_id")),
    ]
    return pa.RecordBatch.from_arrays(columns, WALKED)


def _walk(batches: Iterator[pa.RecordBatch], walk: HistoryWalk) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for begin, end in _runs(batch):
            rows = batch.slice(begin, end - begin)
            log, topic, partition = (rows.column(name)[0].as_py() for name in LOG_COLUMNS)
            walk.take((log, topic, partition), *(column.to_pylist() for column in rows.columns[len(LOG_COLUMNS) :]))
        if len(walk.rows) >= ROWS_MAX:
            yield _rows_of(walk)
    walk.finish()
    yield _rows_of(walk)


def _runs(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    """Where the rows of each log begin and end."""
    rows = batch.num_rows
    changes = np.zeros(max(rows - 1, 0), bool)
    for name in LOG_COLUMNS:
        column = batch.column(name)
        changes |= np.asarray(pc.not_equal(column.slice(1), column.slice(0, max(rows - 1, 0))))
    ends = [*(np.flatnonzero(changes) + 1).tolist(), rows]
    return [(begin, end) for begin, end in zip([0, *ends], ends, strict=False) if begin < end]


def _rows_of(walk: HistoryWalk) -> pa.RecordBatch:
    rows, walk.rows = walk.rows, []
    return batch_of(rows, CHECKED)
