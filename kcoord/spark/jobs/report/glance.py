"""Which group lags and why, first of all: a sentence for each of the worst, and the table behind them."""

from __future__ import annotations

from typing import Final

from kcoord.spark.jobs.report import text
from kcoord.spark.jobs.report.data import ROWS_MAX, Finding, LagPeak, Report
from kcoord.spark.jobs.report.pieces import NAME, WORD, note, owner_cell, plural, section, table
from kcoord.spark.jobs.report.text import count, duration, escaped, when

LAGGING_MAX: Final = 3
# Lag that changed by less than this part of it is as it was.
STEADY_PART: Final = 0.1

SILENT: Final = "no commits"
BEHIND: Final = "falling behind"
CATCHING_UP: Final = "catching up"
STEADY: Final = "steady"
READ_ALL: Final = "no lag"


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


def glance(report: Report, has_logs: bool) -> str:
    lagging = [one for one in report.lag_peaks if one.records_end][:LAGGING_MAX]
    lines = [_lagging(one, report, has_logs) for one in lagging]
    if not lines:
        known = any(one.records_end is not None for one in report.lag_peaks)
        lines.append(
            "No group has lag at the end." if known else "Whether a group has lag at the end is not known."
        )
    storms = [one for one in report.findings if one.finding == "storm"]
    flapping = [one for one in report.findings if one.finding != "storm"]
    lines += [_storm(one, has_logs) for one in storms[:1]]
    lines += [_flapping(one, has_logs) for one in flapping[:1]]
    if report.rewinds_total or report.resets_total:
        told = (
            f"{plural(report.rewinds_total, 'rewind')} and {plural(report.resets_total, 'reset')} of offsets"
        )
        for one in report.jumps[:1]:
            told += f", the most by <strong>{owner_cell(one.owner, has_logs)}</strong> in "
            told += f"{escaped(one.topic)}-{one.partition}"
        lines.append(f'{told} (<a href="#jumps">all</a>).')
    return section("glance", f'<ul class="glance">{"".join(f"<li>{line}</li>" for line in lines)}</ul>')


def lag_table(report: Report, has_logs: bool) -> str:
    end_ms = report.end_ms or 0
    rows = []
    for one in report.lag_peaks:
        since = None if one.last_commit_ms is None else (end_ms - one.last_commit_ms) / 1000
        state = state_of(one, report.trend_ms) + (", rebalancing" if one.is_rebalancing else "")
        rows.append(
            (owner_cell(one.owner, has_logs), state, count(one.records_end), _change(one), duration(one.seconds_end),
             count(one.records_peak), duration(one.seconds_peak), duration(since), count(one.rebalances),
             count(one.partitions))
        )  # fmt: skip
    titles = (
        "Group", "State", "Lag, records", _since(report), "Lag, time", "Peak, records", "Peak, time",
        "Last commit, ago", "Rebalances", "Partitions",
    )  # fmt: skip
    caption = (
        f"Up to {ROWS_MAX} groups, those with the most lag at the end first, in records and in time by turns"
    )
    return (
        table(caption, titles, rows, (NAME, WORD)) if rows else note("No group has an offset in this time.")
    )


def _since(report: Report) -> str:
    return "Change" if report.trend_ms is None else f"Since {when(report.trend_ms)[5:16]}"


def _change(one: LagPeak) -> str:
    if one.records_end is None or one.records_before is None:
        return text.NONE
    change = one.records_end - one.records_before
    return f"{change:+,}" if change else "0"


def _lagging(one: LagPeak, report: Report, has_logs: bool) -> str:
    end_ms = report.end_ms or 0
    lag = plural(one.records_end or 0, "record")
    if one.seconds_end is not None:
        lag += f", {duration(one.seconds_end)}"
    told = [
        f"<strong>{owner_cell(one.owner, has_logs)}</strong> is behind by <strong>{escaped(lag)}</strong>"
    ]
    state = state_of(one, report.trend_ms)
    if state == SILENT:
        told.append(f"it committed nothing after {when(one.last_commit_ms)[5:]}" if one.last_commit_ms is not None
                    else "it committed nothing in all of this time")  # fmt: skip
    elif state != text.NONE:
        told.append(f"it commits, and is {state}: {_change(one)} since {when(report.trend_ms)[5:16]}"
                    if state != STEADY else "it commits, and its lag is steady")  # fmt: skip
    elif one.last_commit_ms is not None:
        told.append(f"its last commit was {duration((end_ms - one.last_commit_ms) / 1000)} before the end")
    if one.is_rebalancing:
        told.append("a rebalance of it was not over")
    if one.rebalances:
        most = f", most often {escaped(one.cause)}" if one.cause and one.rebalances > 1 else ""
        most = f", {escaped(one.cause)}" if one.cause and one.rebalances == 1 else most
        told.append(f"{plural(one.rebalances, 'rebalance')}{most}")
    return f"{told[0]} at the end: {'; '.join(told[1:])}." if told[1:] else f"{told[0]} at the end."


def _storm(one: Finding, has_logs: bool) -> str:
    cause = f", most often {escaped(one.cause)}" if one.cause else ""
    length = duration((one.last_ms - one.first_ms) / 1000)
    return (
        f"The worst storm: <strong>{owner_cell(one.owner, has_logs)}</strong>, "
        f"{plural(one.rebalances, 'rebalance')} in {length} from {when(one.first_ms)[5:]} on{cause} "
        f'(<a href="#storms">all</a>).'
    )


def _flapping(one: Finding, has_logs: bool) -> str:
    return (
        f"The worst flapping member: {escaped(one.member or text.NONE)} of <strong>{owner_cell(one.owner, has_logs)}"
        f'</strong> came back {plural(one.returns or 0, "time")} (<a href="#storms">all</a>).'
    )
