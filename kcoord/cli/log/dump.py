"""`kcoord log dump`: the records of a log, typed."""

from __future__ import annotations

import os
import pkgutil
import sys
from typing import Any, Final, final

import click

from kcoord.cli.log.common import (
    directory_argument,
    fail,
    format_time,
    friendly,
    json_line,
    look_at,
    note,
    output_option,
    plural,
    progress,
    say,
    unsynced_option,
    wrapped,
)
from kcoord.cli.log.past.state_start import LookedAtStorage
from kcoord.cli.log.points import parse_offsets, parse_time
from kcoord.cli.log.records import summary, typed_plain
from kcoord.cli.options import limit_option, partition_option
from kcoord.cli.output import csv_line
from kcoord.log.errors import LogDamaged
from kcoord.log.inspect import DataDirectory, PartitionFiles, lost_end
from kcoord.log.lost_logs import lost_logs
from kcoord.log.metadata_checkpoint import SUFFIX, find_base
from kcoord.log.partition_log import INT64_MAX
from kcoord.log.reader import DamagedBytes, PartitionDirectory, StoredBatch, read_batches
from kcoord.log.record_plain import uuid_text
from kcoord.log.typed_records import (
    CONTROL_TYPES,
    COORDINATOR_TOPICS,
    DECOMPRESSED_BYTES_MAX,
    OFFSETS_TOPIC,
    RecordReader,
    TypedRecord,
)
from kcoord.protocol import records as record_types
from kcoord.server.failures import EXIT_CONFIG, EXIT_DAMAGED
from kcoord.server.settings.load import nearest
from kcoord.wire.compression import DecompressionError
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import BatchHeader

# Types that have no schema.
FURTHER_TYPES: Final = ("record", "control")
# The columns of CSV, for records and for damaged bytes.
FIELDS: Final = (
    "log", "offset", "timestamp", "timestamp_ms", "producer_id", "producer_epoch", "type", "tombstone", "key", "value",
    "cause", "headers", "error", "file", "position", "size_bytes", "next_offset", "reason",
)  # fmt: skip
# Names that are remembered for a suggestion.
SEEN_MAX: Final = 10_000


@final
class Filter:
    """Selects records. Empty and -1 mean any."""

    def __init__(
        self,
        groups: tuple[str, ...],
        topics: tuple[str, ...],
        members: tuple[str, ...],
        kinds: tuple[str, ...],
        partition: int,
        since_ms: int,
        until_ms: int,
    ) -> None:
        self.groups = groups
        self.topics = topics
        self.members = members
        self.kinds = kinds
        self.partition = partition
        self.since_ms = since_ms
        self.until_ms = until_ms
        # Groups and transactional ids that were met while looking for some.
        self.seen: set[str] = set()

    def wants(self, typed: TypedRecord) -> bool:
        timestamp = typed.record.timestamp
        if self.groups and typed.group and len(self.seen) < SEEN_MAX:
            self.seen.add(typed.group)
        return (
            (not self.groups or typed.group in self.groups)
            and (not self.topics or typed.topic in self.topics)
            and (not self.members or any(member in self.members for member in typed.members))
            and (not self.kinds or typed.kind in self.kinds)
            and (self.partition < 0 or typed.partition == self.partition)
            and (self.since_ms < 0 or timestamp >= self.since_ms)
            and (self.until_ms < 0 or timestamp <= self.until_ms)
        )

    def fail_if_unknown(self, root: str) -> None:
        """Nothing was found: exit with an error if that is because a group is unknown."""
        for group in self.groups:
            if group not in self.seen:
                advice = nearest(group, sorted(self.seen))
                fail(f"{root} has no record of a group or transactional id {group}{advice}", EXIT_CONFIG)


def check_types(kinds: tuple[str, ...]) -> None:
    """Raises BadParameter for a name that no record type has."""
    known = {*CONTROL_TYPES.values(), *FURTHER_TYPES}
    known.update(module.name for module in pkgutil.iter_modules(record_types.__path__))
    for kind in kinds:
        if kind not in known and not kind.startswith("unknown_"):
            raise click.BadParameter(f"no record has the type {kind!r}{nearest(kind, sorted(known))}")


@final
class Dumper:
    """Prints the records that match a filter, at most `limit` (-1: all)."""

    def __init__(self, wanted: Filter, output: str, limit: int) -> None:
        self.wanted = wanted
        self.output = output
        self.limit = limit
        self.count = 0
        self.damaged = 0
        # Logs that end before their durable marks.
        self.lost: list[LogDamaged] = []
        self.heading = ""
        self.reader = RecordReader()
        if output == "csv":
            click.echo(csv_line(list(FIELDS)), nl=False)
        # Topic names by their ids as text.
        self.names: dict[str, str] = {}

    def is_full(self) -> bool:
        return 0 <= self.limit <= self.count

    def learn_names(self, directory: DataDirectory) -> None:
        """Read the names of topics: records of consumer groups have only their ids."""
        for files in directory.of_topic(COORDINATOR_TOPICS[0]):
            storage = LookedAtStorage(os.path.dirname(files.path))
            self.reader.know(find_base(storage, files.name, directory.start_of(files)).values)
            for batch in directory.batches(files, 0, INT64_MAX):
                if isinstance(batch, DamagedBytes) or batch.header.is_control:
                    continue
                try:
                    self.reader.know([record.value or b"" for record in batch.records(DECOMPRESSED_BYTES_MAX)])
                except (DecodeError, DecompressionError):
                    continue
        self.names = {uuid_text(topic_id): name for topic_id, name in self.reader.names.items()}

    def dump(self, directory: DataDirectory, files: PartitionFiles, first: int, last: int, step: Any) -> None:
        start = max(directory.start_of(files), first)
        end = INT64_MAX if last < 0 else last + 1
        # The metadata log is read completely: later records refer to topics by the ids in earlier ones.
        is_metadata = files.topic == COORDINATOR_TOPICS[0]
        if is_metadata:
            storage = LookedAtStorage(os.path.dirname(files.path))
            self.reader.know(find_base(storage, files.name, directory.start_of(files)).values)
        reached = start
        for item in directory.batches(files, 0 if is_metadata else start, end):
            if isinstance(item, DamagedBytes):
                step(item.size_bytes)
                self.damaged += 1
                self._print_damage(files.name, item)
                continue
            step(item.header.size)
            reached = item.header.last_offset + 1
            self._dump_batch(files, item, start, end)
            if self.is_full():
                return
        lost = lost_end(files, reached, end)
        if lost is not None:
            self.lost.append(lost)

    def end(self) -> None:
        """Exit with the code for damage if records are missing."""
        if self.damaged:
            for lost in self.lost:
                note(str(lost))
            fail(f"{plural(self.damaged, 'part')} of the log cannot be read", EXIT_DAMAGED)
        for lost in self.lost[1:]:
            note(str(lost))
        if self.lost:
            fail(str(self.lost[0]), EXIT_DAMAGED)

    def dump_snapshot(self, path: str) -> None:
        """The records in a snapshot of the metadata log. Raises OSError."""
        files = PartitionFiles(PartitionDirectory(os.path.dirname(os.path.abspath(path)), COORDINATOR_TOPICS[0], 0))
        for item in read_batches(path):
            if isinstance(item, DamagedBytes):
                self.damaged += 1
                self._print_damage(files.name, item)
            elif not self.is_full():
                self._dump_batch(files, item, 0, INT64_MAX)

    def _dump_batch(self, files: PartitionFiles, batch: StoredBatch, start: int, end: int) -> None:
        try:
            records = batch.records(DECOMPRESSED_BYTES_MAX)
        except (DecodeError, DecompressionError) as error:
            header = batch.header
            damage = DamagedBytes(batch.file, batch.position, header.size, header.base_offset, str(error), False)
            self.damaged += 1
            self._print_damage(files.name, damage)
            return
        for record in records:
            typed = self.reader.read(files.topic, batch.header, record)
            if not start <= record.offset < end or not self.wanted.wants(typed):
                continue
            self.count += 1
            self._print(files.name, typed, batch.header)
            if self.is_full():
                return

    def _head(self, name: str) -> None:
        if self.heading != name:
            self.heading = name
            click.echo(f"{name}:")

    def _print(self, name: str, typed: TypedRecord, header: BatchHeader) -> None:
        record = typed.record
        if self.output != "table":
            document: dict[str, Any] = {
                "log": name,
                "offset": record.offset,
                "timestamp": format_time(record.timestamp),
                "timestamp_ms": record.timestamp,
            }
            if header.is_transactional:
                document["producer_id"] = header.producer_id
                document["producer_epoch"] = header.producer_epoch
            self._print_document({**document, **typed_plain(typed)})
            return
        self._head(name)
        text = summary(typed, self.names)
        if header.is_transactional:
            text += f"; producer id {header.producer_id}, epoch {header.producer_epoch}"
        head = f"{record.offset:>8}  {format_time(record.timestamp) or '-':<24}  "
        lines = wrapped(text, 12, len(head))
        click.echo("\n".join([head + lines[0][len(head) :], *lines[1:]]))

    def _print_document(self, document: dict[str, Any]) -> None:
        if self.output == "json":
            click.echo(json_line(document))
        else:
            click.echo(csv_line([document.get(name) for name in FIELDS]), nl=False)

    def _print_damage(self, name: str, damage: DamagedBytes) -> None:
        if self.output != "table":
            self._print_document(
                {
                    "log": name,
                    "type": "damaged_bytes",
                    "file": damage.file,
                    "position": damage.position,
                    "size_bytes": damage.size_bytes,
                    "next_offset": damage.next_offset,
                    "reason": damage.reason,
                }
            )
            return
        self._head(name)
        text = f"!! {plural(damage.size_bytes, 'byte')} at {damage.position} of {damage.file}: {damage.reason}"
        say(text, 12, 2)


def choose(directory: DataDirectory, names: tuple[str, ...]) -> list[PartitionFiles]:
    """The logs of these names (`topic` or `topic-partition`); of none, those of the coordinator."""
    if not names:
        chosen = [files for files in directory.partitions if files.topic in COORDINATOR_TOPICS]
        return chosen or (directory.partitions if len(directory.partitions) == 1 else [])
    chosen = []
    for name in names:
        found = [files for files in directory.partitions if name in (files.name, files.topic)]
        if not found:
            known = ", ".join(files.name for files in directory.partitions[:10])
            fail(f"there is no log {name} in {directory.root}; there are {known or 'none'}", EXIT_CONFIG)
        chosen += [files for files in found if files not in chosen]
    return chosen


@click.command()
@directory_argument
@click.argument("logs", metavar="[LOG]...", nargs=-1)
@click.option("--group", "-g", "groups", multiple=True, metavar="ID", help="Only of this group or transactional id.")
@click.option("--topic", "-t", "topics", multiple=True, metavar="NAME", help="Only about this topic.")
@partition_option("Only about this partition of a topic.")
@click.option("--member", "-m", "members", multiple=True, metavar="ID", help="Only with this member or instance id.")
@click.option("--type", "kinds", multiple=True, metavar="TYPE", help="Of this type, such as offset_commit.")
@click.option("--since", type=parse_time, default=-1, metavar="TIME", help="Only since TIME.")
@click.option("--until", type=parse_time, default=-1, metavar="TIME", help="Only until TIME.")
@click.option("--offset", "offsets", type=parse_offsets, default="0..", metavar="A..B", help="Log offsets A to B.")
@limit_option("Stop after N records.")
@unsynced_option
@output_option
@friendly
def dump(
    directory: str, logs: tuple[str, ...], groups: tuple[str, ...], topics: tuple[str, ...], partition: int,
    members: tuple[str, ...], kinds: tuple[str, ...], since: int, until: int, offsets: tuple[int, int],
    limit: int | None, unsynced: bool, output: str,
) -> None:  # fmt: skip
    """Print the decoded records in DIR. JSON output has one object per line.

    LOG is a topic or a partition, such as __consumer_offsets-0; by default the coordinator's logs are printed. A record
    must match all given options; for a repeated option, any of its values.

    \b
    TIME is one of  2026-01-31T12:00  UTC unless it has a zone
                    15m               that long ago: ms, s, m, h, d
                    @1769860800000    Unix milliseconds
                    now

    \b
    Examples:
      kcoord log dump data --group billing --since 1h
      kcoord log dump data __cluster_metadata-0
      kcoord log dump data -g billing -t orders -p 0 -o json |
        jq -r 'select(.type == "offset_commit") | .value.offset'

    Unreadable bytes are shown at their position, and the exit code is 7.

    DIR may also be a file: a .checkpoint snapshot of the metadata log. Offsets are those in the file.
    """
    check_types(kinds)
    wanted = Filter(groups, topics, members, kinds, partition, since, until)
    dumper = Dumper(wanted, output, -1 if limit is None else limit)
    if directory.endswith(SUFFIX) and os.path.isfile(directory):
        dumper.dump_snapshot(directory)
    else:
        found = look_at(directory, unsynced)
        chosen = choose(found, logs)
        # No progress bar while the records scroll on the same terminal.
        total = 0 if sys.stdout.isatty() else sum(files.size_bytes for files in chosen)
        with progress("Reading", total) as step:
            if not logs:
                gone = [log for log in lost_logs(found) if log.topic in COORDINATOR_TOPICS]
                dumper.lost += [log.as_damage(found.root) for log in gone]
            if output == "table" and any(files.topic == OFFSETS_TOPIC for files in chosen):
                dumper.learn_names(found)
            for files in chosen:
                if not dumper.is_full():
                    dumper.dump(found, files, offsets[0], offsets[1], step)
    if output == "table":
        click.echo(plural(dumper.count, "record"))
    dumper.end()
    if not dumper.count and limit != 0:
        wanted.fail_if_unknown(directory)
