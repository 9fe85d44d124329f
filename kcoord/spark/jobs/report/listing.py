"""All groups in one table, a row each with a link of its own, and filters for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kcoord.spark.jobs.report import text
from kcoord.spark.jobs.report.data import GroupSummary, Report
from kcoord.spark.jobs.report.glance import READ_ALL, STATES, STOPPED, state_of
from kcoord.spark.jobs.report.pieces import NAME, TIME, WORD, Cell, Names, anchor, columns_of
from kcoord.spark.jobs.report.text import count, duration, when

TITLES: Final = (
    "Group", "State", "Complete from", "Lag, records", "Lag, time", "Last commit, ago", "Commits", "Rebalances",
    "Partitions moved", "Rewinds", "Resets", "Partitions",
)  # fmt: skip
KINDS: Final = (NAME, WORD, TIME)


@dataclass(frozen=True)
class Row:
    """One group's row; `has_lag` and `has_rebalances` are "1" or "0", for the filters."""

    anchor: str
    state: str
    has_lag: str
    has_rebalances: str
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Listing:
    """For templates/sections.html. `states` are those that the filter offers."""

    caption: str
    columns: Sequence[tuple[str, str]]
    states: list[str]
    rows: list[Row]


def listing(report: Report, names: Names) -> Listing:
    caption = f"{count(report.listing_total)} groups"
    if report.listing_total > len(report.listing):
        caption += f", of which {count(len(report.listing))} are listed"
    caption += ": those at work first, by lag; then those that stopped, by when. A name is a link to its row"
    states = {_state(one, report) for one in report.listing}
    rows = [_row(one, report, names) for one in report.listing]
    return Listing(caption, columns_of(TITLES, KINDS), [state for state in STATES if state in states], rows)


def _state(one: GroupSummary, report: Report) -> str:
    state = state_of(one.lag, report.trend_ms)
    return STOPPED if one.is_stopped and state in (READ_ALL, text.NONE) else state


def _row(one: GroupSummary, report: Report, names: Names) -> Row:
    lag, end_ms = one.lag, report.end_ms or 0
    since = None if lag.last_commit_ms is None else (end_ms - lag.last_commit_ms) / 1000
    state = _state(one, report)
    least = "≥ " if one.complete_ms is not None else ""
    cells = (
        names.cell(one.owner), state + (", rebalancing" if lag.is_rebalancing else ""), when(one.complete_ms),
        count(lag.records_end), duration(lag.seconds_end), duration(since), least + count(one.commits),
        least + count(lag.rebalances), count(one.partitions_moved), count(one.rewinds), count(one.resets),
        count(lag.partitions),
    )  # fmt: skip
    return Row(anchor(one.owner), state, "1" if lag.records_end else "0", "1" if lag.rebalances else "0", cells)
