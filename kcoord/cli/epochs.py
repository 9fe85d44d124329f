"""The epochs of a group as `kcoord log timeline` and `kcoord groups timeline` print them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, final

import click

from kcoord.cli.output import Column, emit, emit_json, format_duration, format_time, plural, say, table, wrapped
from kcoord.history.timeline import ASSIGNOR, EPOCH_CHANGED, REBALANCE_FINISHED

if TYPE_CHECKING:
    from kcoord.log.history import HistoryStart

NO_CAUSE: Final = "epochs written by a Kafka broker or an older version of kcoord have no cause"

FIELDS: Final = (
    "group", "epoch", "protocol", "time", "time_ms", "cause", "member", "detail", "assignor", "started_ms",
    "finished_ms", "duration_ms", "is_overtaken", "members_before", "members_after", "partitions_before",
    "partitions_after", "log", "offset",
)  # fmt: skip


@final
class Epochs:
    """The history of one group, from documents like those of `__group_events`."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.events: list[dict[str, Any]] = []

    def add_stored(self, value: bytes | None) -> bool:
        """Add a record of `__group_events`, if it is about the group."""
        try:
            document = json.loads((value or b"").decode("utf-8"))
        except ValueError:
            return False
        if not isinstance(document, dict) or document.get("group") != self.group:
            return False
        self.events.append(document)
        return True

    def rows(self) -> list[dict[str, Any]]:
        """One document for each epoch, in order."""
        rows: list[dict[str, Any]] = []
        for event in self.events:
            kind = event.get("event")
            epoch = event.get("epoch")
            last = rows[-1] if rows else None
            if kind == EPOCH_CHANGED or last is None or last["epoch"] != epoch:
                last = new_row(event)
                if kind != EPOCH_CHANGED:
                    # Retention may have removed earlier events of the topic.
                    last.update(cause=None, member=None, detail=None, members_before=None, partitions_before=None)
                elif rows and rows[-1]["finished_ms"] is None:
                    rows[-1]["is_overtaken"] = True
                rows.append(last)
            if kind == REBALANCE_FINISHED:
                last["started_ms"] = event.get("started_ms")
                last["finished_ms"] = event.get("time_ms")
                last["duration_ms"] = event.get("duration_ms")
                last["members_after"] = event.get("members")
                last["partitions_after"] = event.get("partitions")
            elif kind == ASSIGNOR:
                last["assignor"] = event.get("detail")
        return rows


def new_row(event: dict[str, Any]) -> dict[str, Any]:
    return {
        "epoch": event.get("epoch"),
        "protocol": event.get("protocol"),
        "time_ms": event.get("time_ms"),
        "time": format_time(int(event.get("time_ms") or -1)) or None,
        "cause": event.get("cause"),
        "member": event.get("member"),
        "detail": event.get("detail"),
        "assignor": None,
        "started_ms": None,
        "finished_ms": None,
        "duration_ms": None,
        "is_overtaken": False,
        "members_before": event.get("members"),
        "members_after": None,
        "partitions_before": event.get("partitions"),
        "partitions_after": None,
        "log": event.get("log"),
        "offset": event.get("offset"),
    }


def took(row: dict[str, Any]) -> str:
    ms = row["duration_ms"]
    if ms is None and row["finished_ms"] is not None:
        return "?"
    if ms is None:
        return "overtaken" if row["is_overtaken"] else "under way"
    return format_duration(ms)


def change(before: int | None, after: int | None) -> str:
    return f"{'?' if before is None else before} -> {'?' if after is None else after}"


def why(row: dict[str, Any]) -> str:
    text = str(row["cause"] or "cause unknown")
    if row["member"]:
        text += f" {row['member']}"
    if row["detail"]:
        text += f": {row['detail']}"
    if row["assignor"]:
        text += f"; assignor {row['assignor']}"
    return text


def show_epochs(group: str, source: str, history: HistoryStart, rows: list[dict[str, Any]], output: str) -> None:
    """Print the rows as a table, CSV or JSON."""
    if output == "json":
        emit_json(
            {
                "group": group,
                "source": source,
                "history_complete_from": format_time(history.time_ms) or None,
                "history_complete_from_offset": history.offset,
                "epochs": rows,
            }
        )
    elif output == "csv":
        emit([Column(name, "") for name in FIELDS], [{"group": group, **row} for row in rows], output)
    else:
        print_epochs(group, source, rows)


def print_epochs(group: str, source: str, rows: list[dict[str, Any]]) -> None:
    say(f"{group}: {plural(len(rows), 'epoch')}, from {source}", 4, 0)
    cells: list[list[str]] = []
    details: list[list[str]] = []
    protocol = None
    for row in rows:
        members = change(row["members_before"], row["members_after"])
        partitions = change(row["partitions_before"], row["partitions_after"])
        cells.append([str(row["epoch"]), row["time"] or "-", took(row), members, partitions])
        text = why(row)
        if row["protocol"] != protocol:
            protocol = row["protocol"]
            text = f"({protocol}) {text}"
        details.append(wrapped(text, 6, 4))
    click.echo("\n".join(table(["EPOCH", "TIME", "TOOK", "MEMBERS", "PARTITIONS"], cells, "llrrr", details)))
