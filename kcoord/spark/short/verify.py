"""Violations of the rules of logs, as `kcoord.spark.jobs.verify` defines them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from kcoord.spark.jobs.histories import ABOVE_FLOOR, ALWAYS, AT_END, AT_FLOOR, WHOLE
from kcoord.spark.jobs.history_walk import Place
from kcoord.spark.jobs.places import SegmentPlace
from kcoord.spark.jobs.verify import CHECKED, COLUMNS, LOG_COLUMNS, check_logs

Row = dict[str, Any]

SCHEMA: Final = pa.schema([*(CHECKED.field(name) for name in COLUMNS), pa.field("file", pa.string())])


def verify(
    batches: Iterator[pa.RecordBatch],
    floors: Mapping[Place, int],
    offsets_partitions: int,
    ids: Sequence[str],
    segments: Sequence[SegmentPlace],
) -> pa.Table:
    """Rows of SCHEMA. `batches` have the columns that the job of Spark names, of the logs of coordinators, one log
    after the other and each in its order. The other arguments are those of that job; `segments` say what is in which
    file."""
    return that_hold(check_logs(batches, floors, offsets_partitions, ids), segments)


def that_hold(checked: Iterator[pa.RecordBatch], segments: Sequence[SegmentPlace] = ()) -> pa.Table:
    """Of rows of CHECKED the violations that hold for their logs, as rows of SCHEMA."""
    of_log: dict[Place, list[Row]] = defaultdict(list)
    for batch in checked:
        for row in batch.to_pylist():
            of_log[_place(row)].append(row)
    files: dict[Place, list[SegmentPlace]] = defaultdict(list)
    for segment in segments:
        files[segment[:3]].append(segment)
    found = []
    for place, rows in of_log.items():
        holding = _holding(rows)
        for row in rows:
            if row["rule"] is not None and row["holds"] in holding:
                row["file"] = _file(files[place], row["log_offset"])
                found.append({name: row[name] for name in SCHEMA.names})
    return pa.Table.from_pylist(found, SCHEMA)


def _place(row: Row) -> Place:
    log, topic, partition = (row[name] for name in LOG_COLUMNS)
    return log, topic, partition


def _holding(rows: Sequence[Row]) -> set[str]:
    """Which violations hold for a log, by what is known of its gaps."""
    seen = [row for row in rows if row["counted"] is not None]
    holding = {ALWAYS}
    if not seen:
        return holding
    end = max(row["highest"] for row in seen) + 1
    floor = max(row["floor"] for row in seen)
    is_whole = min(row["lowest"] for row in seen) == 0 and sum(row["counted"] for row in seen) == end
    is_whole_above = floor <= end and sum(row["above_floor"] for row in seen) == end - floor
    if is_whole:
        return holding | {WHOLE, ABOVE_FLOOR}
    return holding | ({ABOVE_FLOOR, AT_FLOOR} if is_whole_above else {AT_END})


def _file(segments: Sequence[SegmentPlace], offset: int) -> str | None:
    for _, _, _, begin, end, file in segments:
        if begin <= offset < end:
            return file
    return None
