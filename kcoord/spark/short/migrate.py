"""The plan of a migration, and its records, as `kcoord.spark.jobs.migrate` defines them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from kcoord.core.outcome import OFFSETS_TOPIC
from kcoord.spark.jobs.migrate import (
    CONFLICT,
    DROPPED,
    KEPT,
    RENAMED,
    decide,
    encode_details,
    refuse_rows,
)
from kcoord.spark.jobs.migration_details import OFFSET, details_of
from kcoord.spark.jobs.migration_rules import Rules
from kcoord.spark.short.aggregates import Row, largest
from kcoord.spark.short.bounds import NotShort
from kcoord.spark.short.state import latest
from kcoord.spark.tables.arrow import BIGINT, STRING, TIMESTAMP
from kcoord.spark.tables.rows import CLASSIC, CONSUMER

PLAN: Final = pa.schema(
    [
        ("action", STRING),
        ("cluster", STRING),
        ("group_id", STRING),
        ("kind", STRING),
        ("new_group", STRING),
        ("offsets", BIGINT),
        ("offsets_renamed", BIGINT),
        ("offsets_dropped", BIGINT),
        ("last_commit", TIMESTAMP),
        ("reason", STRING),
    ]
)
COUNTS: Final = pa.schema(
    [
        ("action", STRING),
        ("groups", BIGINT),
        ("offsets", BIGINT),
        ("offsets_renamed", BIGINT),
        ("offsets_dropped", BIGINT),
    ]
)
# Records are made of so many details at a time.
DETAILS_PER_BATCH: Final = 10_000
# They are Python objects, of some 3 KB each.
DETAILS_MAX: Final = 500_000


def details(records: pa.Table, rules: Rules, groups: Sequence[str]) -> list[Row]:
    """A row for each offset and each group's record, with what the rules make of it. Raises NotShort."""
    cluster_of = rules.cluster_of if rules.clusters else None
    offsets = records.filter(pc.equal(records.column("log_topic"), OFFSETS_TOPIC))
    newest = latest(offsets, cluster_of, groups).select(["log", "log_timestamp", "key", "value"])
    if newest.num_rows > DETAILS_MAX:
        raise NotShort(f"{newest.num_rows} records of the state")
    batches = newest.to_batches(DETAILS_PER_BATCH)
    return [row for batch in details_of(iter(batches), rules) for row in batch.to_pylist()]


def plan_of(rows: Sequence[Row], rules: Rules) -> list[Row]:
    """Rows of PLAN, one for each group of each cluster, sorted as they are shown. `last_commit` is in microseconds."""
    of_group: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        of_group[row["cluster"], row["group_id"]].append(row)
    named = [_named(source, of) for source, of in of_group.items()]
    competing: dict[str, list[Row]] = defaultdict(list)
    for one in named:
        if one["new_group"] is not None and not one["nothing"]:
            competing[one["new_group"]].append(one)
    decided: dict[tuple[str, str], tuple[str, str, str]] = {}
    for new_group, sources in competing.items():
        sources.sort(key=lambda one: (one["cluster"], one["group_id"]))
        for cluster, group_id, name, action, reason in decide(new_group, sources, rules):
            decided[cluster, group_id] = (name, action, reason)
    plan = []
    for one in named:
        found = decided.get((one["cluster"], one["group_id"]), (None, DROPPED, one["why"]))
        plan.append({**one, **dict(zip(("new_group", "action", "reason"), found, strict=True))})
    plan.sort(key=lambda one: (one["new_group"] is not None, one["new_group"] or "", one["cluster"], one["group_id"]))
    return [{name: one[name] for name in PLAN.names} for one in plan]


def _named(source: tuple[str, str], rows: Sequence[Row]) -> Row:
    """A group with its new name, and what speaks against it."""
    taken = [row for row in rows if row["kind"] == OFFSET and not row["is_dropped"]]
    twice = len(taken) - len({(row["new_topic"], row["partition"]) for row in taken})
    kind = max((row["kind"] for row in rows if row["kind"] != OFFSET), default="offsets only")
    new_group = max((row["new_group"] for row in rows if row["new_group"] is not None), default=None)
    problem = max(row["problem"] for row in rows)
    nothing = kind not in (CLASSIC, CONSUMER) and not taken
    if problem:
        why = problem
    elif twice > 0:
        why = f"{twice} offsets would be of the same new topic and partition"
    elif nothing and new_group is not None:
        why = "nothing of it is left to migrate"
    else:
        why = max(row["why"] for row in rows)
    commit_ms = largest(row["commit_ms"] for row in rows)
    return {
        "cluster": source[0], "group_id": source[1], "new_group": new_group, "kind": kind, "nothing": nothing,
        "wrong": bool(problem) or twice > 0, "why": why, "commit_ms": commit_ms, "offsets": len(taken),
        "offsets_renamed": sum(row["new_topic"] != row["topic"] for row in taken),
        "offsets_dropped": sum(row["kind"] == OFFSET and row["is_dropped"] for row in rows),
        "last_commit": None if commit_ms is None else commit_ms * 1000,
    }  # fmt: skip


def counts(plan: Sequence[Row]) -> list[Row]:
    """Of a plan: action, groups, offsets, offsets_renamed, offsets_dropped."""
    found: dict[str, Row] = {}
    names = ("offsets", "offsets_renamed", "offsets_dropped")
    for one in plan:
        sums = found.setdefault(one["action"], {"action": one["action"], "groups": 0, **dict.fromkeys(names, 0)})
        sums["groups"] += 1
        for name in names:
            sums[name] += one[name]
    return [found[action] for action in sorted(found)]


def refuse_conflicts(plan: Sequence[Row]) -> None:
    """Raises Conflicts if there are some."""
    refuse_rows([one for one in plan if one["action"] == CONFLICT])


def taken(rows: Sequence[Row], plan: Sequence[Row]) -> list[Row]:
    """The details that are taken over."""
    winners = {(one["cluster"], one["group_id"]) for one in plan if one["action"] in (KEPT, RENAMED)}
    return [row for row in rows if not row["is_dropped"] and (row["cluster"], row["group_id"]) in winners]


def committed(rows: Sequence[Row]) -> list[tuple[str, str, int, int]]:
    """The offsets of details that are taken over: group, topic, partition, offset, sorted."""
    offsets = [row for row in rows if row["kind"] == OFFSET]
    return sorted((row["new_group"], row["new_topic"], row["partition"], row["offset"]) for row in offsets)


def records_of(rows: Sequence[Row]) -> Iterator[pa.RecordBatch]:
    """Details that are taken over as records for a log."""
    in_order = sorted(
        rows, key=lambda row: (row["new_group"], row["kind"], row["new_topic"] or "", row["partition"] or 0)
    )
    return encode_details(in_order[at : at + DETAILS_PER_BATCH] for at in range(0, len(in_order), DETAILS_PER_BATCH))
