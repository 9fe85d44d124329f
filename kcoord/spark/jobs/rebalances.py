"""Rebalances of all groups, one row each, and a ranking of anomalies: storms, and flapping members.

Records and events are grouped and sorted by offset; then `rebalance_story` goes through each group. It keeps only the
current state of the group, never its whole history.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kcoord.core.groups.cause_header import CAUSE_HEADER, decode_cause
from kcoord.core.outcome import GROUP_EVENTS_TOPIC, OFFSETS_TOPIC
from kcoord.log.serde import UnknownRecord, decode_record
from kcoord.spark.jobs.cause_column import cause_bytes
from kcoord.spark.jobs.completeness import COMPLETE_FROM, with_history
from kcoord.spark.jobs.rebalance_story import Rebalance, RebalanceStory, member_document
from kcoord.spark.reader.slices import TIME_MS_MAX

if TYPE_CHECKING:
    import pyarrow as pa

GROUP: Final = ("log", "log_partition", "group_id")
# Record types that matter: classic groups (2), and members, epochs and assignments of consumer groups (3 to 8).
RECORD_TYPES: Final = (2, 3, 4, 5, 6, 7, 8)
# The columns needed of the tables `records` and `messages`, including those that identify replicas.
RECORD_COLUMNS: Final = (
    *GROUP, "log_topic", "log_offset", "log_timestamp", "record_type", "key", "value", "headers",
)  # fmt: skip
MESSAGE_COLUMNS: Final = ("log", "topic", "partition", "offset", "timestamp", "key", "value")
ROWS_MAX: Final = 1000

MEMBER: Final = "struct<member_id:string,instance_id:string,client_id:string,client_host:string>"
CAUSE: Final = "struct<epoch:int,at_ms:bigint,cause:string,source:string,member:string,detail:string>"
COLUMNS: Final = f"""
    log string, log_partition int, group_id string, protocol string, from_epoch int, to_epoch int, epochs int,
    started_ms bigint, finished_ms bigint, causes array<{CAUSE}>,
    members_before int, members_after int, partitions_before int, partitions_after int, partitions_moved int,
    members_joined array<{MEMBER}>, members_left array<{MEMBER}>, first_offset bigint, last_offset bigint"""

STORM: Final = "storm"
FLAPPING: Final = "flapping_member"


def rebalances(records: DataFrame, messages: DataFrame | None = None, history: DataFrame | None = None) -> DataFrame:
    """A row for each rebalance, in no order; one that was not over when the log ended has no `finished`.

    `records` is the table `records`, as far as it has `__consumer_offsets`; `messages` the table `messages`, as far as
    it has `__group_events` (`subscribe`), which has causes and epochs that compaction removed from the records.
    `history` is the table `_history`: with it rows have the time from which all rebalances of their log are known.
    """
    stream = _records(records)
    if messages is not None:
        stream = stream.unionByName(_events(messages))
    told = (
        stream.repartition(*GROUP)
        .sortWithinPartitions(*GROUP, "log_offset", "is_event", "number")
        .mapInArrow(_derive, COLUMNS)
    )
    # The beginning of a story may be gone, and the cause with it.
    first = F.get("causes", F.lit(0))
    took = F.col("finished_ms") - F.col("started_ms")
    return with_history(told, history, messages).select(
        "log", "group_id", "protocol", "from_epoch", "to_epoch", "epochs",
        F.timestamp_millis("started_ms").alias("started"),
        F.timestamp_millis("finished_ms").alias("finished"),
        # Null unless both are known, which `greatest` alone would make a 0.
        F.when(took.isNotNull(), F.greatest(took, F.lit(0))).alias("duration_ms"),
        first["cause"].alias("cause"),
        first["source"].alias("cause_source"),
        first["member"].alias("cause_member"),
        first["detail"].alias("cause_detail"),
        F.transform("causes", _cause_column).alias("causes"),
        "members_before", "members_after", "partitions_before", "partitions_after", "partitions_moved",
        "members_joined", "members_left", "log_partition", "first_offset", "last_offset", COMPLETE_FROM,
    )  # fmt: skip


def _cause_column(cause: Column) -> Column:
    return F.struct(
        cause["epoch"].alias("epoch"),
        F.timestamp_millis(cause["at_ms"]).alias("at"),
        *(cause[name].alias(name) for name in ("cause", "source", "member", "detail")),
    )


def begun() -> Column:
    """The latest time at which a rebalance can have begun: its end, if no record has its beginning."""
    return F.coalesce("started", "finished")


def ranking(rebalances: DataFrame, storm_gap_s: float = 60, storm_rebalances: int = 3, flaps: int = 2) -> DataFrame:
    """Anomalies, the worst first: rank 1 of each `finding`.

    A **storm** is a run of at least `storm_rebalances` rebalances of a group, each of which began less than
    `storm_gap_s` seconds after the one before was over. A **flapping member** is one that left and came back at
    least `flaps` times: a static member by its instance, another by its client id and host, since it gets a new
    member id each time.
    """
    found = _storms(rebalances, storm_gap_s, storm_rebalances).unionByName(_flapping(rebalances, flaps))
    order = Window.partitionBy("finding").orderBy(
        F.desc("returns"), F.desc("rebalances"), F.desc("duration_ms"), "log", "group_id", "member", "first"
    )
    return found.select("finding", F.row_number().over(order).alias("rank"), *found.columns[1:])


# --- storms and flapping members


def _storms(rebalances: DataFrame, gap_s: float, least: int) -> DataFrame:
    order = Window.partitionBy(*GROUP).orderBy("first_offset", "to_epoch")
    over = F.lag(F.coalesce("finished", "started")).over(order)
    quiet_s = (F.unix_micros(begun()) - F.unix_micros(over)) / F.lit(1_000_000)
    is_first = over.isNull() | (quiet_s >= gap_s)
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = rebalances.withColumn("_is_first", is_first.cast("int"))
    runs = rows.withColumn("_run", F.sum("_is_first").over(so_far)).groupBy(*GROUP, "_run").agg(
        F.min(begun()).alias("first"),
        F.max(F.coalesce("finished", "started")).alias("last"),
        F.max(COMPLETE_FROM).alias(COMPLETE_FROM),
        F.sum("epochs").cast("bigint").alias("epochs"),
        F.count("*").alias("rebalances"),
        F.mode("cause", True).alias("cause"),
        F.sum("partitions_moved").alias("partitions_moved"),
    )  # fmt: skip
    return runs.where(F.col("rebalances") >= least).select(
        F.lit(STORM).alias("finding"), "log", "group_id", F.lit(None).cast("string").alias("member"),
        "first", "last", _milliseconds().alias("duration_ms"), "rebalances", "epochs",
        F.lit(None).cast("bigint").alias("returns"), "partitions_moved", "cause", COMPLETE_FROM,
    )  # fmt: skip


def _flapping(rebalances: DataFrame, least: int) -> DataFrame:
    def went(name: str, came: int) -> Column:
        members = F.coalesce(name, F.array().cast(f"array<{MEMBER}>"))
        return F.transform(members, lambda one: F.struct(F.lit(came).alias("came"), one.alias("who")))

    moves = rebalances.select(
        *GROUP, begun().alias("started"), "first_offset", "cause", COMPLETE_FROM,
        F.explode(F.concat(went("members_left", 0), went("members_joined", 1))).alias("_move"),
    )  # fmt: skip
    who = F.coalesce("_move.who.instance_id", F.concat_ws("@", "_move.who.client_id", "_move.who.client_host"))
    moves = moves.select(
        *GROUP, "started", "first_offset", "cause", COMPLETE_FROM, who.alias("member"),
        F.col("_move.came").alias("came"),
    )  # fmt: skip
    order = Window.partitionBy(*GROUP, "member").orderBy("first_offset", "came")
    is_return = (F.col("came") == 1) & (F.lag("came").over(order) == 0)
    members = moves.withColumn("_is_return", F.coalesce(is_return, F.lit(False)).cast("bigint"))
    return (
        members.groupBy(*GROUP, "member")
        .agg(
            F.min("started").alias("first"),
            F.max("started").alias("last"),
            F.countDistinct("first_offset").alias("rebalances"),
            F.sum("_is_return").alias("returns"),
            F.mode("cause", True).alias("cause"),
            F.max(COMPLETE_FROM).alias(COMPLETE_FROM),
        )
        .where(F.col("returns") >= least)
        .select(
            F.lit(FLAPPING).alias("finding"), "log", "group_id", "member", "first", "last",
            _milliseconds().alias("duration_ms"), "rebalances", F.lit(None).cast("bigint").alias("epochs"),
            "returns", F.lit(None).cast("bigint").alias("partitions_moved"), "cause", COMPLETE_FROM,
        )
    )  # fmt: skip


def _milliseconds() -> Column:
    return F.unix_millis("last") - F.unix_millis("first")


# --- records and events


def _records(records: DataFrame) -> DataFrame:
    return records.where((F.col("log_topic") == OFFSETS_TOPIC) & F.col("record_type").isin(*RECORD_TYPES)).select(
        *GROUP, "log_offset", F.lit(0).alias("is_event"), F.lit(0).cast("bigint").alias("number"),
        F.coalesce(F.unix_millis("log_timestamp"), F.lit(-1)).alias("time_ms"), "key", "value",
        cause_bytes().alias("cause"),
    )  # fmt: skip


def _events(messages: DataFrame) -> DataFrame:
    """The events with their own group, partition and offset."""
    text = F.col("value").cast("string")
    place = F.from_json(text, "`group` string, log string, offset bigint")
    number = F.regexp_extract(place["log"], rf"^{OFFSETS_TOPIC}-(\d{{1,9}})$", 1)
    return (
        messages.where(F.col("topic") == GROUP_EVENTS_TOPIC)
        .select(
            "log",
            F.when(number != "", number.cast("int")).alias("log_partition"),
            place["group"].alias("group_id"),
            place["offset"].alias("log_offset"),
            F.lit(1).alias("is_event"),
            F.col("offset").alias("number"),
            F.coalesce(F.unix_millis("timestamp"), F.lit(-1).cast("bigint")).alias("time_ms"),
            "key",
            "value",
            F.lit(None).cast("binary").alias("cause"),
        )
        .dropna(subset=["log_partition", "group_id", "log_offset"])
    )


# --- on executors


def _derive(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows sorted by group and offset become rebalances."""
    story = RebalanceStory()
    group: tuple[Any, ...] | None = None
    rows: list[dict[str, Any]] = []
    for batch in batches:
        for row in batch.to_pylist():
            key = tuple(row[name] for name in GROUP)
            if key != group:
                if group is not None:
                    rows += [row_of(group, one) for one in story.finish()]
                group, story = key, RebalanceStory()
            feed(story, row)
            rows += [row_of(key, one) for one in story.take()]
            if len(rows) >= ROWS_MAX:
                yield _batch(rows)
                rows = []
    if group is not None:
        rows += [row_of(group, one) for one in story.finish()]
    if rows:
        yield _batch(rows)


def feed(story: RebalanceStory, row: Mapping[str, Any]) -> None:
    """Add a record or an event to the story of its group: a row as `_records` and `_events` make them."""
    if not row["is_event"]:
        key, value = decode_record(row["key"], row["value"])
        if not isinstance(key, UnknownRecord):
            cause = decode_cause([(CAUSE_HEADER, row["cause"])])
            story.record(row["log_offset"], row["time_ms"], key, value, cause)
        return
    try:
        document = json.loads(row["value"].decode("utf-8"))
    except ValueError:
        return
    if isinstance(document, dict):
        story.event(document)


def row_of(group: tuple[Any, ...], one: Rebalance) -> dict[str, Any]:
    """A rebalance of a group, whose GROUP is given, as a row of COLUMNS."""
    changes = one.changes
    return {
        **dict(zip(GROUP, group, strict=True)),
        "protocol": one.protocol,
        "from_epoch": one.from_epoch,
        "to_epoch": one.to_epoch,
        "epochs": one.epochs,
        "started_ms": _time(one.started_ms),
        "finished_ms": _time(one.finished_ms),
        "causes": [
            {
                "epoch": epoch,
                "at_ms": _time(at_ms),
                "cause": None if cause is None else cause.kind,
                "source": source,
                "member": None if cause is None else cause.member_id or None,
                "detail": None if cause is None else cause.detail or None,
            }
            for epoch, at_ms, cause, source in one.causes
        ],
        "members_before": one.members_before,
        "members_after": one.members_after,
        "partitions_before": one.partitions_before,
        "partitions_after": one.partitions_after,
        "partitions_moved": None if changes is None or one.finished_ms is None else changes.moved,
        "members_joined": None if changes is None else [member_document(member) for member in changes.joined],
        "members_left": None if changes is None else [member_document(member) for member in changes.left],
        "first_offset": one.first_offset,
        "last_offset": one.last_offset,
    }


def _time(ms: int | None) -> int | None:
    return None if ms is None or not 0 <= ms <= TIME_MS_MAX else ms


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """A row of COLUMNS."""
    import pyarrow as pa

    def array(*fields: tuple[str, pa.DataType]) -> pa.DataType:
        return pa.list_(pa.field("element", pa.struct(fields)))

    text, small, large = pa.string(), pa.int32(), pa.int64()
    causes = array(
        ("epoch", small), ("at_ms", large), ("cause", text), ("source", text), ("member", text), ("detail", text)
    )
    members = array(*((name, text) for name in ("member_id", "instance_id", "client_id", "client_host")))
    types = {
        "log": text, "group_id": text, "protocol": text, "started_ms": large, "finished_ms": large, "causes": causes,
        "members_joined": members, "members_left": members, "first_offset": large, "last_offset": large,
    }  # fmt: skip
    names = [column.split()[0] for column in COLUMNS.replace("\n", " ").split(", ")]
    return pa.RecordBatch.from_pylist(rows, pa.schema([(name, types.get(name, small)) for name in names]))
