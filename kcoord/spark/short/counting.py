"""When commits count, as `kcoord.spark.jobs.counting` defines it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord.spark.jobs.counting import COUNTS_AT, COUNTS_OFFSET, KEYS, PRODUCER
from kcoord.spark.jobs.state import COMMIT_MARKER, MARKERS
from kcoord.spark.short.runs import (
    MISSING,
    Sorted,
    begins_of,
    ends_of,
    flags,
    in_order,
    integers,
    keys_of,
    nullable,
    running_max,
)
from kcoord.spark.tables.arrow import BIGINT, TIMESTAMP


def counting(commits: pa.Table, records: pa.Table) -> pa.Table:
    """`commits` with the two columns, without those that never count; unchanged if there are no markers. `records` are
    MARKER_COLUMNS of the table `records`, with or without other records."""
    markers = records.filter(pc.is_in(records.column("record_name"), value_set=pa.array(MARKERS))).combine_chunks()
    if not markers.num_rows or not commits.num_rows:
        return commits
    offsets, times = integers(commits.column("log_offset")), commit_times(commits)
    row = _markers_of(commits, offsets, markers)
    # With a place that exists, for what has none.
    is_commit = np.append(flags(pc.equal(markers.column("record_name"), COMMIT_MARKER)), False)
    is_held = is_commit[row] & ~flags(commits.column("is_tombstone"))
    ended = np.append(integers(markers.column("log_offset")), MISSING)[row]
    ended_at = np.append(integers(markers.column("log_timestamp")), MISSING)[row]
    counts = np.where(is_held, ended, offsets)
    counts_at = np.where(is_held & (ended_at != MISSING), ended_at, times)
    found = commits.append_column(COUNTS_OFFSET, nullable(counts, BIGINT))
    found = found.append_column(COUNTS_AT, nullable(counts_at, TIMESTAMP))
    return found.filter(pa.array(_that_count(commits, offsets, counts))).combine_chunks()


def commit_times(commits: pa.Table) -> Any:
    """From when on commits count: when they were made, or the time of their marker; of tombstones the time of the
    record."""
    if COUNTS_AT in commits.column_names:
        return integers(commits.column(COUNTS_AT))
    made = integers(commits.column("commit_timestamp"))
    return np.where(made == MISSING, integers(commits.column("log_timestamp")), made)


def commit_offsets(commits: pa.Table) -> Any:
    """The offset in the log from which on commits count."""
    return integers(commits.column(COUNTS_OFFSET if COUNTS_OFFSET in commits.column_names else "log_offset"))


def _markers_of(commits: pa.Table, offsets: Any, markers: pa.Table) -> Any:
    """For each commit the row of the next marker of its producer; their number, if there is none."""
    both = pa.concat_tables([commits.select(PRODUCER), markers.select(PRODUCER)])
    producers, count = keys_of(both, PRODUCER)
    of_commits, of_markers = producers[: commits.num_rows], producers[commits.num_rows :]
    ends = integers(markers.column("log_offset"))
    order = in_order(of_markers, ends)
    known = Sorted(of_markers[order], ends[order], count)
    place = known.first(of_commits, offsets)
    # No marker is of no producer.
    has_marker = place < known.bounds[of_commits + 1]
    return np.where(has_marker, np.append(order, 0)[place], markers.num_rows)


def _that_count(commits: pa.Table, offsets: Any, counts: Any) -> Any:
    """Whether no newer record of the same key counts from there on or before."""
    keys, _ = keys_of(commits, KEYS)
    order = in_order(keys, counts, offsets)
    keys, counts, offsets = keys[order], counts[order], offsets[order]
    # Of the commits of one transaction only the last one counts.
    is_last = ends_of(keys) | np.append(counts[1:] != counts[:-1], True)
    keep = is_last & (offsets >= running_max(offsets, begins_of(keys)))
    found = np.empty(len(keep), bool)
    found[order] = keep
    return found
