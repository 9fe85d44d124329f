"""All groups in one table, a row each with a link of its own, and filters for it."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from kcoord.spark.jobs.report import text
from kcoord.spark.jobs.report.data import GroupSummary, Report
from kcoord.spark.jobs.report.glance import READ_ALL, STATES, STOPPED, state_of
from kcoord.spark.jobs.report.pieces import NAME, TIME, WORD, Names, anchor, heads, note, section
from kcoord.spark.jobs.report.text import count, duration, escaped, when

TITLES: Final = (
    "Group", "State", "Complete from", "Lag, records", "Lag, time", "Last commit, ago", "Commits", "Rebalances",
    "Partitions moved", "Rewinds", "Resets", "Partitions",
)  # fmt: skip
KINDS: Final = (NAME, WORD, TIME)

# All there is of script. It hides rows, and changes nothing else; without it the table shows all.
SCRIPT: Final = """
(() => {
  const form = document.getElementById("filter"), shown = document.getElementById("shown");
  if (!form) return;
  const rows = [...document.querySelectorAll("tr[data-state]")];
  const apply = () => {
    const words = form.text.value.toLowerCase().split(/\\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const name = row.cells[0].textContent.toLowerCase();
      const fits = words.every((word) => name.includes(word))
        && (!form.state.value || row.dataset.state === form.state.value)
        && (!form.lag.checked || row.dataset.lag === "1")
        && (!form.rebalances.checked || row.dataset.rebalances === "1");
      row.hidden = !fits;
      count += fits;
    }
    shown.textContent = `${count} of ${rows.length} shown`;
  };
  const arrive = () => {
    const row = document.getElementById(location.hash.slice(1));
    if (row && row.hidden) { form.reset(); apply(); row.scrollIntoView(); }
  };
  form.addEventListener("input", apply);
  form.addEventListener("reset", () => setTimeout(apply));
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", arrive);
  form.hidden = false;
  apply();
  arrive();
})();
"""
SCRIPT_HASH: Final = "sha256-" + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()


def listing(report: Report, names: Names) -> str:
    if not report.listing:
        return section("groups", note("No group has an offset or a rebalance in this time."))
    rows = "".join(_row(one, report, names) for one in report.listing)
    caption = f"{count(report.listing_total)} groups"
    if report.listing_total > len(report.listing):
        caption += f", of which {count(len(report.listing))} are listed"
    caption += ": those at work first, by lag; then those that stopped, by when. A name is a link to its row"
    return section(
        "groups",
        _filters(report),
        f'<div class="wide"><table><caption>{escaped(caption, 400)}</caption><thead><tr>{heads(TITLES, _kinds())}</tr>'
        f"</thead><tbody>{rows}</tbody></table></div>",
    )


def _kinds() -> tuple[str, ...]:
    return (*KINDS, *["n"] * (len(TITLES) - len(KINDS)))


def _filters(report: Report) -> str:
    states = {_state(one, report) for one in report.listing}
    options = "".join(f"<option>{state}</option>" for state in STATES if state in states)
    return (
        '<form id="filter" class="filter" hidden><label>Name contains<br><input type="search" name="text"></label>'
        f'<label>State<br><select name="state"><option value="">any</option>{options}</select></label>'
        '<label><input type="checkbox" name="lag"> with lag</label>'
        '<label><input type="checkbox" name="rebalances"> with rebalances</label>'
        '<button type="reset">Show all</button><output id="shown" role="status"></output></form>'
    )


def _state(one: GroupSummary, report: Report) -> str:
    state = state_of(one.lag, report.trend_ms)
    return STOPPED if one.is_stopped and state in (READ_ALL, text.NONE) else state


def _row(one: GroupSummary, report: Report, names: Names) -> str:
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
    data = (
        f'data-state="{state}" data-lag="{1 if lag.records_end else 0}" data-rebalances="{1 if lag.rebalances else 0}"'
    )
    lines = "".join(f'<td class="{kind}">{cell}</td>' for cell, kind in zip(cells, _kinds(), strict=True))
    return f'<tr id="{anchor(one.owner)}" {data}>{lines}</tr>'
