"""`kcoord log timeline`: the epochs of a group, their causes, durations, and assignments before and after."""

from __future__ import annotations

import json
from typing import Any, Final, final

import click

from kcoord.cli.log.common import (
    directory_argument,
    emit_json,
    fail,
    format_time,
    friendly,
    look_at,
    note,
    output_option,
    plural,
    progress,
    say,
    table,
    unsynced_option,
    wrapped,
)
from kcoord.cli.log.past.replay import coordinator_logs
from kcoord.cli.log.past.scan import Scan, TimeRange
from kcoord.cli.log.past.transaction_timeline import print_transactions
from kcoord.cli.log.points import parse_time
from kcoord.core.groups.cause_header import decode_cause
from kcoord.core.outcome import GROUP_EVENTS_TOPIC
from kcoord.engine.group_events import event_document
from kcoord.history.timeline import ASSIGNOR, EPOCH_CHANGED, REBALANCE_FINISHED, GroupTimeline
from kcoord.log.inspect import DataDirectory, PartitionFiles
from kcoord.log.typed_records import RecordReader
from kcoord.server.failures import EXIT_CONFIG
from kcoord.wire.message import Message

AUTO: Final = "auto"
EVENTS: Final = "events"
LOG: Final = "log"


@final
class Story:
    """The history of one group, as documents like those of `__group_events`."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.source = ""
        self.events: list[dict[str, Any]] = []
        self.scan = Scan()

    def read_events(self, directory: DataDirectory, step: Any) -> None:
        """Read the events in `__group_events`."""
        for files in directory.of_topic(GROUP_EVENTS_TOPIC):
            for _, record in self.scan.records(directory, files, step):
                try:
                    document = json.loads((record.value or b"").decode("utf-8"))
                except ValueError:
                    continue
                if isinstance(document, dict) and document.get("group") == self.group:
                    self.events.append(document)
                    self.source = files.name
        if not self.events:
            self.scan.forget_history()

    def read_log(self, directory: DataDirectory, files: PartitionFiles, step: Any) -> None:
        """Read the records in the coordinator log of the group."""
        timeline = GroupTimeline()
        reader = RecordReader()
        for batch, record in self.scan.records(directory, files, step):
            typed = reader.read(files.topic, batch.header, record)
            if typed.group == self.group and isinstance(typed.key, Message):
                cause = decode_cause(record.headers)
                timeline.replay(record.offset, record.timestamp, typed.key, typed.value, cause)
        self.source = files.name
        self.events += [event_document(event, files.partition) for event in timeline.take()]

    def epochs(self) -> list[dict[str, Any]]:
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
    return f"{ms} ms" if ms < 10_000 else f"{ms / 1000:.1f} s"


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


def print_table(story: Story, rows: list[dict[str, Any]]) -> None:
    say(f"{story.group}: {plural(len(rows), 'epoch')}, from {story.source}", 4, 0)
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


@click.command()
@directory_argument
@click.option("--group", "-g", metavar="ID", help="The group.")
@click.option("--transactional-id", metavar="ID", help="A transactional id instead of a group.")
@click.option("--since", type=parse_time, default=-1, metavar="TIME", help="Epochs not older than TIME.")
@click.option("--until", type=parse_time, default=-1, metavar="TIME", help="Epochs not newer than TIME.")
@click.option("--limit", "-n", default=-1, metavar="N", help="The last N epochs only.")
@click.option(
    "--source", type=click.Choice([AUTO, EVENTS, LOG]), default=AUTO, show_default=True,
    help="The topic __group_events, the coordinator log, or the log if the topic has no events of the group.",
)  # fmt: skip
@unsynced_option
@output_option
@friendly
def timeline(
    directory: str, group: str | None, transactional_id: str | None, since: int, until: int, limit: int, source: str,
    unsynced: bool, output: str,
) -> None:  # fmt: skip
    """Print every epoch of a group in DIR: when it began and why, how long the rebalance took, and the numbers of
    members and partitions before and after. Or print every transaction of a transactional id: its producer, how long
    it was open, how it ended and why it was aborted, and its partitions.

    A rebalance ends when all members have reached their target assignment. It is "overtaken" if the next epoch began
    before that. A question mark means that the log does not have the value: compaction removed it, or a Kafka broker
    never wrote it. TIME is as for `kcoord log dump`.

    \b
    Example:
      kcoord log timeline data --group billing --since 1h
      kcoord log timeline data --transactional-id billing-1
    """
    if (group is None) == (transactional_id is None):
        raise click.UsageError("pass either --group or --transactional-id")
    found = look_at(directory, unsynced)
    between = TimeRange(since, until, limit)
    if transactional_id is not None:
        print_transactions(found, transactional_id, between, output)
    elif group is not None:
        print_group(found, group, source, between, output)


def print_group(found: DataDirectory, group: str, source: str, between: TimeRange, output: str) -> None:
    story = Story(group)
    if source != LOG:
        logs = found.of_topic(GROUP_EVENTS_TOPIC)
        with progress("Reading", sum(files.size_bytes for files in logs)) as step:
            story.read_events(found, step)
    if source == LOG or (source == AUTO and not story.events):
        logs = coordinator_logs(found, group, -1)
        with progress("Reading", sum(files.size_bytes for files in logs)) as step:
            for files in logs:
                story.read_log(found, files, step)
    rows = between.of(story.epochs())
    if not story.events and story.scan.is_whole:
        fail(f"{found.root} has no rebalance of group {group}", EXIT_CONFIG)
    if output == "json":
        emit_json(
            {
                "group": group,
                "source": story.source,
                "history_complete_from": format_time(story.scan.history.time_ms) or None,
                "history_complete_from_offset": story.scan.history.offset,
                "epochs": rows,
            }
        )
    else:
        print_table(story, rows)
        if any(row["cause"] is None for row in rows):
            note("epochs written by a Kafka broker or an older version of kcoord have no cause")
    story.scan.warn("epochs")
    story.scan.fail_if_damaged()
