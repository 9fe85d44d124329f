"""What the logs do not hold any more: why, since when, and how to keep it."""

from __future__ import annotations

from typing import Final

from kcoord.spark.jobs.report.data import HISTORIES_MAX, Report
from kcoord.spark.jobs.report.pieces import NAME, TIME, plural, section, table
from kcoord.spark.jobs.report.text import count, duration, escaped, when

# A year, for the example.
LAG_MS_EXAMPLE: Final = 31_536_000_000


def missing(report: Report) -> str:
    """Nothing where all of the report's time is complete."""
    if not report.gone:
        return ""
    times = [one for one in (report.complete_ms, report.rebalances_complete_ms) if one is not None]
    told = [
        "<p><strong>Compaction removed history, so this page is not complete.</strong> A compacted log, as every "
        "<code>__consumer_offsets</code> is, keeps the newest record of each key. "
        f"{_from(report, times)}</p>"
    ]
    if report.commits_left:
        are = "is" if report.commits_left == 1 else "are"
        told.append(
            f"<p>Of the time before, {plural(report.commits_left, 'commit')} {are} left: the last one of each group "
            "and partition. The plots leave these out.</p>"
        )
    return section("missing", f'<div class="gap">{"".join(told)}{_keep()}</div>', _logs(report))


def _from(report: Report, times: list[int]) -> str:
    if not times:
        return "From when on history is complete is not known."
    latest, end_ms = max(times), report.end_ms or 0
    length = duration(max(end_ms - latest, 0) / 1000)
    parts = [f"History is complete from <strong>{when(latest)}</strong> on ({length} before the end)."]
    parts.append("What lies before is grey in the plots. All numbers are of what is left; ≥ marks totals.")
    if report.rebalances_complete_ms is None and report.complete_ms is not None:
        parts.append("Rebalances are complete: <code>__group_events</code> has them.")
    return " ".join(parts)


def _keep() -> str:
    return (
        "<p>To keep history from now on:</p><ul>"
        "<li>On a Kafka broker, have the cleaner wait: <code>kafka-configs.sh --alter --entity-type topics "
        f"--entity-name __consumer_offsets --add-config min.compaction.lag.ms={LAG_MS_EXAMPLE}</code> (a year). Its "
        "log grows by all commits of that time, and a broker reads it when it becomes a coordinator.</li>"
        "<li>On kcoord, <code>log.history</code> and <code>log.history.bytes</code>; the topic "
        "<code>__group_events</code> keeps rebalances and their causes for its own retention.</li>"
        "<li>Or export regularly, before the cleaner comes: <code>kcoord pipeline offsets-history</code> and "
        "<code>rebalances</code> with <code>--since</code> and <code>--output</code>.</li></ul>"
    )


def _logs(report: Report) -> str:
    has_logs = len({one.log for one in report.gone}) > 1
    rows = [
        (escaped(f"{one.log}: {one.name}" if has_logs else one.name), when(one.from_ms), count(one.offset))
        for one in report.gone[:HISTORIES_MAX]
    ]
    caption = f"Logs that lack history: {len(report.gone)}. Up to {HISTORIES_MAX}, those that begin last first"
    return table(caption, ("Log", "Complete from", "From offset"), rows, (NAME, TIME))
