"""Rebalances and their ranking, as `kcoord.spark.jobs.rebalances` defines them.

They are few, so they are dictionaries with the columns of that job's table, but with times in ms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kcoord.core.outcome import GROUP_EVENTS_TOPIC, OFFSETS_TOPIC
from kcoord.spark.jobs.completeness import COMPLETE_FROM, LogHistory
from kcoord.spark.jobs.rebalance_story import RebalanceStory
from kcoord.spark.jobs.rebalances import FLAPPING, GROUP, RECORD_TYPES, STORM, feed, row_of
from kcoord.spark.short.aggregates import Row, largest, mode, smallest, total
from kcoord.spark.short.state import cause_of
from kcoord.spark.tables.arrow import BIGINT, INT, STRING, TIMESTAMP

EVENT_LOG: Final = re.compile(rf"{OFFSETS_TOPIC}-([0-9]{{1,9}})")
OFFSET_MAX: Final = (1 << 63) - 1
# Rows that are Python objects at a time.
ROWS_AT_A_TIME: Final = 10_000
MEMBERS: Final = pa.list_(
    pa.field(
        "element", pa.struct([(name, STRING) for name in ("member_id", "instance_id", "client_id", "client_host")])
    )
)
CAUSES: Final = pa.list_(
    pa.field(
        "element",
        pa.struct(
            [("epoch", INT), ("at", TIMESTAMP), *((name, STRING) for name in ("cause", "source", "member", "detail"))]
        ),
    )
)
SCHEMA: Final = pa.schema(
    [
        ("log", STRING),
        ("group_id", STRING),
        ("protocol", STRING),
        ("from_epoch", INT),
        ("to_epoch", INT),
        ("epochs", INT),
        ("started", TIMESTAMP),
        ("finished", TIMESTAMP),
        ("duration_ms", BIGINT),
        ("cause", STRING),
        ("cause_source", STRING),
        ("cause_member", STRING),
        ("cause_detail", STRING),
        ("causes", CAUSES),
        ("members_before", INT),
        ("members_after", INT),
        ("partitions_before", INT),
        ("partitions_after", INT),
        ("partitions_moved", INT),
        ("members_joined", MEMBERS),
        ("members_left", MEMBERS),
        ("log_partition", INT),
        ("first_offset", BIGINT),
        ("last_offset", BIGINT),
        (COMPLETE_FROM, TIMESTAMP),
    ]
)
RANKING: Final = pa.schema(
    [
        ("finding", STRING),
        ("rank", INT),
        ("log", STRING),
        ("group_id", STRING),
        ("member", STRING),
        ("first", TIMESTAMP),
        ("last", TIMESTAMP),
        ("duration_ms", BIGINT),
        ("rebalances", BIGINT),
        ("epochs", BIGINT),
        ("returns", BIGINT),
        ("partitions_moved", BIGINT),
        ("cause", STRING),
        (COMPLETE_FROM, TIMESTAMP),
    ]
)


def rebalances(records: pa.Table, events: pa.Table, histories: Sequence[LogHistory] = ()) -> list[Row]:
    """`records` and `events` are the tables `records` and `messages`, with the columns that the job of Spark names.
    `histories` are the rows of the table `_history`."""
    stream = [*_records(records), *_events(events)]
    stream.sort(key=lambda row: (*_group(row), row["log_offset"], row["is_event"], row["number"]))
    complete_from = _complete_from(events, histories)
    found = []
    for group, rows in groupby(stream, _group):
        story = RebalanceStory()
        told = []
        for row in rows:
            feed(story, row)
            told += story.take()
        found += [_finished(row_of(group, one), complete_from) for one in [*told, *story.finish()]]
    return found


def begun(row: Row) -> int | None:
    """The latest time at which a rebalance can have begun: its end, if no record has its beginning."""
    return row["finished"] if row["started"] is None else row["started"]  # type: ignore[no-any-return]


def over(row: Row) -> int | None:
    """Its end, or its beginning if it has none."""
    return row["started"] if row["finished"] is None else row["finished"]  # type: ignore[no-any-return]


def table_of(rows: Iterable[Row], schema: pa.Schema) -> pa.Table:
    """Rows with times in ms as a table with one of the two schemas."""
    return pa.Table.from_pylist([_in_micros(row, schema) for row in rows], schema)


def _in_micros(row: Row, schema: pa.Schema) -> Row:
    found = dict(row)
    for field in schema:
        if field.type == TIMESTAMP and found[field.name] is not None:
            found[field.name] *= 1000
    if "causes" in found:
        found["causes"] = [{**one, "at": None if one["at"] is None else one["at"] * 1000} for one in found["causes"]]
    return found


def _group(row: Row) -> tuple[Any, ...]:
    return row["log"], row["log_partition"], row["group_id"]


def _finished(row: Row, complete_from: Mapping[tuple[str, int], int | None]) -> Row:
    started, finished = row.pop("started_ms"), row.pop("finished_ms")
    row["started"], row["finished"] = started, finished
    row["duration_ms"] = None if started is None or finished is None else max(finished - started, 0)
    first = row["causes"][0] if row["causes"] else {}
    for name in ("cause", "source", "member", "detail"):
        row[name if name == "cause" else f"cause_{name}"] = first.get(name)
    row["causes"] = [{"epoch": one["epoch"], "at": one["at_ms"], **_without_time(one)} for one in row["causes"]]
    row[COMPLETE_FROM] = complete_from.get((row["log"], row["log_partition"]))
    return row


def _without_time(cause: Row) -> Row:
    return {name: cause[name] for name in ("cause", "source", "member", "detail")}


# --- records and events


def _records(records: pa.Table) -> Iterator[Row]:
    is_wanted = pc.and_(
        pc.equal(records.column("log_topic"), OFFSETS_TOPIC),
        pc.is_in(records.column("record_type"), value_set=pa.array(RECORD_TYPES, records.column("record_type").type)),
    )
    wanted = records.filter(is_wanted)
    for row, time_ms in _rows(wanted, "log_timestamp"):
        yield {
            **{name: row[name] for name in (*GROUP, "log_offset", "key", "value")},
            "is_event": False,
            "number": 0,
            "time_ms": time_ms,
            "cause": cause_of(row["headers"]),
        }


def _rows(table: pa.Table, time: str) -> Iterator[tuple[Row, int]]:
    """Rows with their times in ms, -1 for null."""
    for batch in table.to_batches(ROWS_AT_A_TIME):
        yield from zip(batch.to_pylist(), _millis(batch.column(time)), strict=True)


def _events(messages: pa.Table) -> Iterator[Row]:
    """The events with their own group, partition and offset."""
    events = messages.filter(pc.equal(messages.column("topic"), GROUP_EVENTS_TOPIC))
    for row, time_ms in _rows(events, "timestamp"):
        try:
            document = json.loads((row["value"] or b"").decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            continue
        if not isinstance(document, dict):
            continue
        group_id, log, offset = (document.get(name) for name in ("group", "log", "offset"))
        number = EVENT_LOG.fullmatch(log) if isinstance(log, str) else None
        if number is None or not _is_text(group_id) or type(offset) is not int or abs(offset) > OFFSET_MAX:
            continue
        yield {
            "log": row["log"], "log_partition": int(number[1]), "group_id": group_id, "log_offset": offset,
            "key": row["key"], "value": row["value"], "is_event": True, "number": row["offset"], "time_ms": time_ms,
            "cause": None,
        }  # fmt: skip


def _is_text(value: Any) -> bool:
    """Whether it is a string that UTF-8 can hold."""
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


def _millis(times: Any) -> list[int]:
    """Times in ms, -1 for null."""
    return [-1 if time is None else time // 1000 for time in times.cast(pa.int64()).to_pylist()]


def _complete_from(events: pa.Table, histories: Sequence[LogHistory]) -> dict[tuple[str, int], int | None]:
    """From when on all rebalances of each log are known: events have what compaction took from the records."""
    of_groups = events.filter(pc.equal(events.column("topic"), GROUP_EVENTS_TOPIC))
    first: dict[str, int] = {}
    for log, time in zip(
        of_groups.column("log").to_pylist(), of_groups.column("timestamp").cast(pa.int64()).to_pylist(), strict=True
    ):
        if time is not None:
            first[log] = min(first.get(log, time), time)
    found: dict[tuple[str, int], int | None] = {}
    for one in histories:
        if one.topic == OFFSETS_TOPIC:
            at_ms = one.from_ms
            if at_ms is not None and one.log in first:
                at_ms = min(at_ms, first[one.log] // 1000)
            found[one.log, one.partition] = at_ms
    return found


# --- storms and flapping members


def ranking(found: Iterable[Row], storm_gap_s: float = 60, storm_rebalances: int = 3, flaps: int = 2) -> list[Row]:
    """Rows of RANKING, as `kcoord.spark.jobs.rebalances.ranking` defines them, with times in ms."""
    of_group: dict[tuple[Any, ...], list[Row]] = {}
    for row in found:
        of_group.setdefault(_group(row), []).append(row)
    rows: list[Row] = []
    for group, of in of_group.items():
        log, _, group_id = group
        of.sort(key=lambda row: (row["first_offset"], row["to_epoch"]))
        about = {"log": log, "group_id": group_id}
        rows += [{**about, **one} for one in _storms(of, storm_gap_s) if one["rebalances"] >= storm_rebalances]
        rows += [{**about, **one} for one in _flapping(of) if one["returns"] >= flaps]
    rows.sort(key=_rank)
    ranked = []
    for finding, of_finding in groupby(rows, lambda row: row["finding"]):
        ranked += [{**row, "finding": finding, "rank": rank} for rank, row in enumerate(of_finding, 1)]
    return ranked


def _rank(row: Row) -> tuple[Any, ...]:
    """Null is after all numbers where the largest comes first, and before everything else."""
    largest = [(row[name] is None, -(row[name] or 0)) for name in ("returns", "rebalances", "duration_ms")]
    member, first = row["member"], row["first"]
    others = (row["log"], row["group_id"], member is not None, member or "", first is not None, first or 0)
    return row["finding"], *largest, *others


def _storms(rows: Sequence[Row], gap_s: float) -> Iterator[Row]:
    """All runs of a group's rebalances, which are in their order."""
    runs: list[list[Row]] = []
    for row in rows:
        before = over(runs[-1][-1]) if runs else None
        began = begun(row)
        if before is None or (began is not None and (began - before) / 1000 >= gap_s):
            runs.append([])
        runs[-1].append(row)
    for run in runs:
        yield {
            "finding": STORM, "member": None, **_span(map(begun, run), map(over, run)), "rebalances": len(run),
            "epochs": total(row["epochs"] for row in run), "returns": None,
            "partitions_moved": total(row["partitions_moved"] for row in run), "cause": mode(run, "cause"),
            COMPLETE_FROM: largest(row[COMPLETE_FROM] for row in run),
        }  # fmt: skip


def _flapping(rows: Sequence[Row]) -> Iterator[Row]:
    """All members of a group that came or went."""
    moves: dict[str, list[tuple[int, bool, Row]]] = {}
    for row in rows:
        for name, came in (("members_left", False), ("members_joined", True)):
            for one in row[name] or ():
                moves.setdefault(name_of(one), []).append((row["first_offset"], came, row))
    for member, of in moves.items():
        of.sort(key=lambda move: move[:2])
        their = [row for _, _, row in of]
        yield {
            "finding": FLAPPING, "member": member, **_span(map(begun, their), map(begun, their)),
            "rebalances": len({offset for offset, _, _ in of}), "epochs": None,
            "returns": sum(came and not before for (_, before, _), (_, came, _) in pairwise(of)),
            "partitions_moved": None, "cause": mode(their, "cause"),
            COMPLETE_FROM: largest(row[COMPLETE_FROM] for row in their),
        }  # fmt: skip


def name_of(member: Mapping[str, str | None]) -> str:
    """A static member is known by its instance, another by its client id and host: it gets a new id each time."""
    if member["instance_id"] is not None:
        return member["instance_id"]
    return "@".join(one for one in (member["client_id"], member["client_host"]) if one is not None)


def _span(firsts: Iterable[int | None], lasts: Iterable[int | None]) -> Row:
    first, last = smallest(firsts), largest(lasts)
    return {"first": first, "last": last, "duration_ms": None if first is None or last is None else last - first}
