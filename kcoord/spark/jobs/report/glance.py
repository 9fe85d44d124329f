"""Which group lags and why, first of all: a sentence for each of the worst, and the table that they are from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kcoord.spark.jobs.report import text
from kcoord.spark.jobs.report.data import ROWS_MAX, Finding, LagPeak, Report
from kcoord.spark.jobs.report.pieces import NAME, WORD, Cell, Link, Names, Table, plural, table
from kcoord.spark.jobs.report.text import count, duration, when

LAGGING_MAX: Final = 3
# And of those that stopped.
STOPPED_MAX: Final = 2
# Lag that changed by less than this part of it is as it was.
STEADY_PART: Final = 0.1

SILENT: Final = "no commits"
BEHIND: Final = "falling behind"
CATCHING_UP: Final = "catching up"
STEADY: Final = "steady"
READ_ALL: Final = "no lag"
# Of groups that do nothing and have nothing to do.
STOPPED: Final = "stopped"
STATES: Final = (BEHIND, SILENT, CATCHING_UP, STEADY, READ_ALL, STOPPED, text.NONE)


def state_of(peak: LagPeak, trend_ms: int | None) -> str:
    """What a group with lag does, by the last part of the time; NONE if that is not known."""
    if peak.records_end is None:
        return text.NONE
    if peak.records_end == 0:
        return READ_ALL
    if trend_ms is None:
        return text.NONE
    if peak.last_commit_ms is None or peak.last_commit_ms < trend_ms:
        return SILENT
    if peak.records_before is None:
        return text.NONE
    change = peak.records_end - peak.records_before
    if abs(change) <= STEADY_PART * max(peak.records_end, peak.records_before):
        return STEADY
    return BEHIND if change > 0 else CATCHING_UP


@dataclass(frozen=True)
class Lagging:
    """A group with lag; `why` are parts of a sentence."""

    group: Link
    lag: str
    why: list[str]


@dataclass(frozen=True)
class Storm:
    group: Link
    what: str


@dataclass(frozen=True)
class Flapping:
    group: Link
    member: str
    times: str


@dataclass(frozen=True)
class Most:
    """The partition of a group with the most rewinds and resets."""

    group: Link
    topic: str
    partition: int


@dataclass(frozen=True)
class Glance:
    """For templates/sections.html. `no_lag` is the text if no group lags; `jumps` is empty without any."""

    lagging: list[Lagging]
    no_lag: str
    storms: list[Storm]
    flapping: list[Flapping]
    jumps: str
    most: list[Most]


def glance(report: Report, names: Names) -> Glance:
    lagging = [one for one in report.lag_peaks if one.records_end][:LAGGING_MAX]
    lagging += report.stopped[:STOPPED_MAX]
    is_known = any(one.records_end is not None for one in report.lag_peaks)
    storms = [one for one in report.findings if one.finding == "storm"]
    flapping = [one for one in report.findings if one.finding != "storm"]
    jumps = ""
    if report.rewinds_total or report.resets_total:
        least = "At least " if report.complete_ms is not None else ""
        jumps = f"{least}{plural(report.rewinds_total, 'rewind')} and {plural(report.resets_total, 'reset')} of offsets"
    return Glance(
        [_lagging(one, report, names) for one in lagging],
        "No group has lag at the end." if is_known else "Whether a group has lag at the end is not known.",
        [_storm(one, names) for one in storms[:1]],
        [_flapping(one, names) for one in flapping[:1]],
        jumps,
        [Most(names.cell(one.owner), one.topic, one.partition) for one in report.jumps[:1]],
    )


def lag_tables(report: Report, names: Names) -> list[Table]:
    """Groups at work, and groups that stopped: neither of them takes the places of the others."""
    titles = (
        "Group", "State", "Lag, records", _since(report), "Lag, time", "Peak, records", "Peak, time",
        "Last commit, ago", "Rebalances", "Partitions",
    )  # fmt: skip
    captions = (
        f"Up to {ROWS_MAX} groups at work, those with the most lag at the end first, in records and in time by turns",
        f"Up to {ROWS_MAX} groups with lag that stopped, the last one first: no commit and no rebalance "
        f"since {when(report.trend_ms)}",
    )
    return [
        table(caption, titles, [_lag_row(one, report, names) for one in peaks], (NAME, WORD))
        for caption, peaks in zip(captions, (report.lag_peaks, report.stopped), strict=True)
    ]


def _lag_row(one: LagPeak, report: Report, names: Names) -> Sequence[Cell]:
    since = None if one.last_commit_ms is None else ((report.end_ms or 0) - one.last_commit_ms) / 1000
    state = state_of(one, report.trend_ms) + (", rebalancing" if one.is_rebalancing else "")
    return (
        names.cell(one.owner), state, count(one.records_end), _change(one), duration(one.seconds_end),
        count(one.records_peak), duration(one.seconds_peak), duration(since), count(one.rebalances),
        count(one.partitions),
    )  # fmt: skip


def _since(report: Report) -> str:
    return "Change" if report.trend_ms is None else f"Since {when(report.trend_ms)[5:16]}"


def _change(one: LagPeak) -> str:
    if one.records_end is None or one.records_before is None:
        return text.NONE
    change = one.records_end - one.records_before
    return f"{change:+,}" if change else "0"


def _lagging(one: LagPeak, report: Report, names: Names) -> Lagging:
    end_ms = report.end_ms or 0
    lag = plural(one.records_end or 0, "record")
    if one.seconds_end is not None:
        lag += f", {duration(one.seconds_end)}"
    why: list[str] = []
    state = state_of(one, report.trend_ms)
    if state == SILENT:
        why.append(f"it committed nothing after {when(one.last_commit_ms)[5:]}" if one.last_commit_ms is not None
                   else "it committed nothing in all of this time")  # fmt: skip
    elif state != text.NONE:
        why.append(f"it commits, and is {state}: {_change(one)} since {when(report.trend_ms)[5:16]}"
                   if state != STEADY else "it commits, and its lag is steady")  # fmt: skip
    elif one.last_commit_ms is not None:
        why.append(f"its last commit was {duration((end_ms - one.last_commit_ms) / 1000)} before the end")
    if one.is_rebalancing:
        why.append("a rebalance of it was not over")
    if one.rebalances:
        cause = text.visible(one.cause or "")
        most = f", most often {cause}" if cause and one.rebalances > 1 else ""
        most = f", {cause}" if cause and one.rebalances == 1 else most
        why.append(f"{plural(one.rebalances, 'rebalance')}{most}")
    return Lagging(names.cell(one.owner), lag, why)


def _storm(one: Finding, names: Names) -> Storm:
    cause = f", most often {text.visible(one.cause)}" if one.cause else ""
    length = duration((one.last_ms - one.first_ms) / 1000)
    what = f"{plural(one.rebalances, 'rebalance')} in {length} from {when(one.first_ms)[5:]} on{cause}"
    return Storm(names.cell(one.owner), what)


def _flapping(one: Finding, names: Names) -> Flapping:
    return Flapping(names.cell(one.owner), one.member or text.NONE, plural(one.returns or 0, "time"))
