"""`kcoord consume`: the records of topics as lines, JSON or a format of one's own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, final

import click

from kcoord.cli.groups.common import partitions_of
from kcoord.cli.log.points import parse_time
from kcoord.cli.online.record_text import ReadRecord, RecordFormat, RecordProblem, record_json
from kcoord.cli.online.run import (
    EXIT_INTERRUPTED,
    TIMEOUT_S,
    bootstrap_options,
    friendly,
    online,
    warn,
)
from kcoord.cli.output import json_line, plural
from kcoord.cli.produce import parse_delimiter
from kcoord.client.consumer.listener import RebalanceListener
from kcoord.client.partition import TopicPartition
from kcoord.protocol.errors import (
    FENCED_MEMBER_EPOCH,
    ILLEGAL_GENERATION,
    REBALANCE_IN_PROGRESS,
    STALE_MEMBER_EPOCH,
    UNKNOWN_MEMBER_ID,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from kcoord.client.consumer.consumer import Consumer
    from kcoord.client.consumer.records import ConsumerRecord

# A wait for records; the loop looks at the ends of partitions between two of them.
POLL_S: Final = 0.2
POLL_RECORDS: Final = 500
# How often a group's offsets are committed.
COMMIT_S: Final = 5.0
# The group has replaced this member.
MEMBER_CODES: Final = frozenset(
    {FENCED_MEMBER_EPOCH, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, STALE_MEMBER_EPOCH, UNKNOWN_MEMBER_ID}
)
BEGINNING: Final = "beginning"
END: Final = "end"


def parse_start(text: str) -> str | int:
    """`beginning`, `end`, an offset, or a negative number of records before the end. Raises BadParameter."""
    if text in (BEGINNING, END):
        return text
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not {BEGINNING}, {END} or an offset") from None


def parse_format(text: str) -> RecordFormat:
    """Raises BadParameter. A parsed format is returned unchanged."""
    try:
        return RecordFormat(text)
    except RecordProblem as error:
        raise click.BadParameter(str(error)) from None


@final
class Writer:
    """Writes records to standard output, in one of three forms."""

    def __init__(self, format_: RecordFormat | None, is_json: bool, key_delimiter: bytes, delimiter: bytes) -> None:
        self._format = format_
        self._is_json = is_json
        self._key_delimiter = key_delimiter
        self._delimiter = delimiter
        self._out = sys.stdout.buffer
        self.count = 0

    def write(self, record: ConsumerRecord) -> None:
        read = ReadRecord(
            record.topic, record.partition, record.offset, record.timestamp, record.key, record.value, record.headers
        )
        if self._format is not None:
            self._out.write(self._format.text_of(read))
        elif self._is_json:
            self._out.write(json_line(record_json(read)).encode() + b"\n")
        else:
            key = b"" if not self._key_delimiter else (record.key or b"") + self._key_delimiter
            self._out.write(key + (record.value or b"") + self._delimiter)
        self.count += 1

    def flush(self) -> None:
        self._out.flush()


@final
class Range:
    """Where reading begins and ends."""

    def __init__(self, start: str | int, since: int, until: int, limit: int | None, follow: bool) -> None:
        self.start = start
        self.since = since
        self.until = until
        self.limit = limit
        self.follow = follow
        # The offset at which each partition ends, if it does.
        self.ends: dict[TopicPartition, int] = {}

    async def note_ends(self, consumer: Consumer, partitions: set[TopicPartition]) -> None:
        """Decide where new partitions end: at what is their end now, or at the first record after `until`."""
        if self.follow and self.until < 0:
            return
        new = [partition for partition in partitions if partition not in self.ends]
        if not new:
            return
        if not self.follow:
            self.ends.update(await consumer.end_offsets(new))
        if self.until >= 0:
            found = await consumer.offsets_for_times(dict.fromkeys(new, self.until))
            for partition, one in found.items():
                if one is not None:
                    self.ends[partition] = min(one.offset, self.ends.get(partition, one.offset))

    async def seek(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self.since >= 0:
            found = await consumer.offsets_for_times(dict.fromkeys(partitions, self.since))
            for partition, one in found.items():
                if one is None:
                    consumer.seek_to_end(partition)
                else:
                    consumer.seek(partition, one.offset)
        elif self.start == END:
            consumer.seek_to_end(*partitions)
        elif isinstance(self.start, str):
            consumer.seek_to_beginning(*partitions)
        else:
            await self._seek_to(consumer, partitions, self.start)

    async def _seek_to(self, consumer: Consumer, partitions: list[TopicPartition], offset: int) -> None:
        first = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
        for partition in partitions:
            target = offset if offset >= 0 else ends[partition] + offset
            consumer.seek(partition, min(max(target, first[partition]), ends[partition]))

    def is_within(self, record: ConsumerRecord) -> bool:
        partition = TopicPartition(record.topic, record.partition)
        end = self.ends.get(partition)
        if self.until >= 0 and record.timestamp >= self.until and (end is None or record.offset < end):
            # It was written after the command had asked for this time.
            self.ends[partition] = end = record.offset
        return end is None or record.offset < end

    async def is_over(self, consumer: Consumer) -> bool:
        """Whether all partitions are read to their ends."""
        partitions = consumer.assignment()
        if not partitions or not set(partitions) <= set(self.ends):
            return False
        for partition in partitions:
            if await consumer.position(partition) < self.ends[partition]:
                return False
        return True


async def read(consumer: Consumer, within: Range, writer: Writer, group: Group | None, timeout_s: float) -> None:
    """Write records until the range or the limit ends. Raises RequestTimedOut if nothing happens for `timeout_s`."""
    import asyncio

    from kcoord.client.errors import RequestTimedOut

    loop = asyncio.get_running_loop()
    last_s = loop.time()
    while within.limit is None or writer.count < within.limit:
        left = POLL_RECORDS if within.limit is None else min(POLL_RECORDS, within.limit - writer.count)
        records = await consumer.poll(POLL_S, left)
        if group is not None:
            group.note_unwritten(records)
        await within.note_ends(consumer, set(consumer.assignment()))
        for record in records:
            if within.is_within(record):
                writer.write(record)
        writer.flush()
        if group is not None:
            group.note_written()
            await group.tick(loop.time())
        if await within.is_over(consumer):
            return
        if records or within.follow:
            last_s = loop.time()
        elif loop.time() - last_s > timeout_s:
            raise RequestTimedOut(f"no records within {timeout_s:g} s (--timeout), and the end is not reached")


@final
class Group(RebalanceListener):
    """Commits what was printed: now and then, before partitions are given up, and at the end."""

    def __init__(self, consumer: Consumer, within: Range) -> None:
        self._consumer = consumer
        self._within = within
        self._next_s = 0.0
        # The position of each partition when it was taken over, or a lower one to which the consumer was reset.
        self._starts: dict[TopicPartition, int] = {}
        # The first record of each partition that was received but is not written yet.
        self._unwritten: dict[TopicPartition, int] = {}

    def note_unwritten(self, records: list[ConsumerRecord]) -> None:
        for record in records:
            self._unwritten.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        for partition, offset in self._unwritten.items():
            self._starts[partition] = min(offset, self._starts.get(partition, offset))

    def note_written(self) -> None:
        self._unwritten.clear()

    async def tick(self, now_s: float) -> None:
        if now_s >= self._next_s:
            self._next_s = now_s + COMMIT_S
            await self.commit()

    async def commit(self) -> None:
        """Commit the positions, but nothing beyond the range. A group that has gone on decides itself."""
        from kcoord.client.errors import BrokerError

        offsets: dict[TopicPartition, int] = {}
        for partition in self._consumer.assignment():
            offset = await self._offset_of(partition)
            if offset is not None:
                offsets[partition] = offset
        try:
            if offsets:
                await self._consumer.commit(offsets)
        except BrokerError as error:
            if error.code not in MEMBER_CODES:
                raise
            warn(f"not committed: {error}")

    async def _offset_of(self, partition: TopicPartition) -> int | None:
        """What to commit for a partition; None for one that was taken over beyond the end of the range.

        Nothing of it is printed, and the end would move the group back.
        """
        position = await self._consumer.position(partition)
        start = self._starts.get(partition)
        end = self._within.ends.get(partition, position)
        if start is None or start > end:
            return None
        return min(position, end, self._unwritten.get(partition, position))

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        for partition in assigned:
            self._starts[partition] = await self._consumer.position(partition)

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        await self.commit()
        self._forget(revoked)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        """Others have them already."""
        self._forget(lost)

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._starts.pop(partition, None)
            self._unwritten.pop(partition, None)


@click.command()
@bootstrap_options
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--partition", "-p", type=click.IntRange(min=0), metavar="N", help="Only this partition.")
@click.option("--group", "-g", metavar="ID", help="Read as a member of this group, and commit what was printed.")
@click.option(
    "--protocol", type=click.Choice(["classic", "consumer"]), default="classic", show_default=True,
    help="The group's protocol.",
)  # fmt: skip
@click.option(
    "--from", "start", type=parse_start, metavar="START",
    help="beginning (default), end, an offset, or -N: the last N of each partition. With --group, beginning or end: "
    "for partitions without a committed offset.",
)  # fmt: skip
@click.option("--since", type=parse_time, default=-1, metavar="TIME", help="Begin with the first record at TIME.")
@click.option("--until", type=parse_time, default=-1, metavar="TIME", help="End before the first record at TIME.")
@click.option("--limit", "-n", type=click.IntRange(min=0), metavar="N", help="End after N records.")
@click.option("--follow", is_flag=True, help="Wait for new records, until Ctrl-C.")
@click.option("--json", "is_json", is_flag=True, help="A JSON object for each record, as `produce --json` reads it.")
@click.option("--format", "-f", "format_", type=parse_format, metavar="TEXT", help=r"As in kcat: '%t %p %o %k %s\n'.")
@click.option(
    "--key-delimiter", "-k", metavar="TEXT", default="", type=parse_delimiter, help="Print the key and this first."
)
@click.option(
    "--delimiter", metavar="TEXT", default="\\n", type=parse_delimiter, help=r"Printed after each record (\n)."
)
@click.option("--uncommitted", is_flag=True, help="Print records of open and aborted transactions, too.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=TIMEOUT_S, show_default=True, metavar="SECONDS",
    help="How long the cluster may take to answer.",
)  # fmt: skip
@friendly
def consume(
    bootstrap: str, topics: tuple[str, ...], partition: int | None, group: str | None, protocol: str,
    start: str | int | None, since: int, until: int, limit: int | None, follow: bool, is_json: bool,
    format_: RecordFormat | None, key_delimiter: bytes, delimiter: bytes, uncommitted: bool, timeout: float,
) -> None:  # fmt: skip
    """Print the records of topics, up to the end that they have when the command starts.

    \b
    Examples:
      kcoord consume orders
      kcoord consume orders --from -10 -f '%p %o %T %k %s\\n'
      kcoord consume orders --since 15m --json | jq .value
      kcoord consume orders -g billing --follow
    """
    if is_json and (format_ is not None or key_delimiter):
        raise click.UsageError("--json excludes --format and --key-delimiter")
    if format_ is not None and key_delimiter:
        raise click.UsageError("--format excludes --key-delimiter: use %k")
    if start is not None and since >= 0:
        raise click.UsageError("give --from or --since, not both")
    if group is not None and (partition is not None or since >= 0 or isinstance(start, int)):
        raise click.UsageError("a --group decides what is read: it excludes --partition, --since and offsets")
    if group == "":
        raise click.UsageError("--group must not be empty")
    numbers = None if partition is None else {partition}
    partitions = online(bootstrap, timeout, lambda admin: partitions_of(admin, dict.fromkeys(topics, numbers)))
    import asyncio

    writer = Writer(format_, is_json, key_delimiter, delimiter)
    within = Range(BEGINNING if start is None else start, since, until, limit, follow)
    options: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "isolation_level": "read_uncommitted" if uncommitted else "read_committed",
        "default_api_timeout_ms": timeout * 1000,
        "request_timeout_ms": max(timeout * 1000, 1000),
        "auto_offset_reset": "latest" if start == END else "earliest",
    }
    if group is not None:
        options.update(group_id=group, group_protocol=protocol, enable_auto_commit=False)
    named = topics if group is not None else ()
    is_interrupted = asyncio.run(_run(options, named, partitions, within, writer, timeout))
    if is_interrupted and not follow:
        warn(f"interrupted: {plural(writer.count, 'record')} printed")
        sys.exit(EXIT_INTERRUPTED)


async def _run(
    options: dict[str, Any],
    topics: tuple[str, ...],
    partitions: list[TopicPartition],
    within: Range,
    writer: Writer,
    timeout_s: float,
) -> bool:
    """Whether Ctrl-C has ended it, which is the way to end --follow. What was printed is committed then, too."""
    import asyncio

    from kcoord.client.consumer.consumer import Consumer

    is_interrupted = False
    async with Consumer(**options) as consumer:
        group = Group(consumer, within) if topics else None
        try:
            if group is not None:
                consumer.subscribe(topics, listener=group)
            else:
                consumer.assign(partitions)
                await within.seek(consumer, partitions)
            await read(consumer, within, writer, group, timeout_s)
        except asyncio.CancelledError:
            is_interrupted = True
        writer.flush()
        if group is not None:
            await group.commit()
    return is_interrupted
