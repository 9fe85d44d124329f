"""`kcoord log timeline`: the epochs of a group, why each began, how long it took, and who had what before and after."""

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
from kcoord.cli.log.points import parse_time
from kcoord.cli.log.replay import coordinator_logs
from kcoord.core.groups.cause_header import decode_cause
from kcoord.core.outcome import GROUP_EVENTS_TOPIC
from kcoord.engine.group_events import event_document
from kcoord.history.timeline import ASSIGNOR, EPOCH_CHANGED, REBALANCE_FINISHED, GroupTimeline
from kcoord.log.errors import LogDamaged
from kcoord.log.history import HistoryStart
from kcoord.log.inspect import DataDirectory, PartitionFiles, lost_end
from kcoord.log.reader import DamagedBytes
from kcoord.log.typed_records import DECOMPRESSED_BYTES_MAX, RecordReader
from kcoord.server.failures import EXIT_CONFIG, EXIT_DAMAGED
from kcoord.wire.compression import DecompressionError
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError

AUTO: Final = "auto"
EVENTS: Final = "events"
LOG: Final = "log"


@final
class Story:
    """What happened to one group, as documents like those of `__group_events`."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.source = ""
        self.events: list[dict[str, Any]] = []
        self.damaged = 0
        # Logs that do not reach their durable marks.
        self.lost: list[LogDamaged] = []
        # The log with the history that begins last, and where that is.
        self.history = HistoryStart(0)
        self.incomplete = ""

    def read_events(self, directory: DataDirectory, step: Any) -> None:
        """From the topic of events."""
        for files in directory.of_topic(GROUP_EVENTS_TOPIC):
            for _, record in self._records(directory, files, step):
                try:
                    document = json.loads((record.value or b"").decode("utf-8"))
                except ValueError:
                    continue
                if isinstance(document, dict) and document.get("group") == self.group:
                    self.events.append(document)
                    self.source = files.name
        if not self.events:
            self.incomplete = ""
            self.history = HistoryStart(0)

    def read_log(self, directory: DataDirectory, files: PartitionFiles, step: Any) -> None:
        """From the coordinator log that the group is in."""
        timeline = GroupTimeline()
        reader = RecordReader()
        for batch, record in self._records(directory, files, step):
            typed = reader.read(files.topic, batch.header, record)
            if typed.group == self.group and isinstance(typed.key, Message):
                cause = decode_cause(record.headers)
                timeline.replay(record.offset, record.timestamp, typed.key, typed.value, cause)
        self.source = files.name
        self.events += [event_document(event, files.partition) for event in timeline.take()]

    def _records(self, directory: DataDirectory, files: PartitionFiles, step: Any) -> Any:
        end = start = directory.start_of(files)
        history = HistoryStart(start)
        for item in directory.batches(files, start):
            if isinstance(item, DamagedBytes):
                step(item.size_bytes)
                self.damaged += 1
                continue
            step(item.header.size)
            end = item.header.last_offset + 1
            history.batch(item.header)
            if item.header.is_control:
                continue
            try:
                records = item.records(DECOMPRESSED_BYTES_MAX)
            except (DecodeError, DecompressionError):
                self.damaged += 1
                continue
            for record in records:
                if record.offset >= start:
                    yield item, record
        lost = lost_end(files, end)
        if lost is not None:
            self.lost.append(lost)
        # An empty last segment tells where the log ends.
        if files.segments:
            history.segment(min(files.segments[-1].base_offset, directory.readable_end(files)))
        if not history.is_whole and history.time_ms >= self.history.time_ms:
            self.history = history
            self.incomplete = files.name

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
                    # The topic keeps its events for some time only.
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


def warn(story: Story) -> None:
    """Say so if there may have been more epochs than those that are left."""
    if not story.incomplete:
        return
    since = format_time(story.history.time_ms)
    what = "retention" if story.incomplete.startswith(GROUP_EVENTS_TOPIC) else "compaction"
    note(
        f"the history in {story.incomplete} is complete only from offset {story.history.offset}"
        f"{f' ({since})' if since else ''} on: epochs before that may be missing, since {what} removed records. "
        "docs/pipeline.md says how to keep history"
    )


@click.command()
@directory_argument
@click.option("--group", "-g", required=True, metavar="ID", help="Of this group.")
@click.option("--since", type=parse_time, default=-1, metavar="TIME", help="Epochs not older than TIME.")
@click.option("--until", type=parse_time, default=-1, metavar="TIME", help="Epochs not newer than TIME.")
@click.option("--limit", "-n", default=-1, metavar="N", help="The last N epochs only.")
@click.option(
    "--source", type=click.Choice([AUTO, EVENTS, LOG]), default=AUTO, show_default=True,
    help="The topic __group_events, the coordinator log, or the log where the topic knows nothing of the group.",
)  # fmt: skip
@unsynced_option
@output_option
@friendly
def timeline(
    directory: str, group: str, since: int, until: int, limit: int, source: str, unsynced: bool, output: str
) -> None:
    """Print every epoch of a group in DIR: when it began and why, how long the rebalance took, and how many members
    and partitions there were before and after.

    A rebalance is over when all members are where the assignment wants them. One that was not when the next epoch
    began is "overtaken". A question mark is what the log does not tell: compaction removed it, or a Kafka broker never
    wrote it. TIME is as for `kcoord log dump`.

    \b
    Example:
      kcoord log timeline data --group billing --since 1h
    """
    found = look_at(directory, unsynced)
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
    rows = [
        row
        for row in story.epochs()
        if (since < 0 or (row["time_ms"] or 0) >= since) and (until < 0 or (row["time_ms"] or 0) <= until)
    ]
    if limit >= 0:
        rows = rows[len(rows) - limit :] if limit < len(rows) else rows
    if not story.events and not story.damaged and not story.lost:
        fail(f"nothing in {directory} tells of a rebalance of group {group}", EXIT_CONFIG)
    if output == "json":
        emit_json(
            {
                "group": group,
                "source": story.source,
                "history_complete_from": format_time(story.history.time_ms) or None,
                "history_complete_from_offset": story.history.offset,
                "epochs": rows,
            }
        )
    else:
        print_table(story, rows)
        if any(row["cause"] is None for row in rows):
            note("epochs that a Kafka broker or an older version wrote have no cause")
    warn(story)
    if story.lost:
        fail(str(story.lost[0]), EXIT_DAMAGED)
    if story.damaged:
        fail(f"{plural(story.damaged, 'piece')} of the log cannot be read", EXIT_DAMAGED)
