"""The page: one HTML document that needs nothing else, neither scripts nor anything from a network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

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
from kcoord.spark.jobs.report.glance import glance, lag_table
from kcoord.spark.jobs.report.pieces import (
    NAME,
    SECTIONS,
    TIME,
    WORD,
    figure,
    milliseconds,
    name_of,
    note,
    owner_cell,
    section,
    table,
)
from kcoord.spark.jobs.report.style import STYLE
from kcoord.spark.jobs.report.svg import (
    LANE_LEFT,
    Axis,
    Line,
    Span,
    axis_of,
    bar_chart,
    lane_chart,
    line_chart,
    swatch,
)
from kcoord.spark.jobs.report.text import count, duration, escaped, when
from kcoord.spark.jobs.report.words import WORDS

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

# Should a name ever get by, it can run and load nothing.
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page(report: Report) -> str:
    """HTML5. The same report makes the same page."""
    has_logs = report.logs > 1
    body = [_head(report)]
    if report.begin_ms is None or report.end_ms is None:
        body.append(
            note("There are no commits and no rebalances in these logs, or none in the time asked for.")
        )
    else:
        axis = axis_of(report.begin_ms, report.end_ms)
        body += [
            glance(report, has_logs),
            _lag(report, axis, has_logs),
            _rebalances(report, axis_of(report.begin_ms, report.end_ms, LANE_LEFT), has_logs),
            _storms(report.findings, has_logs),
            _movers(report, has_logs),
            _jumps(report, has_logs),
            _commits(report, axis),
        ]
    body.append(_words())
    title = f"Consumer groups of {text.visible(report.path)}"
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escaped(title)}</title>",
        f"<style>{STYLE}</style>",
        "</head>",
        "<body>",
        *body,
        "</body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


# --- sections


def _head(report: Report) -> str:
    span = "nothing"
    if report.begin_ms is not None and report.end_ms is not None:
        length = duration((report.end_ms - report.begin_ms) / 1000)
        span = f"{when(report.begin_ms)} to {when(report.end_ms)} UTC ({length})"
    numbers = (
        ("Logs", report.logs), ("Groups", report.groups), ("Partitions with commits", report.partitions),
        ("Commits", report.commits_total), ("Offsets removed", report.tombstones),
        ("Rebalances", report.rebalances_total), ("Rewinds", report.rewinds_total), ("Resets", report.resets_total),
    )  # fmt: skip
    tiles = "".join(f"<div><dt>{name}</dt><dd>{count(value)}</dd></div>" for name, value in numbers)
    links = ""
    if report.begin_ms is not None:
        links = "".join(f'<a href="#{name}">{title}</a>' for name, title in SECTIONS)
    later = ""
    if report.later:
        says = "commit says that it is" if report.later == 1 else "commits say that they are"
        later = note(f"{report.later:,} {says} of a time later than this page, and not in it.")
    return (
        f"<h1>Consumer groups of {escaped(report.path)}</h1>"
        f'<p>{escaped(span)}</p><p class="note">Made by kcoord pipeline report at {when(report.made_ms)} UTC. '
        f'All times are UTC.</p><nav aria-label="Sections">{links}</nav><dl class="numbers">{tiles}</dl>{later}'
    )


def _commits(report: Report, axis: Axis) -> str:
    every = duration(report.bucket_ms / 1000)
    if not report.commits:
        return section("commits", note("No commits in this time."))
    chart = bar_chart("Commits over time", f"Commits in {every}", axis, report.commits, report.bucket_ms)
    return section(
        "commits", figure(chart, f"Each bar is {every}. Offsets that were removed are not counted.")
    )


def _lag(report: Report, axis: Axis, has_logs: bool) -> str:
    if not report.lag_peaks:
        return section("lag", note("No group has an offset in this time, so none has lag."))
    every = duration(report.bucket_ms / 1000)
    styles = _styles(report)
    top = max(
        (value for one in report.lag_seconds for _, value in one.points if value is not None), default=0.0
    )
    size, unit = text.unit_of(top)
    scaled = [
        LagSeries(one.owner, tuple((at, None if value is None else value / size) for at, value in one.points))
        for one in report.lag_seconds
    ]
    most = f"Up to {LINES_MAX} groups, those with the highest peaks, measured every {every} and at the end."
    plots = [
        ("Lag over time, in records", "Lag (records)", report.lag_records),
        ("Age of the first message not read, over time", f"Lag ({unit})", scaled),
    ]
    figures = []
    for title, name, series in plots:
        lines = [Line(one.points, name_of(one.owner, has_logs), styles[one.owner]) for one in series]
        if any(value is not None for line in lines for _, value in line.points):
            legend = "".join(f"<li>{swatch(line.style, True)}{escaped(line.hint)}</li>" for line in lines)
            figures.append(figure(line_chart(title, name, axis, lines), most, legend))
        else:
            figures.append(note(f"{title}: not known, since no messages of these topics are in the logs."))
    return section("lag", lag_table(report, has_logs), *figures)


def _styles(report: Report) -> dict[Owner, int]:
    """A group has the same colour in both plots, and another than all in the same plot."""
    styles = {one.owner: number for number, one in enumerate(report.lag_records, 1)}
    taken = {one.owner: styles[one.owner] for one in report.lag_seconds if one.owner in styles}
    free = [number for number in range(1, LINES_MAX + 1) if number not in taken.values()]
    for one in report.lag_seconds:
        if one.owner not in styles:
            styles[one.owner] = free.pop(0)
    return styles


def _rebalances(report: Report, axis: Axis, has_logs: bool) -> str:
    if not report.lanes:
        return section("rebalances", note("No rebalances in this time."))
    lanes = [_lane(lane, report.end_ms or 0, has_logs) for lane in report.lanes]
    used = {span.style for _, _, spans in lanes for span in spans}
    names = "".join(
        f"<li>{swatch(number, False)}{name}</li>"
        for number, (name, _) in enumerate(FAMILIES, 1)
        if number in used
    )
    caption = (
        f"Up to {LANES_MAX} groups, those with the most rebalances. A bar goes from a rebalance's start to its end; "
        f"those that begin within one {SLOTS_MAX}th of the time are one bar. Colours are causes."
    )
    if any(span.is_open for _, _, spans in lanes for span in spans):
        names += f"<li>{swatch(len(FAMILIES), False, True)}faint: not over</li>"
    chart = lane_chart("Rebalances over time", "Group", axis, lanes)
    return section("rebalances", figure(chart, caption, names))


def _lane(lane: Lane, end_ms: int, has_logs: bool) -> tuple[str, int, list[Span]]:
    spans = []
    for bar in lane.bars:
        end = end_ms if bar.end_ms is None else bar.end_ms
        style = STYLE_OF.get(bar.cause or "", len(FAMILIES))
        spans.append(Span(bar.begin_ms, end, style, bar.end_ms is None, _hint(lane.owner, bar, has_logs)))
    return name_of(lane.owner, has_logs), sum(bar.count for bar in lane.bars), spans


def _hint(owner: Owner, bar: Bar, has_logs: bool) -> str:
    parts = [name_of(owner, has_logs)]
    parts.append("1 rebalance" if bar.count == 1 else f"{bar.count:,} rebalances")
    if bar.end_ms is None:
        parts.append(f"{when(bar.begin_ms)}, not over")
    else:
        parts.append(f"{when(bar.begin_ms)} for {duration((bar.end_ms - bar.begin_ms) / 1000)}")
    cause = f"{bar.cause or 'cause not known'}" + (" most often" if bar.count > 1 else "")
    parts.append(cause + (f", {bar.cause_member}" if bar.cause_member and bar.count == 1 else ""))
    parts.append(f"epoch {count(bar.from_epoch)} to {count(bar.to_epoch)}")
    parts.append(f"members {count(bar.members_before)} to {count(bar.members_after)}")
    parts.append(f"partitions moved: {count(bar.partitions_moved)}")
    return "; ".join(text.visible(part) for part in parts)


def _movers(report: Report, has_logs: bool) -> str:
    if not report.by_rebalances:
        return section("movers", note("Nothing moved in this time."))
    titles = (
        "Group",
        "Most frequent cause",
        "Rebalances",
        "Partitions moved",
        "Time in rebalances",
        "Longest",
    )
    members = [
        (
            owner_cell(one.owner, has_logs),
            escaped(one.member),
            count(one.rebalances),
            count(one.joined),
            count(one.left),
        )
        for one in report.members
    ]
    return section(
        "movers",
        table(
            f"Up to {ROWS_MAX} groups, those with the most rebalances first",
            titles, _moves(report.by_rebalances, has_logs), (NAME, WORD),
        ),
        table(
            f"Up to {ROWS_MAX} groups, those with the most partitions moved first",
            titles, _moves(report.by_partitions, has_logs), (NAME, WORD),
        ),
        table(
            f"Up to {ROWS_MAX} members, those that came or went in the most rebalances first",
            ("Group", "Member", "Rebalances", "Came", "Went"),
            members, (NAME, NAME),
        ),
    )  # fmt: skip


def _moves(rows: Iterable[GroupMoves], has_logs: bool) -> list[tuple[str, ...]]:
    return [
        (owner_cell(one.owner, has_logs), escaped(one.cause or text.NONE), count(one.rebalances),
         count(one.partitions_moved), milliseconds(one.duration_ms), milliseconds(one.longest_ms))
        for one in rows
    ]  # fmt: skip


def _storms(findings: Sequence[Finding], has_logs: bool) -> str:
    if not findings:
        return section(
            "storms", note("No storm of rebalances, and no member that went and came back repeatedly.")
        )
    rows = [
        (escaped(one.finding.replace("_", " ")), owner_cell(one.owner, has_logs), escaped(one.member or text.NONE),
         escaped(one.cause or text.NONE), when(one.first_ms), when(one.last_ms), count(one.rebalances),
         count(one.returns))
        for one in findings
    ]  # fmt: skip
    kinds = (WORD, NAME, NAME, WORD, TIME, TIME)
    titles = ("Finding", "Group", "Member", "Cause", "From", "Until", "Rebalances", "Returns")
    return section("storms", table(f"Up to {ROWS_MAX} of each kind, the worst first", titles, rows, kinds))


def _jumps(report: Report, has_logs: bool) -> str:
    if not report.jumps:
        return section("jumps", note("No offset went back or began anew in this time."))
    return section(
        "jumps",
        table(
            f"Up to {ROWS_MAX} partitions of groups, those with the most first",
            ("Group", "Topic and partition", "Why reset", "Last one at", "Rewinds", "Resets", "Farthest back"),
            [_jump(one, has_logs) for one in report.jumps], (NAME, NAME, WORD, TIME),
        ),
    )  # fmt: skip


def _jump(one: Jumps, has_logs: bool) -> tuple[str, ...]:
    back = None if one.farthest is None or one.farthest >= 0 else -one.farthest
    return (
        owner_cell(one.owner, has_logs), f"{escaped(one.topic)}-{one.partition}",
        escaped(", ".join(one.reasons) or text.NONE), when(one.last_ms), count(one.rewinds), count(one.resets),
        count(back),
    )  # fmt: skip


def _words() -> str:
    words = "".join(f'<dt id="word-{name}">{title}</dt><dd>{what}</dd>' for name, title, what in WORDS)
    return section("words", f'<dl class="words">{words}</dl>')
