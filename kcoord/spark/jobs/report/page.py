"""The page: one HTML document that needs nothing else, nothing from a network and no script but its own small one.

This module decides what each section shows; the templates decide how.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from kcoord.spark.jobs.report import text
from kcoord.spark.jobs.report.data import (
    LANES_MAX,
    LINES_MAX,
    ROWS_MAX,
    SLOTS_MAX,
    Bar,
    Finding,
    GroupMoves,
    Jumps,
    LagSeries,
    Lane,
    Owner,
    Report,
)
from kcoord.spark.jobs.report.glance import glance, lag_tables
from kcoord.spark.jobs.report.listing import listing
from kcoord.spark.jobs.report.missing import missing
from kcoord.spark.jobs.report.pieces import NAME, TIME, WORD, Cell, Names, Table, milliseconds, table
from kcoord.spark.jobs.report.render import POLICY, SCRIPT, STYLE, prose, render
from kcoord.spark.jobs.report.svg import (
    LANE_LEFT,
    Axis,
    LaneOf,
    Line,
    Span,
    axis_of,
    bar_chart,
    lane_chart,
    line_chart,
)
from kcoord.spark.jobs.report.text import count, duration, when
from kcoord.spark.jobs.report.words import TITLES, WORDS

# Causes that look alike, by colour: what is in none of them is the last.
FAMILIES: Final = (
    ("members came", ("member_joined", "member_rejoined", "static_member_replaced", "leader_rejoined")),
    ("members left", ("member_left",)),
    ("a timeout", ("session_timeout", "rebalance_timeout", "join_timeout", "sync_timeout")),
    ("topics or subscriptions", ("subscription_changed", "regex_resolved", "topics_changed", "metadata_changed")),
    ("protocol or assignor", (
        "assignor_changed", "client_assignors_changed", "protocol_upgraded", "protocol_downgraded",
    )),
    ("anything else", ()),
)  # fmt: skip
STYLE_OF: Final = {cause: number for number, (_, causes) in enumerate(FAMILIES, 1) for cause in causes}


def page(report: Report) -> str:
    """HTML5. The same report makes the same page."""
    is_empty = report.begin_ms is None or report.end_ms is None
    values: dict[str, Any] = {
        "report": report,
        "title": f"Consumer groups of {text.visible(report.path)}",
        "policy": POLICY,
        "style": STYLE,
        "script": SCRIPT,
        "words": WORDS,
        "span": "nothing" if is_empty else _span(report.begin_ms or 0, report.end_ms or 0),
        "numbers": _numbers(report),
        "later": _later(report.later),
        "sections": [] if is_empty else [name for name in TITLES if name != "missing" or report.gone],
        "is_grey": report.complete_ms is not None,
    }
    if not is_empty:
        values |= _sections(report, report.begin_ms or 0, report.end_ms or 0)
    return f"<!DOCTYPE html>\n{render('page.html', **values)}\n"


def _sections(report: Report, begin_ms: int, end_ms: int) -> dict[str, Any]:
    """What templates/sections.html shows."""
    names = Names(report.logs > 1, (one.owner for one in report.listing))
    axis = axis_of(begin_ms, end_ms)
    return {
        "missing": missing(report),
        "glance": glance(report, names),
        "lag": _lag(report, axis, names),
        "rebalances": _rebalances(report, axis_of(begin_ms, end_ms, LANE_LEFT), names),
        "storms": _storms(report.findings, names),
        "movers": _movers(report, names),
        "jumps": _jumps(report, names),
        "commits": _commits(report, axis),
        "listing": listing(report, names),
    }


# --- the head


def _span(begin_ms: int, end_ms: int) -> str:
    return f"{when(begin_ms)} to {when(end_ms)} UTC ({duration((end_ms - begin_ms) / 1000)})"


def _numbers(report: Report) -> list[tuple[str, str]]:
    of_commits = "≥ " if report.complete_ms is not None else ""
    of_rebalances = "≥ " if report.rebalances_complete_ms is not None else ""
    return [
        ("Logs", count(report.logs)),
        ("Groups", of_commits + count(report.groups)),
        ("Partitions with commits", of_commits + count(report.partitions)),
        ("Commits", of_commits + count(report.commits_total)),
        ("Offsets removed", of_commits + count(report.tombstones)),
        ("Rebalances", of_rebalances + count(report.rebalances_total)),
        ("Rewinds", of_commits + count(report.rewinds_total)),
        ("Resets", of_commits + count(report.resets_total)),
    ]


def _later(number: int) -> str:
    if not number:
        return ""
    have = "commit has a timestamp" if number == 1 else "commits have timestamps"
    return f"{number:,} {have} later than this page, and not in it."


# --- sections


@dataclass(frozen=True)
class Commits:
    """`none` is the text without a chart."""

    chart: Markup | None
    caption: str
    none: str


def _commits(report: Report, axis: Axis) -> Commits:
    every = duration(report.bucket_ms / 1000)
    if not report.commits:
        none = "No commits in this time" + (" of which history is complete." if report.commits_left else ".")
        return Commits(None, "", none)
    unit = f"Commits in {every}"
    chart = bar_chart("Commits over time", unit, axis, report.commits, report.bucket_ms, report.complete_ms)
    caption = f"Each bar is {every}. Offsets that were removed are not counted."
    if report.complete_ms is not None:
        caption += " Grey: bars are of logs that are complete by then; what compaction left of others is not drawn."
    return Commits(chart, caption, "")


@dataclass(frozen=True)
class Plot:
    """`chart` is None if nothing is known of any line."""

    title: str
    lines: list[Line]
    chart: Markup | None


@dataclass(frozen=True)
class Lag:
    tables: list[Table]
    plots: list[Plot]
    caption: str


def _lag(report: Report, axis: Axis, names: Names) -> Lag:
    styles = _styles(report)
    top = max((value for one in report.lag_seconds for _, value in one.points if value is not None), default=0.0)
    size, unit = text.unit_of(top)
    scaled = [
        LagSeries(one.owner, tuple((at, None if value is None else value / size) for at, value in one.points))
        for one in report.lag_seconds
    ]
    every = duration(report.bucket_ms / 1000)
    caption = (
        f"Up to {LINES_MAX} groups, those at work with the highest peaks first, measured every {every} and at the end. "
        "A line begins where the history of its group is complete."
    )
    plots = []
    for title, name, series in (
        ("Lag over time, in records", "Lag (records)", report.lag_records),
        ("Age of the first message not read, over time", f"Lag ({unit})", scaled),
    ):
        lines = [Line(one.points, names.text(one.owner), styles[one.owner]) for one in series]
        is_known = any(value is not None for line in lines for _, value in line.points)
        chart = line_chart(title, name, axis, lines, report.complete_ms) if is_known else None
        plots.append(Plot(title, lines, chart))
    return Lag(lag_tables(report, names), plots, caption)


def _styles(report: Report) -> dict[Owner, int]:
    """A group has the same colour in both plots, and another than all in the same plot."""
    styles = {one.owner: number for number, one in enumerate(report.lag_records, 1)}
    taken = {one.owner: styles[one.owner] for one in report.lag_seconds if one.owner in styles}
    free = [number for number in range(1, LINES_MAX + 1) if number not in taken.values()]
    for one in report.lag_seconds:
        if one.owner not in styles:
            styles[one.owner] = free.pop(0)
    return styles


@dataclass(frozen=True)
class Rebalances:
    """`families` are the causes in the chart: number of the colour, and name. `is_open`: some were not over."""

    chart: Markup
    caption: str
    families: list[tuple[int, str]]
    is_open: bool
    is_grey: bool
    other_style: int = len(FAMILIES)


def _rebalances(report: Report, axis: Axis, names: Names) -> Rebalances | None:
    if not report.lanes:
        return None
    lanes = [_lane(lane, report.end_ms or 0, names) for lane in report.lanes]
    used = {span.style for lane in lanes for span in lane.spans}
    caption = (
        f"Up to {LANES_MAX} groups, those with the most rebalances. A bar goes from a rebalance's start to its end; "
        f"those that begin within one {SLOTS_MAX}th of the time are one bar. Colours are causes."
    )
    if any(not bar.is_timed for lane in report.lanes for bar in lane.bars):
        caption += " Of rebalances without a known beginning there is only the end."
    return Rebalances(
        lane_chart("Rebalances over time", "Group", axis, lanes),
        caption,
        [(number, name) for number, (name, _) in enumerate(FAMILIES, 1) if number in used],
        any(span.is_open for lane in lanes for span in lane.spans),
        any(lane.complete_ms is not None for lane in lanes),
    )


def _lane(lane: Lane, end_ms: int, names: Names) -> LaneOf:
    spans = []
    for bar in lane.bars:
        end = end_ms if bar.end_ms is None else bar.end_ms
        style = STYLE_OF.get(bar.cause or "", len(FAMILIES))
        spans.append(Span(bar.begin_ms, end, style, bar.end_ms is None, _hint(lane.owner, bar, names)))
    return LaneOf(names.text(lane.owner), sum(bar.count for bar in lane.bars), spans, lane.complete_ms)


def _hint(owner: Owner, bar: Bar, names: Names) -> str:
    parts = [names.text(owner)]
    parts.append("1 rebalance" if bar.count == 1 else f"{bar.count:,} rebalances")
    if bar.end_ms is None:
        parts.append(f"{when(bar.begin_ms)}, not over")
    elif not bar.is_timed:
        parts.append(f"over at {when(bar.end_ms)}; how long it took is not known")
    else:
        parts.append(f"{when(bar.begin_ms)} for {duration((bar.end_ms - bar.begin_ms) / 1000)}")
    cause = f"{bar.cause or 'cause not known'}" + (" most often" if bar.count > 1 else "")
    parts.append(cause + (f", {bar.cause_member}" if bar.cause_member and bar.count == 1 else ""))
    parts.append(f"epoch {count(bar.from_epoch)} to {count(bar.to_epoch)}")
    parts.append(f"members {count(bar.members_before)} to {count(bar.members_after)}")
    parts.append(f"partitions moved: {count(bar.partitions_moved)}")
    return "; ".join(text.visible(part) for part in parts)


def _movers(report: Report, names: Names) -> list[Table]:
    """None if nothing moved."""
    if not report.by_rebalances:
        return []
    titles = ("Group", "Most frequent cause", "Rebalances", "Partitions moved", "Time in rebalances", "Longest")
    members = [
        (names.cell(one.owner), one.member, count(one.rebalances), count(one.joined), count(one.left))
        for one in report.members
    ]
    return [
        table(
            f"Up to {ROWS_MAX} groups, those with the most rebalances first",
            titles, _moves(report.by_rebalances, names), (NAME, WORD),
        ),
        table(
            f"Up to {ROWS_MAX} groups, those with the most partitions moved first",
            titles, _moves(report.by_partitions, names), (NAME, WORD),
        ),
        table(
            f"Up to {ROWS_MAX} members, those that came or went in the most rebalances first",
            ("Group", "Member", "Rebalances", "Came", "Went"),
            members, (NAME, NAME),
        ),
    ]  # fmt: skip


def _moves(rows: Iterable[GroupMoves], names: Names) -> list[Sequence[Cell]]:
    return [
        (names.cell(one.owner), one.cause or text.NONE, count(one.rebalances), count(one.partitions_moved),
         milliseconds(one.duration_ms), milliseconds(one.longest_ms))
        for one in rows
    ]  # fmt: skip


def _storms(findings: Sequence[Finding], names: Names) -> Table:
    rows = [
        (one.finding.replace("_", " "), names.cell(one.owner), one.member or text.NONE, one.cause or text.NONE,
         when(one.first_ms), when(one.last_ms), count(one.rebalances), count(one.returns))
        for one in findings
    ]  # fmt: skip
    kinds = (WORD, NAME, NAME, WORD, TIME, TIME)
    titles = ("Finding", "Group", "Member", "Cause", "From", "Until", "Rebalances", "Returns")
    return table(f"Up to {ROWS_MAX} of each kind, the worst first", titles, rows, kinds)


def _jumps(report: Report, names: Names) -> Table:
    return table(
        f"Up to {ROWS_MAX} partitions of groups, those with the most first",
        ("Group", "Topic and partition", "Why reset", "Last one at", "Rewinds", "Resets", "Farthest back"),
        [_jump(one, names) for one in report.jumps],
        (NAME, NAME, WORD, TIME),
    )


def _jump(one: Jumps, names: Names) -> Sequence[Cell]:
    back = None if one.farthest is None or one.farthest >= 0 else -one.farthest
    return (
        names.cell(one.owner), prose(f"{text.visible(one.topic)}-{one.partition}"), ", ".join(one.reasons) or text.NONE,
        when(one.last_ms), count(one.rewinds), count(one.resets), count(back),
    )  # fmt: skip
