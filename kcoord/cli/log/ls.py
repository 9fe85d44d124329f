"""`kcoord log ls`: the partitions of a data directory."""

from __future__ import annotations

import os
from typing import Any, Final, final

import click

from kcoord.cli.log.common import (
    directory_argument,
    emit_json,
    emit_rows,
    fits,
    format_bytes,
    format_time,
    friendly,
    note,
    output_option,
    plural,
    progress,
    table,
    wrapped,
)
from kcoord.log.inspect import DataDirectory, PartitionFiles, inspect_directory
from kcoord.log.lost_logs import lost_logs
from kcoord.log.metadata_checkpoint import METADATA_TOPIC, CheckpointName, parse_name
from kcoord.log.reader import DamagedBytes, read_batches

FIELDS: Final = (
    "log", "topic", "partition", "start_offset", "end_offset", "segments", "size_bytes", "first_timestamp_ms",
    "max_timestamp_ms", "leader_epoch", "state", "is_interrupted", "damage",
)  # fmt: skip


@final
class Row:
    """The facts about one partition. Times and the epoch are -1 if there are no batches."""

    def __init__(self, files: PartitionFiles, start: int) -> None:
        self.files = files
        self.start = start
        self.end = start
        self.first_timestamp = -1
        self.max_timestamp = -1
        self.leader_epoch = -1
        self.state = "clean"
        self.damage: DamagedBytes | None = None
        self.is_interrupted = False
        # (base offset, end offset, bytes, largest timestamp) per segment.
        self.segments: list[tuple[int, int, int, int]] = []
        # With their sizes.
        self.snapshots: list[tuple[CheckpointName, int]] = []

    def plain(self) -> dict[str, Any]:
        damage = self.damage
        return {
            "log": self.files.name,
            "topic": self.files.topic,
            "partition": self.files.partition,
            "start_offset": self.start,
            "end_offset": self.end,
            "size_bytes": self.files.size_bytes,
            "first_timestamp_ms": self.first_timestamp,
            "max_timestamp_ms": self.max_timestamp,
            "leader_epoch": self.leader_epoch,
            "state": self.state,
            "is_interrupted": self.is_interrupted,
            "damage": None
            if damage is None
            else {"file": damage.file, "position": damage.position, "reason": damage.reason},
            "segments": [
                {"base_offset": base, "end_offset": end, "size_bytes": size, "max_timestamp_ms": newest}
                for base, end, size, newest in self.segments
            ],
            # The metadata log's snapshots.
            "snapshots": [
                {"file": name.file, "end_offset": name.end_offset, "size_bytes": size} for name, size in self.snapshots
            ],
        }


def survey(directory: DataDirectory, files: PartitionFiles) -> Row:
    """Survey a partition: closed segments by names and indexes, the last one batch by batch. Raises OSError."""
    row = Row(files, directory.start_of(files))
    row.state = directory.state
    row.is_interrupted = files.recovered.is_interrupted and not directory.in_use
    segments = files.segments
    for i, segment in enumerate(segments):
        header = segment.first_header()
        if header is not None and row.first_timestamp < 0:
            row.first_timestamp = header.base_timestamp
        if i + 1 < len(segments):
            newest = segment.indexed_timestamp()
            row.segments.append((segment.base_offset, segments[i + 1].base_offset, segment.size_bytes, newest))
            row.max_timestamp = max(row.max_timestamp, newest)
            if header is not None:
                row.leader_epoch = max(row.leader_epoch, header.leader_epoch)
    if segments:
        _survey_last(directory, row)
    if files.topic == METADATA_TOPIC:
        for name in map(parse_name, sorted(os.listdir(files.path))):
            if name is not None:
                row.snapshots.append((name, os.path.getsize(os.path.join(files.path, name.file))))
    return row


def _survey_last(directory: DataDirectory, row: Row) -> None:
    files = row.files
    segment = files.segments[-1]
    end = segment.base_offset
    upto = directory.readable_end(files)
    newest = -1
    for item in read_batches(segment.path):
        if isinstance(item, DamagedBytes):
            if not directory.is_unwritten(files, item) and (not directory.in_use or end < upto):
                row.damage = item
                mark = directory.mark_of(files)
                row.state = "damaged" if end < mark or directory.was_clean else "torn"
            break
        end = item.header.last_offset + 1
        newest = max(newest, item.header.max_timestamp)
        row.leader_epoch = max(row.leader_epoch, item.header.leader_epoch)
    row.segments.append((segment.base_offset, end, segment.size_bytes, newest))
    row.max_timestamp = max(row.max_timestamp, newest)
    row.end = max(row.start, end)
    if row.damage is None and not directory.in_use and end < directory.mark_of(files):
        row.state = "damaged"


def print_table(directory: DataDirectory, rows: list[Row], with_segments: bool) -> None:
    owner = "kcoord" if directory.is_kcoord else "not kcoord's"
    node = directory.properties.get("node.id", "?")
    cluster = directory.properties.get("cluster.id", "?")
    if directory.properties:
        total = format_bytes(sum(row.files.size_bytes for row in rows))
        click.echo(f"{owner}, node {node}, cluster {cluster}, {directory.state}, {total}")
    head = ["LOG", "START", "END", "SEGMENTS", "SIZE", "EPOCH", "STATE"]
    cells: list[list[str]] = []
    times: list[list[str]] = []
    for row in rows:
        epoch = str(row.leader_epoch) if row.leader_epoch >= 0 else "-"
        size = format_bytes(row.files.size_bytes)
        count = str(len(row.segments))
        cells.append([row.files.name, str(row.start), str(row.end), count, size, epoch, row.state])
        is_known = row.max_timestamp >= 0
        times.append([format_time(row.first_timestamp), format_time(row.max_timestamp)] if is_known else ["-", "-"])
    wide = [cell + time for cell, time in zip(cells, times, strict=True)]
    wide_head = [*head, "OLDEST", "NEWEST"]
    is_wide = fits(wide_head, wide)
    details = [_details(row, with_segments, not is_wide) for row in rows]
    lines = table(wide_head, wide, "lrrrrrlll", details) if is_wide else table(head, cells, "lrrrrrl", details)
    click.echo("\n".join(lines))
    click.echo(plural(len(rows), "partition"))


def _details(row: Row, with_segments: bool, with_times: bool) -> list[str]:
    lines: list[str] = []
    if with_times and row.max_timestamp >= 0:
        lines.append(f"    {format_time(row.first_timestamp)} to {format_time(row.max_timestamp)}")
    if with_segments:
        for base, end, size_bytes, newest in row.segments:
            lines.append(f"    {base}..{end}  {format_bytes(size_bytes)}  newest {format_time(newest) or '-'}")
        for name, size_bytes in row.snapshots:
            lines.append(f"    ..{name.end_offset}  {format_bytes(size_bytes)}  {name.file}")
    if row.is_interrupted:
        lines.append("    a crash interrupted an exchange of segments; shown as after recovery, see `log verify`")
    if row.damage is not None:
        damage = row.damage
        text = f"{damage.file} at byte {damage.position}, offset {damage.next_offset}: {damage.reason}"
        lines += wrapped(text, 6, 4)
    return lines


@click.command()
@directory_argument
@click.option("--segments", is_flag=True, help="List every segment in the table too; JSON always has them.")
@output_option
@friendly
def ls(directory: str, segments: bool, output: str) -> None:
    """List the partitions in DIR: offsets, sizes, times, leader epoch and state.

    DIR is a data directory of kcoord or of a Kafka broker, or the directory of one partition.

    \b
    STATE is  clean    closed by a clean stop
              unclean  the process ended without closing it; nothing is wrong
              torn     a crash cut the last write short; opening removes it
              damaged  durable bytes cannot be read: see `log verify`
              in use   a server is running; offsets are those in its files

    \b
    Examples:
      kcoord log ls data
      kcoord log ls data --segments
      kcoord log ls data -o json | jq '.partitions[] | select(.state != "clean")'
    """
    found = inspect_directory(directory)
    rows: list[Row] = []
    with progress("Reading", len(found.partitions)) as step:
        for files in found.partitions:
            rows.append(survey(found, files))
            step(1)
    for lost in lost_logs(found):
        note(f"{lost.name}: {lost.reason}")
    if output == "json":
        emit_json(
            {
                "directory": found.root,
                "is_kcoord": found.is_kcoord,
                "properties": found.properties,
                "state": found.state,
                "partitions": [row.plain() for row in rows],
            }
        )
        return
    if output == "csv":
        emit_rows(FIELDS, [{**row.plain(), "segments": len(row.segments)} for row in rows])
        return
    print_table(found, rows, segments)
