"""`kcoord log timeline`: the epochs of a group, their causes, durations, and assignments before and after."""

from __future__ import annotations

from typing import Any, Final, final

import click

from kcoord.cli.coordinator_log import CoordinatorLog
from kcoord.cli.epochs import NO_CAUSE, Epochs, show_epochs
from kcoord.cli.log.common import (
    directory_argument,
    fail,
    friendly,
    look_at,
    note,
    output_option,
    progress,
    unsynced_option,
)
from kcoord.cli.log.past.replay import coordinator_logs
from kcoord.cli.log.past.scan import Scan
from kcoord.cli.log.past.transaction_timeline import print_transactions
from kcoord.cli.log.points import TimeRange, parse_time
from kcoord.cli.options import limit_option
from kcoord.core.outcome import GROUP_EVENTS_TOPIC
from kcoord.log.inspect import DataDirectory, PartitionFiles
from kcoord.server.failures import EXIT_CONFIG

AUTO: Final = "auto"
EVENTS: Final = "events"
LOG: Final = "log"


@final
class Story:
    """The history of one group, read from files."""

    def __init__(self, group: str) -> None:
        self.epochs = Epochs(group)
        self.source = ""
        self.scan = Scan()

    def read_events(self, directory: DataDirectory, step: Any) -> None:
        """Read the events in `__group_events`."""
        for files in directory.of_topic(GROUP_EVENTS_TOPIC):
            for _, record in self.scan.records(directory, files, step):
                if self.epochs.add_stored(record.value):
                    self.source = files.name
        if not self.epochs.events:
            self.scan.forget_history()

    def read_log(self, directory: DataDirectory, files: PartitionFiles, step: Any) -> None:
        """Read the records in the coordinator log of the group."""
        log = CoordinatorLog(self.epochs, files.topic, files.partition)
        for batch, record in self.scan.records(directory, files, step):
            log.add(batch.header, record)
        self.source = files.name
        log.end()


@click.command()
@directory_argument
@click.option("--group", "-g", metavar="ID", help="The group.")
@click.option("--transactional-id", metavar="ID", help="A transactional id instead of a group.")
@click.option("--since", type=parse_time, default=-1, metavar="TIME", help="Only epochs since TIME.")
@click.option("--until", type=parse_time, default=-1, metavar="TIME", help="Only epochs until TIME.")
@limit_option("Only the last N epochs.")
@click.option(
    "--source", type=click.Choice([AUTO, EVENTS, LOG]), default=AUTO, show_default=True,
    help="events: the topic __group_events. log: the coordinator's log. auto: the log if there are no events.",
)  # fmt: skip
@unsynced_option
@output_option
@friendly
def timeline(
    directory: str, group: str | None, transactional_id: str | None, since: int, until: int, limit: int | None,
    source: str, unsynced: bool, output: str,
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
    between = TimeRange(since, until, -1 if limit is None else limit)
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
    if source == LOG or (source == AUTO and not story.epochs.events):
        logs = coordinator_logs(found, group, -1)
        with progress("Reading", sum(files.size_bytes for files in logs)) as step:
            for files in logs:
                story.read_log(found, files, step)
    rows = between.of(story.epochs.rows())
    if not story.epochs.events and story.scan.is_whole:
        fail(f"{found.root} has no rebalance of group {group}", EXIT_CONFIG)
    show_epochs(group, story.source, story.scan.history, rows, output)
    if output == "table" and any(row["cause"] is None for row in rows):
        note(NO_CAUSE)
    story.scan.warn("epochs")
    story.scan.fail_if_damaged()
