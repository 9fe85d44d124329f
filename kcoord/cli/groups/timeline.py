"""`kcoord groups timeline`: the epochs of a group, read from a running server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from kcoord.cli.bar import Bar
from kcoord.cli.groups.common import is_code, unknown_group
from kcoord.cli.log.points import TimeRange, parse_time
from kcoord.cli.online.run import (
    CommandProblem,
    cluster_options,
    friendly,
    online,
    output_option,
    warn,
    watch_options,
    watching,
)
from kcoord.cli.options import limit_option
from kcoord.client.errors import CorruptRecord, KafkaError
from kcoord.client.partition import TopicPartition
from kcoord.protocol.errors import GROUP_ID_NOT_FOUND, UNKNOWN_TOPIC_OR_PARTITION

if TYPE_CHECKING:
    from kcoord.cli.epochs import Epochs
    from kcoord.client.admin.admin import Admin
    from kcoord.log.history import HistoryStart
    from kcoord.wire.record_batch import BatchHeader, Record

AUTO: Final = "auto"
EVENTS: Final = "events"
LOG: Final = "log"

# Gets each record with the header of its batch.
Take = Callable[["BatchHeader", "Record"], object]


async def read_records(admin: Admin, partition: TopicPartition, take: Take) -> HistoryStart:
    """Pass the records that a partition has now to `take`. Returns from where on none is missing. Raises KafkaError."""
    from kcoord.client.admin.records import DECOMPRESSED_MAX
    from kcoord.client.admin.results import EARLIEST, LATEST
    from kcoord.client.admin.spread import only
    from kcoord.log.history import HistoryStart
    from kcoord.wire.compression import DecompressionError
    from kcoord.wire.primitives import DecodeError
    from kcoord.wire.record_batch import HEADER_BYTES, decode_records, parse_header

    offset = start = only(await admin.list_offsets({partition: EARLIEST}), partition).offset
    end = only(await admin.list_offsets({partition: LATEST}), partition).offset
    history = HistoryStart(start)
    with Bar() as bar:
        bar.begin("Reading", end - start)
        while offset < end:
            data = (await admin.fetch(partition, offset)).data
            position, before = 0, offset
            try:
                while position + HEADER_BYTES <= len(data):
                    header = parse_header(data, position, partial=True)
                    if position + header.size > len(data):
                        break
                    if header.last_offset >= offset:
                        history.batch(header)
                        records = [] if header.is_control else decode_records(data, position, header, DECOMPRESSED_MAX)
                        for record in records:
                            if record.offset >= offset:
                                take(header, record)
                        offset = header.last_offset + 1
                    position += header.size
            except (DecodeError, DecompressionError) as error:
                raise CorruptRecord(f"partition {partition} after offset {offset}: {error}") from None
            if offset == before:
                # What is missing up to the end was removed.
                break
            bar.step(offset - before)
    history.segment(end)
    return history


async def read_group(admin: Admin, epochs: Epochs, source: str) -> tuple[str, HistoryStart]:
    """Read the history of a group. Returns the partition it is from. Raises KafkaError and CommandProblem."""
    from kcoord.core.hashing import coordinator_partition
    from kcoord.core.outcome import GROUP_EVENTS_TOPIC, OFFSETS_TOPIC

    if source != LOG:
        partition = TopicPartition(GROUP_EVENTS_TOPIC, 0)
        described = (await admin.describe_topics(GROUP_EVENTS_TOPIC))[GROUP_EVENTS_TOPIC]
        if not isinstance(described, KafkaError):
            history = await read_records(admin, partition, lambda _, record: epochs.add_stored(record.value))
            if epochs.events or source == EVENTS:
                return str(partition), history
        elif not is_code(described, UNKNOWN_TOPIC_OR_PARTITION):
            raise described
        elif source == EVENTS:
            raise CommandProblem(f"the cluster has no topic {GROUP_EVENTS_TOPIC}; --source log reads {OFFSETS_TOPIC}")
    topic = (await admin.describe_topics(OFFSETS_TOPIC))[OFFSETS_TOPIC]
    if is_code(topic, UNKNOWN_TOPIC_OR_PARTITION):
        raise await unknown_group(admin, epochs.group)
    if isinstance(topic, KafkaError):
        raise topic
    partition = TopicPartition(OFFSETS_TOPIC, coordinator_partition(epochs.group, len(topic.partitions)))
    from kcoord.cli.coordinator_log import CoordinatorLog

    log = CoordinatorLog(epochs, *partition)
    history = await read_records(admin, partition, log.add)
    log.end()
    return str(partition), history


@click.command()
@cluster_options
@click.argument("group")
@click.option("--since", type=parse_time, default=-1, metavar="TIME", help="Only epochs since TIME.")
@click.option("--until", type=parse_time, default=-1, metavar="TIME", help="Only epochs until TIME.")
@limit_option("Only the last N epochs.")
@click.option(
    "--source", type=click.Choice([AUTO, EVENTS, LOG]), default=AUTO, show_default=True,
    help="events: the topic __group_events. log: __consumer_offsets. auto: the log if there are no events.",
)  # fmt: skip
@watch_options
@output_option
@friendly
def timeline(
    bootstrap: str, timeout: float, group: str, since: int, until: int, limit: int | None, source: str,
    watch: float | None, times: int | None, output: str,
) -> None:  # fmt: skip
    """Print every epoch of a group: when it began and why, how long the rebalance took, and the members and partitions
    before and after.

    It reads the history from kcoord's topic __group_events. If there is none, as in other clusters, it reads the
    group's partition of __consumer_offsets, which has no causes. A question mark means that a value is missing.
    `kcoord log timeline` reads the same from a data directory. TIME is 2026-01-31T12:00, 15m (ago), @MILLISECONDS.

    \b
    Examples:
      kcoord groups timeline billing --since 1h
      kcoord groups timeline billing --watch 2 -n 10
    """
    from kcoord.cli.epochs import NO_CAUSE, Epochs, show_epochs

    between = TimeRange(since, until, -1 if limit is None else limit)

    def show() -> None:
        epochs = Epochs(group)

        async def work(admin: Admin) -> tuple[str, HistoryStart]:
            found = await read_group(admin, epochs, source)
            if not epochs.events:
                described = (await admin.describe_groups(group))[group]
                if is_code(described, GROUP_ID_NOT_FOUND):
                    raise await unknown_group(admin, group)
            return found

        where, history = online(bootstrap, timeout, work)
        rows = between.of(epochs.rows())
        show_epochs(group, where, history, rows, output)
        if output == "table" and any(row["cause"] is None for row in rows):
            warn(NO_CAUSE)
        if not history.is_whole:
            warn(f"records of {where} before offset {history.offset} were removed: older epochs may be missing")

    watching(watch, times, show)
