"""The page: one HTML document that needs nothing else, nothing from a network and no script but its own small one."""

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
from kcoord.spark.jobs.report.listing import SCRIPT, SCRIPT_HASH, listing
from kcoord.spark.jobs.report.missing import missing
from kcoord.spark.jobs.report.pieces import (
    NAME,
    SECTIONS,
    TIME,
    WORD,
    Names,
    figure,
    milliseconds,
    note,
    section,
    table,
)
from kcoord.spark.jobs.report.style import STYLE
from kcoord.spark.jobs.report.svg import (
    LANE_LEFT,
    Axis,
    LaneOf,
    Line,
    Span,
    axis_of,
    bar_chart,
    gone_swatch,
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

# Should a name ever get by, it can run and load nothing: the page's own script goes by its hash.
POLICY: Final = (
    f"default-src 'none'; style-src 'unsafe-inline'; script-src '{SCRIPT_HASH}'; base-uri 'none'; form-action 'none'"
)


def page(report: Report) -> str:
    """HTML5. The same report makes the same page."""
    names = Names(report.logs > 1, (one.owner for one in report.listing))
    body = [_head(report)]
    if report.begin_ms is None or report.end_ms is None:
        body.append(
            note("There are no commits and no rebalances in these logs, or none in the time asked for.")
        )
    else:
        axis = axis_of(report.begin_ms, report.end_ms)
        body += [
            missing(report),
            glance(report, names),
            _lag(report, axis, names),
            _rebalances(report, axis_of(report.begin_ms, report.end_ms, LANE_LEFT), names),
            _storms(report.findings, names),
            _movers(report, names),
            _jumps(report, names),
            _commits(report, axis),
            listing(report, names),
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
        f"<script>{SCRIPT}</script>" if report.listing else "",
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
    of_commits = "≥ " if report.complete_ms is not None else ""
    of_rebalances = "≥ " if report.rebalances_complete_ms is not None else ""
    numbers = (
        ("Logs", "", report.logs), ("Groups", of_commits, report.groups),
        ("Partitions with commits", of_commits, report.partitions),
        ("Commits", of_commits, report.commits_total), ("Offsets removed", of_commits, report.tombstones),
        ("Rebalances", of_rebalances, report.rebalances_total), ("Rewinds", of_commits, report.rewinds_total),
        ("Resets", of_commits, report.resets_total),
    )  # fmt: skip
    tiles = "".join(
        f"<div><dt>{name}</dt><dd>{least}{count(value)}</dd></div>" for name, least, value in numbers
    )
    links = ""
    if report.begin_ms is not None:
        shown = [one for one in SECTIONS if one[0] != "missing" or report.gone]
        links = "".join(f'<a href="#{name}">{title}</a>' for name, title in shown)
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
        what = "No commits in this time" + (" of which history is complete." if report.commits_left else ".")
        return section("commits", note(what))
    unit = f"Commits in {every}"
    chart = bar_chart("Commits over time", unit, axis, report.commits, report.bucket_ms, report.complete_ms)
    caption = f"Each bar is {every}. Offsets that were removed are not counted."
    if report.complete_ms is not None:
        caption += " Grey: bars are of logs that are complete by then; what compaction left of others is not drawn."
    return section("commits", figure(chart, caption, _legend("", report.complete_ms)))


def _legend(names: str, complete_ms: int | None) -> str:
    if complete_ms is None:
        return names
    return f'{names}<li>{gone_swatch()}grey: <a href="#missing">history is not complete</a></li>'


def _lag(report: Report, axis: Axis, names: Names) -> str:
    if not report.lag_peaks and not report.stopped:
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
    most = (
        f"Up to {LINES_MAX} groups, those at work with the highest peaks first, measured every {every} and at the end. "
        "A line begins where the history of its group is complete."
    )
    plots = [
        ("Lag over time, in records", "Lag (records)", report.lag_records),
        ("Age of the first message not read, over time", f"Lag ({unit})", scaled),
    ]
    figures = []
    for title, name, series in plots:
        lines = [Line(one.points, names.text(one.owner), styles[one.owner]) for one in series]
        if any(value is not None for line in lines for _, value in line.points):
            legend = "".join(f"<li>{swatch(line.style, True)}{escaped(line.hint)}</li>" for line in lines)
            chart = line_chart(title, name, axis, lines, report.complete_ms)
            figures.append(figure(chart, most, _legend(legend, report.complete_ms)))
        else:
            figures.append(note(f"{title}: not known, since no messages of these topics are in the logs."))
    return section("lag", lag_table(report, names), *figures)


def _styles(report: Report) -> dict[Owner, int]:
    """A group has the same colour in both plots, and another than all in the same plot."""
    styles = {one.owner: number for number, one in enumerate(report.lag_records, 1)}
    taken = {one.owner: styles[one.owner] for one in report.lag_seconds if one.owner in styles}
    free = [number for number in range(1, LINES_MAX + 1) if number not in taken.values()]
    for one in report.lag_seconds:
        if one.owner not in styles:
            styles[one.owner] = free.pop(0)
    return styles


def _rebalances(report: Report, axis: Axis, names: Names) -> str:
    if not report.lanes:
        return section("rebalances", note("No rebalances in this time."))
    lanes = [_lane(lane, report.end_ms or 0, names) for lane in report.lanes]
    used = {span.style for lane in lanes for span in lane.spans}
    legend = "".join(
        f"<li>{swatch(number, False)}{name}</li>"
        for number, (name, _) in enumerate(FAMILIES, 1)
        if number in used
    )
    caption = (
        f"Up to {LANES_MAX} groups, those with the most rebalances. A bar goes from a rebalance's start to its end; "
        f"those that begin within one {SLOTS_MAX}th of the time are one bar. Colours are causes."
    )
    if any(not bar.is_timed for lane in report.lanes for bar in lane.bars):
        caption += " Of rebalances without a known beginning there is only the end."
    if any(span.is_open for lane in lanes for span in lane.spans):
        legend += f"<li>{swatch(len(FAMILIES), False, True)}faint: not over</li>"
    chart = lane_chart("Rebalances over time", "Group", axis, lanes)
    complete_ms = max((lane.complete_ms for lane in lanes if lane.complete_ms is not None), default=None)
    return section("rebalances", figure(chart, caption, _legend(legend, complete_ms)))


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


def _movers(report: Report, names: Names) -> str:
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
            names.cell(one.owner),
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
    )  # fmt: skip


def _moves(rows: Iterable[GroupMoves], names: Names) -> list[tuple[str, ...]]:
    return [
        (names.cell(one.owner), escaped(one.cause or text.NONE), count(one.rebalances),
         count(one.partitions_moved), milliseconds(one.duration_ms), milliseconds(one.longest_ms))
        for one in rows
    ]  # fmt: skip


def _storms(findings: Sequence[Finding], names: Names) -> str:
    if not findings:
        return section(
            "storms", note("No storm of rebalances, and no member that went and came back repeatedly.")
        )
    rows = [
        (escaped(one.finding.replace("_", " ")), names.cell(one.owner), escaped(one.member or text.NONE),
         escaped(one.cause or text.NONE), when(one.first_ms), when(one.last_ms), count(one.rebalances),
         count(one.returns))
        for one in findings
    ]  # fmt: skip
    kinds = (WORD, NAME, NAME, WORD, TIME, TIME)
    titles = ("Finding", "Group", "Member", "Cause", "From", "Until", "Rebalances", "Returns")
    return section("storms", table(f"Up to {ROWS_MAX} of each kind, the worst first", titles, rows, kinds))


def _jumps(report: Report, names: Names) -> str:
    if not report.jumps:
        return section("jumps", note("No offset went back or began anew in this time."))
    return section(
        "jumps",
        table(
            f"Up to {ROWS_MAX} partitions of groups, those with the most first",
            ("Group", "Topic and partition", "Why reset", "Last one at", "Rewinds", "Resets", "Farthest back"),
            [_jump(one, names) for one in report.jumps], (NAME, NAME, WORD, TIME),
        ),
    )  # fmt: skip


def _jump(one: Jumps, names: Names) -> tuple[str, ...]:
    back = None if one.farthest is None or one.farthest >= 0 else -one.farthest
    return (
        names.cell(one.owner), f"{escaped(one.topic)}-{one.partition}",
        escaped(", ".join(one.reasons) or text.NONE), when(one.last_ms), count(one.rewinds), count(one.resets),
        count(back),
    )  # fmt: skip


def _words() -> str:
    words = "".join(f'<dt id="word-{name}">{title}</dt><dd>{what}</dd>' for name, title, what in WORDS)
    return section("words", f'<dl class="words">{words}</dl>')
