"""Migrates offsets and groups of any number of clusters to one: as rows for a log, or as CSV for Kafka's tool.

The newest state of each log is migrated. Offsets keep their time and metadata, but not leader epochs and topic ids,
which belong to the old cluster. Members are not migrated either: they join their groups again. A group keeps its
generation or epoch, and is empty. Records of share and streams groups are not migrated; offsets of streams groups are.

Names change by rules (`kcoord.spark.jobs.migration_rules`). Two sources with one name are a conflict, unless a rule
has a winner. While there is a conflict nothing is written.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TextIO

import pyarrow as pa
from pyspark.sql import functions as F

from kcoord.core.outcome import OFFSETS_TOPIC
from kcoord.log.serde import encode_record
from kcoord.protocol.records.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from kcoord.protocol.records.consumer_group_target_assignment_metadata import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.spark.jobs import state
from kcoord.spark.jobs.migration_details import DETAILS_SQL, details_of
from kcoord.spark.jobs.migration_rules import NEWEST, Rules
from kcoord.spark.jobs.state import cluster_by, latest
from kcoord.spark.tables.arrow import HEADERS
from kcoord.spark.tables.rows import CLASSIC, CONSUMER
from kcoord.wire.message import Message

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEPT: Final = "kept"
RENAMED: Final = "renamed"
DROPPED: Final = "dropped"
CONFLICT: Final = "conflict"
# What is needed of the table `records`.
RECORD_COLUMNS: Final = tuple(name for name in state.RECORD_COLUMNS if name != "headers")
SOURCE: Final = ("cluster", "group_id")
# How many sources a message names.
NAMED_MAX: Final = 5

DECIDED_SQL: Final = "cluster string, group_id string, new_group string, action string, reason string"
ROWS_SQL: Final = (
    "log_topic string, log_partition int, log_timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
ROWS: Final = pa.schema(
    [
        ("log_topic", pa.string()),
        ("log_partition", pa.int32()),
        ("log_timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)


class Conflicts(ValueError):
    """Sources that cannot be written as they are; the message names some."""


@dataclass(frozen=True)
class Migration:
    """`details`: a row for each offset and each group's record, with what becomes of it; `plan`: one for each group
    of each cluster. Whoever uses both caches `details`: they are the state, not the log."""

    details: DataFrame
    plan: DataFrame


def migrate(records: DataFrame, rules: Rules, cluster: Column | None = None, groups: Sequence[str] = ()) -> Migration:
    """The plan for all groups. Nothing is written, and conflicts are not errors.

    `records` is the table of that name with isolationLevel=read_committed, of any number of logs. Each log is a
    cluster of its own unless the rules or `cluster` (see `latest`) name its cluster. `groups` are the only groups to
    migrate.
    """
    offsets = records.where(F.col("log_topic") == OFFSETS_TOPIC)
    if rules.clusters and cluster is None:
        cluster = cluster_by(rules.cluster_of)
    newest = latest(offsets, cluster, groups).select("log", "log_timestamp", "key", "value")

    def detail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return details_of(batches, rules)

    return of_details(newest.mapInArrow(detail, DETAILS_SQL), rules)


def of_details(details: DataFrame, rules: Rules) -> Migration:
    """The plan for details that are there, or cached."""
    return Migration(details, _plan(details, rules))


def counts(plan: DataFrame) -> DataFrame:
    """Of a plan: action, groups, offsets, offsets_renamed, offsets_dropped."""
    sums = [F.sum(name).alias(name) for name in ("offsets", "offsets_renamed", "offsets_dropped")]
    return plan.groupBy("action").agg(F.count("*").alias("groups"), *sums).orderBy("action")


def refuse_conflicts(plan: DataFrame) -> None:
    """Raises Conflicts if there are some."""
    refuse_rows(plan.where(F.col("action") == CONFLICT).orderBy("new_group", *SOURCE).limit(NAMED_MAX + 1).collect())


def refuse_rows(found: Sequence[Any]) -> None:
    """Raises Conflicts if there are rows of a plan; the message names the first ones."""
    if found:
        lines = [f"{row['group_id']} of {row['cluster']}: {row['reason']}" for row in found[:NAMED_MAX]]
        more = ["..."] if len(found) > NAMED_MAX else []
        raise Conflicts("; ".join(lines + more))


def committed(migration: Migration) -> DataFrame:
    """The migrated offsets: group, topic, partition, offset, sorted; lines for `--from-file`."""
    taken = _taken(migration).where(F.col("kind") == "offset")
    named = taken.select(F.col("new_group").alias("group"), F.col("new_topic").alias("topic"), "partition", "offset")
    return named.orderBy("group", "topic", "partition")


def write_csv(offsets: DataFrame, file: TextIO) -> int:
    """Lines of `committed` as `kafka-consumer-groups --reset-offsets --from-file` reads them; how many."""
    return write_lines(((row[0], row[1], row[2], row[3]) for row in offsets.toLocalIterator()), file)


def write_lines(rows: Iterable[tuple[str, str, int, int]], file: TextIO) -> int:
    """See `write_csv`."""
    writer = csv.writer(file, lineterminator="\n")
    count = 0
    for row in rows:
        writer.writerow(row)
        count += 1
    return count


def rows(migration: Migration) -> DataFrame:
    """Records for `df.write.format("kcoord")`, which places them by their groups."""
    taken = _taken(migration).repartition("new_group").sortWithinPartitions("new_group", "kind", "new_topic")
    return taken.select(*_DETAIL_NAMES).mapInArrow(_encode, ROWS_SQL)


_DETAIL_NAMES: Final = (
    "kind", "new_group", "new_topic", "partition", "offset", "metadata", "commit_ms", "expire_ms", "epoch",
    "protocol_type", "state_ms",
)  # fmt: skip


def _taken(migration: Migration) -> DataFrame:
    winners = migration.plan.where(F.col("action").isin(KEPT, RENAMED)).select(*SOURCE)
    return migration.details.where(~F.col("is_dropped")).join(winners, list(SOURCE), "left_semi")


# --- the plan


def _plan(details: DataFrame, rules: Rules) -> DataFrame:
    is_offset = F.col("kind") == "offset"
    taken = is_offset & ~F.col("is_dropped")
    twice = F.count(F.when(taken, 1)) - F.count_distinct(F.when(taken, F.struct("new_topic", "partition")))
    groups = details.groupBy(*SOURCE).agg(
        F.max("new_group").alias("new_group"),
        F.coalesce(F.max(F.when(~is_offset, F.col("kind"))), F.lit("offsets only")).alias("kind"),
        F.count(F.when(taken, 1)).alias("offsets"),
        F.count(F.when(taken & (F.col("new_topic") != F.col("topic")), 1)).alias("offsets_renamed"),
        F.count(F.when(is_offset & F.col("is_dropped"), 1)).alias("offsets_dropped"),
        F.timestamp_millis(F.max("commit_ms")).alias("last_commit"),
        F.max("commit_ms").alias("commit_ms"),
        F.max("why").alias("why"),
        F.max("problem").alias("problem"),
        twice.alias("twice"),
    )
    nothing = ~F.col("kind").isin(CLASSIC, CONSUMER) & (F.col("offsets") == 0)
    reason = (
        F.when(F.col("problem") != "", F.col("problem"))
        .when(
            F.col("twice") > 0,
            F.concat("twice", F.lit(" offsets would be of the same new topic and partition")),
        )
        .when(
            nothing & F.col("new_group").isNotNull(),
            F.lit("nothing of it is left to migrate"),
        )
        .otherwise(F.col("why"))
    )
    named = groups.withColumn("wrong", (F.col("problem") != "") | (F.col("twice") > 0)).withColumn("why", reason)
    source = F.struct(*SOURCE, "commit_ms", "wrong", "why")
    competing = (
        named.where(F.col("new_group").isNotNull() & ~nothing)
        .groupBy("new_group")
        .agg(F.sort_array(F.collect_list(source)).alias("sources"))
    )

    def decide(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return decide_groups(batches, rules)

    decided = competing.mapInArrow(decide, DECIDED_SQL)
    joined = named.drop("new_group").join(decided, list(SOURCE), "left")
    return joined.select(
        F.coalesce("action", F.lit(DROPPED)).alias("action"),
        *SOURCE,
        "kind",
        "new_group",
        "offsets",
        "offsets_renamed",
        "offsets_dropped",
        "last_commit",
        F.coalesce("reason", "why").alias("reason"),
    )


def decide_groups(batches: Iterator[pa.RecordBatch], rules: Rules) -> Iterator[pa.RecordBatch]:
    """Rows of a new group and its sources become one of DECIDED_SQL for each source."""
    names = [part.split(" ")[0] for part in DECIDED_SQL.split(", ")]
    for batch in batches:
        found = []
        for row in batch.to_pylist():
            found += decide(row["new_group"], row["sources"], rules)
        columns = [list(column) for column in zip(*found, strict=True)] or [[] for _ in names]
        yield pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in columns], names)


def decide(new_group: str, sources: list[dict[str, Any]], rules: Rules) -> list[tuple[str, str, str, str, str]]:
    """(cluster, group, new group, action, reason) for each source: cluster, group_id, commit_ms, wrong, why."""
    winner, reason = sources[0] if len(sources) == 1 else None, ""
    if len(sources) > 1:
        winner, reason = _winner(new_group, sources, rules)
    found = []
    for one in sources:
        if one["wrong"]:
            action, why = CONFLICT, one["why"]
        elif winner is None:
            action, why = CONFLICT, reason
        elif one is winner:
            action, why = (KEPT if one["group_id"] == new_group else RENAMED), reason or one["why"]
        else:
            action, why = DROPPED, reason
        found.append((one["cluster"], one["group_id"], new_group, action, why))
    return found


def _winner(new_group: str, sources: list[dict[str, Any]], rules: Rules) -> tuple[dict[str, Any] | None, str]:
    rule = rules.winner(new_group)
    named = ", ".join(f"{one['group_id']} of {one['cluster']}" for one in sources[:NAMED_MAX])
    many = f"{len(sources)} groups would be {new_group}: {named}{', ...' if len(sources) > NAMED_MAX else ''}"
    if rule is None:
        return None, many
    if rule.winner == NEWEST:
        times = [-1 if one["commit_ms"] is None else one["commit_ms"] for one in sources]
        candidates = [one for one, time in zip(sources, times, strict=True) if time == max(times)]
    else:
        candidates = [one for one in sources if one["cluster"] == rule.winner]
    if len(candidates) != 1:
        return None, f"{many}; conflict rule {rule.number} ({rule.winner}) fits {len(candidates)} of them"
    return candidates[0], f"conflict rule {rule.number}: {candidates[0]['cluster']} wins"


# --- the records


def _encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return encode_details(batch.to_pylist() for batch in batches)


def encode_details(batches: Iterable[Sequence[dict[str, Any]]]) -> Iterator[pa.RecordBatch]:
    """Rows of the details that are taken over become records: batches of ROWS."""
    for batch in batches:
        keys: list[bytes] = []
        values: list[bytes | None] = []
        times: list[int | None] = []
        for row in batch:
            for time_ms, key, value in detail_records(row):
                key_bytes, value_bytes = encode_record(key, value)
                keys.append(key_bytes)
                values.append(value_bytes)
                times.append(None if time_ms < 0 else time_ms * 1000)
        count = len(keys)
        columns: list[Any] = [[OFFSETS_TOPIC] * count, [0] * count, times, keys, values, [None] * count]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=ROWS)


def detail_records(row: dict[str, Any]) -> list[tuple[int, Message, Message]]:
    """(timestamp in ms, key, value) of the records that a row becomes."""
    group: str = row["new_group"]
    epoch = row["epoch"]
    if row["kind"] == "offset":
        time_ms = row["commit_ms"]
        committed = OffsetCommitValue(row["offset"], -1, row["metadata"], time_ms, row["expire_ms"])
        return [(time_ms, OffsetCommitKey(group, row["new_topic"], row["partition"]), committed)]
    time_ms = row["state_ms"]
    if row["kind"] == CLASSIC:
        empty = GroupMetadataValue(row["protocol_type"], epoch, None, None, time_ms, [])
        return [(time_ms, GroupMetadataKey(group), empty)]
    if row["kind"] == CONSUMER:
        target = ConsumerGroupTargetAssignmentMetadataValue(epoch, max(time_ms, 0))
        return [
            (time_ms, ConsumerGroupMetadataKey(group), ConsumerGroupMetadataValue(epoch, 0)),
            (time_ms, ConsumerGroupTargetAssignmentMetadataKey(group), target),
        ]
    return []
