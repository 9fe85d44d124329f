"""Replays every history of a group and of a transactional id and checks the rules, in parallel.

Records are grouped by log and key and sorted by offset. Each task goes through its share, and holds the state of one
group at a time, and of a few before it in the same core.

Rules about states depend on what compaction removed (`kcoord.spark.jobs.histories`). Only all offsets of a log show
that: each task counts the records of each log, and violations that do not hold for the log are dropped at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from kcoord.core.hashing import coordinator_partition
from kcoord.core.outcome import OFFSETS_TOPIC, TRANSACTION_TOPIC
from kcoord.log.typed_records import CONTROL_TYPES
from kcoord.spark.jobs.histories import (
    ABOVE_FLOOR,
    ALWAYS,
    AT_END,
    AT_FLOOR,
    GROUPS_PER_CORE,
    UNKNOWN_FLOOR,
    WHOLE,
    Found,
    GroupHistory,
    History,
    TransactionHistory,
    new_core,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# (log, log_topic, log_partition).
Place = tuple[str, str, int]
LOG_COLUMNS: Final = ("log", "log_topic", "log_partition")
# The columns needed of the table `records`.
RECORD_COLUMNS: Final = (
    *LOG_COLUMNS, "log_offset", "log_timestamp", "record_name", "group_id", "transactional_id", "key", "value",
    "producer_id",
)  # fmt: skip
COLUMNS: Final = ("kind", "id", *LOG_COLUMNS, "log_offset", "rule", "message")
ROWS_MAX: Final = 10_000
# From `log_offset` to `holds`, and from there on.
NOT_FOUND: Final = (None,) * 4
NOT_COUNTED: Final = (None,) * 5

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

    checked = sorted_records.mapInArrow(check, CHECKED_SQL)
    return _that_hold(checked)


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


def _that_hold(checked: DataFrame) -> DataFrame:
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
    """What a task does: rows sorted by log, key and offset become rows of CHECKED."""
    walk = HistoryWalk(floors, offsets_partitions)
    for batch in batches:
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            walk.take(*row)
        if len(walk.rows) >= ROWS_MAX:
            yield walk.rows_so_far()
    walk.finish()
    yield walk.rows_so_far()


@final
class HistoryWalk:
    """Goes from history to history. `rows` are those of CHECKED that were not taken yet."""

    def __init__(self, floors: Mapping[Place, int], offsets_partitions: int) -> None:
        self.floors = floors
        self.offsets_partitions = offsets_partitions
        self.rows: list[tuple[Any, ...]] = []
        self.core = new_core()
        self.groups = 0
        self.place: Place = ("", "", -1)
        self.floor = UNKNOWN_FLOOR
        self.counted = self.above = 0
        self.lowest = self.highest = -1
        self.key_id: str | None = None
        self.history: History | None = None

    def take(
        self,
        log: str,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int,
        key_id: str | None,
        key: bytes | None,
        value: bytes | None,
        in_transaction: bool,
    ) -> None:
        place = (log, topic, partition)
        if place != self.place:
            self._leave_log()
            self.place = place
            self.floor = self.floors.get(place, UNKNOWN_FLOOR)
        self.lowest = offset if self.counted == 0 else min(self.lowest, offset)
        self.highest = max(self.highest, offset)
        self.counted += 1
        self.above += offset >= self.floor
        if key_id != self.key_id:
            self._leave_history()
            if key_id is not None:
                self._enter_history(key_id, offset)
        if self.history is not None and key is not None:
            self._add(self.history.record(offset, timestamp_ms, key, value, in_transaction))

    def finish(self) -> None:
        self._leave_log()

    def rows_so_far(self) -> pa.RecordBatch:
        rows = self.rows
        self.rows = []
        columns: list[Any] = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in CHECKED]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, CHECKED, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=CHECKED)

    def _enter_history(self, key_id: str, offset: int) -> None:
        self.key_id = key_id
        if self.place[1] == TRANSACTION_TOPIC:
            self.history = TransactionHistory(key_id, self.floor)
            return
        if self.groups == GROUPS_PER_CORE:
            self.groups = 0
            self.core = new_core()
        self.groups += 1
        self.history = GroupHistory(key_id, self.core, self.floor)
        if self.offsets_partitions > 0:
            home = coordinator_partition(key_id, self.offsets_partitions)
            if home != self.place[2]:
                text = f"group {key_id!r} belongs into partition {home} of {OFFSETS_TOPIC}"
                self._add([Found(offset, "placement", text, ALWAYS)])

    def _leave_history(self) -> None:
        if self.history is not None:
            self._add(self.history.finish())
        self.history = None
        self.key_id = None

    def _leave_log(self) -> None:
        self._leave_history()
        if self.counted:
            seen = (self.counted, self.lowest, self.highest, self.floor, self.above)
            self.rows.append((None, None, *self.place, *NOT_FOUND, *seen))
        self.counted = self.above = 0
        self.highest = -1
        # The same group in another log is another group.
        self.core = new_core()
        self.groups = 0

    def _add(self, found: list[Found]) -> None:
        kind = "transaction" if self.place[1] == TRANSACTION_TOPIC else "group"
        for one in found:
            about = (one.offset, one.rule, one.message, one.holds)
            self.rows.append((kind, self.key_id, *self.place, *about, *NOT_COUNTED))
