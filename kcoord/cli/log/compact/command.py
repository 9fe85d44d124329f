"""`kcoord log compact`: compacts the closed segments of a stopped server's logs immediately."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any, Final, final

import click

from kcoord.cli.log.common import (
    directory_argument,
    emit_json,
    emit_rows,
    fail,
    format_bytes,
    friendly,
    note,
    output_option,
    plural,
    progress,
    table,
    wrapped,
)
from kcoord.cli.log.compact.metadata import MetadataRow, shorten_metadata
from kcoord.cli.log.points import AGO, UNITS_MS
from kcoord.cli.settings_options import load_settings, settings_options
from kcoord.core.coordinator import Core
from kcoord.core.topics.registry import TopicRegistry
from kcoord.engine.metadata_snapshot import MetadataState
from kcoord.log.cleaner import CleanConfig, CleanResult, clean
from kcoord.log.cleaning_plan import CleaningPolicy, plan_cleaning
from kcoord.log.directory import (
    CLEANER_OFFSETS,
    LogDirectory,
    encode_checkpoint,
    open_directory,
    read_hint,
    refuse_foreign,
)
from kcoord.log.errors import ForeignDirectory, LogDamaged, StorageError, missing_directory
from kcoord.log.exchange import promote
from kcoord.log.inspect import read_properties
from kcoord.log.partition_log import PartitionLog
from kcoord.log.storage import DiskFile, DiskStorage
from kcoord.server.failures import EXIT_DAMAGED, EXIT_DISK_FULL
from kcoord.server.maintenance.cleaning import clean_config, cleaning_policy
from kcoord.server.settings.config import ServerConfig
from kcoord.server.settings.load import Config

# The cleaner reads each segment three times: for transactions, keys and records.
PASSES: Final = 3
KEEPS_ALL: Final = re.compile("0+")

Step = Callable[[int], None]


@final
class WatchedFile(DiskFile):
    """A file that reports how many bytes were read."""

    def __init__(self, path: str, step: Step) -> None:
        super().__init__(path)
        self._step = step

    def read_at(self, position: int, size: int) -> bytes:
        data = super().read_at(position, size)
        self._step(len(data))
        return data


@final
class WatchedStorage(DiskStorage):
    """A storage whose files report how many bytes were read."""

    def __init__(self, root: str, step: Step) -> None:
        super().__init__(root)
        self._step = step

    def open(self, path: str) -> DiskFile:
        return WatchedFile(self._path(path), self._step)


@final
class Row:
    """The result for one log: the sizes of the compacted and of the skipped parts, with reasons."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.policy = CleaningPolicy(0.0, 0, 0, 0)
        self.config = CleanConfig()
        self.bases: list[int] = []
        self.segments_after = 0
        self.first_dirty = 0
        self.compacted_bytes = 0
        self.recent_bytes = 0
        self.open_bytes = 0
        self.result = CleanResult(0)
        self.damage = ""

    def plain(self) -> dict[str, Any]:
        result = self.result
        return {
            "log": self.log.name,
            "compacted_up_to": result.end,
            "segments_before": len(self.bases),
            "segments_after": self.segments_after,
            "bytes_before": result.bytes_before,
            "bytes_after": result.bytes_after,
            "records_before": result.records_before,
            "records_after": result.records_after,
            "recent_bytes": self.recent_bytes,
            "open_bytes": self.open_bytes,
            "damage": self.damage or None,
        }


def parse_age(value: str) -> int:
    """`7d` or `0` in milliseconds. Raises BadParameter."""
    match = AGO.fullmatch(value)
    if match is not None:
        return int(match.group(1)) * UNITS_MS[match.group(2)]
    if KEEPS_ALL.fullmatch(value):
        return 0
    raise click.BadParameter(f"{value!r} is not an age, such as 7d, 12h or 0 (ms, s, m, h, d)")


def open_stopped(storage: DiskStorage) -> LogDirectory:
    """Open a kcoord data directory as a server does, with any node id. Raises LogError and OSError."""
    if not storage.is_dir(""):
        raise missing_directory(storage.root)
    refuse_foreign(storage)
    node = read_properties(storage.root).get("node.id", "")
    if not node.isdecimal():
        raise ForeignDirectory(f"{storage.root} is not a data directory")
    return open_directory(storage, int(node), "", "")


def compacted_topics(topics: TopicRegistry, wanted: tuple[str, ...]) -> list[str]:
    """The topics to compact. Raises BadParameter for an unknown or uncompacted topic."""
    found = [
        name
        for name, topic in sorted(topics.topics.items())
        if "compact" in [word.strip() for word in topics.config_value(topic, "cleanup.policy").split(",")]
    ]
    for name in wanted:
        if name not in topics.topics:
            raise click.BadParameter(f"topic {name} does not exist")
        if name not in found:
            raise click.BadParameter(f"topic {name} is not compacted (cleanup.policy)")
    return [name for name in found if not wanted or name in wanted]


def plan(topics: TopicRegistry, row: Row, server: ServerConfig, now_ms: int) -> None:
    """Choose the segments. Raises LogDamaged."""
    log = row.log
    row.policy = cleaning_policy(topics, log.topic, server)
    row.policy.piece_bytes = 0
    # Compact even if the dirty ratio is below the server's threshold.
    row.policy.dirty_ratio = 0.0
    row.config = clean_config(topics, log, server)
    # Clean from offset 0, so that expired tombstones are removed even if there are no new records.
    chosen = plan_cleaning(log, row.policy, 0, now_ms)
    row.bases = chosen.bases
    sizes = [segment.size for segment in log.segments]
    row.compacted_bytes = sum(sizes[: len(row.bases)])
    row.recent_bytes = sum(sizes[len(row.bases) : -1])
    row.open_bytes = sizes[-1]


def compact_log(row: Row, now_ms: int) -> None:
    """Clean and exchange segments. A log with more keys than fit into memory takes several rounds.

    Raises LogDamaged and OSError.
    """
    log = row.log
    bases = row.bases
    beyond = log.segments[len(bases)].base_offset
    first_dirty = row.first_dirty
    first_round: CleanResult | None = None
    while True:
        found = clean(log.storage, log.name, bases, first_dirty, row.config, now_ms)
        exchange(log, found)
        first_round = first_round or found
        bases = [segment.base_offset for segment in log.segments if segment.base_offset < beyond]
        if found.end <= first_dirty or found.end >= beyond:
            break
        first_dirty = found.end
    found.bytes_before, found.records_before = row.compacted_bytes, first_round.records_before
    found.bytes_after = sum(segment.size for segment in log.segments if segment.base_offset < beyond)
    row.result = found
    row.segments_after = len(bases)


def exchange(log: PartitionLog, result: CleanResult) -> None:
    """Replace old segments by cleaned ones, in the crash-safe order of exchange.py. Raises OSError."""
    if not result.groups:
        return
    storage = log.storage
    promote(storage, log.name, [group.base for group in result.groups], log.config.index_interval_bytes)
    replaced = []
    for group in result.groups:
        found = log.begin_replace(group.base, group.old_bases)
        if found is None:
            raise StorageError(f"{log.name} changed during the compaction; another process may be writing to it")
        replaced.append(found)
    storage.sync_dir(log.name)
    for new, _ in replaced:
        new.rename("")
    storage.sync_dir(log.name)
    for _, old in replaced:
        for segment in old:
            segment.remove()


def save_ends(directory: LogDirectory, rows: list[Row]) -> None:
    """Store the offsets up to which the logs are compacted. Raises OSError."""
    there = {(log.topic, log.partition) for log in directory}
    ends, _reason = read_hint(directory.storage, CLEANER_OFFSETS)
    for row in rows:
        if row.bases and not row.damage:
            ends[(row.log.topic, row.log.partition)] = row.result.end
    kept = {key: end for key, end in ends.items() if key in there}
    directory.storage.write_atomic(CLEANER_OFFSETS, encode_checkpoint(kept))


# The columns of CSV.
FIELDS: Final = (
    "log", "compacted_up_to", "segments_before", "segments_after", "bytes_before", "bytes_after", "records_before",
    "records_after", "recent_bytes", "open_bytes", "damage",
)  # fmt: skip


def print_table(rows: list[Row]) -> None:
    head = ["LOG", "RECORDS", "KEPT", "SIZE", "NOW", "LEFT ALONE"]
    cells = []
    details = []
    for row in rows:
        result = row.result
        cells.append(
            [
                row.log.name, str(result.records_before), str(result.records_after),
                format_bytes(result.bytes_before), format_bytes(result.bytes_after),
                format_bytes(row.recent_bytes + row.open_bytes),
            ]
        )  # fmt: skip
        details.append(wrapped(row.damage, 6, 4) if row.damage else [])
    click.echo("\n".join(table(head, cells, "lrrrrr", details)))
    saved = sum(row.result.bytes_before - row.result.bytes_after for row in rows)
    click.echo(f"{plural(len(rows), 'log')}, {format_bytes(saved)} saved")
    recent = sum(row.recent_bytes for row in rows)
    if recent:
        note(f"{format_bytes(recent)} are too recent to be compacted (--history, min.compaction.lag.ms)")
    unclosed = sum(row.open_bytes for row in rows)
    if unclosed:
        note(f"{format_bytes(unclosed)} are in active segments, which --roll closes")


@click.command(name="compact")
@directory_argument
@click.option("--topic", "-t", "wanted", multiple=True, metavar="NAME", help="Only this topic; repeatable.")
@click.option("--history", type=parse_age, metavar="AGE",
              help="Keep records of the coordinators' internal topics that are newer than this, for `log state` "
              "and `log diff`; 0 for none. The default is log.history, 7d unless it is set.")  # fmt: skip
@click.option("--roll", is_flag=True, help="Close the active segment of each log first, so that it is compacted, too.")
@settings_options
@output_option
@friendly
def compact_command(
    directory: str, wanted: tuple[str, ...], history: int | None, roll: bool, config_file: str,
    assignments: tuple[str, ...], output: str,
) -> None:  # fmt: skip
    """Compact the logs in DIR now: keep only the newest record of every key.

    DIR is the data directory of a stopped kcoord server. All closed segments of topics with cleanup.policy=compact,
    including __consumer_offsets, are compacted, even if a server would not compact them yet. min.compaction.lag.ms and
    delete.retention.ms apply. Offsets never change. If the command is interrupted, either the old or the new segments
    are valid.

    The metadata log has no keys, so it gets a snapshot. It then begins at a snapshot, as far as --history and
    metadata.max.retention.bytes allow.

    Use the settings of the server: if you set log.history, log.history.bytes or log.segment.bytes for `kcoord serve`,
    pass the same --config, --set or KCOORD_* variables.

    \b
    Examples:
      kcoord log compact data
      kcoord log compact data --roll --history 0
      kcoord log compact data --config kcoord.toml
      kcoord log compact data -t prices -o json | jq '.logs[].bytes_after'
    """
    config = load_settings(config_file=config_file, environ=os.environ, assignments=assignments)
    for warning in config.warnings:
        note(warning)
    if history is not None:
        config.server.history_ms = config.server.metadata_retention_ms = history
    steps: list[Step] = []
    storage = WatchedStorage(directory, lambda count: steps[0](count) if steps else None)
    opened = open_stopped(storage)
    is_done = False
    try:
        for event in opened.events:
            note(f"{event.file}: {event.bytes_cut} bytes cut at {event.position}: {event.reason}")
        rows, shortened = _compact_all(opened, wanted, config, roll, steps)
        # Do not mark the directory as clean if it was not: the next server must recover from the earlier crash.
        is_done = opened.was_clean
    except (click.UsageError, SystemExit):
        # These errors are raised before anything was changed.
        is_done = opened.was_clean
        raise
    finally:
        # After any other error the next start recovers as after a crash.
        opened.close(is_done)
    if output == "json":
        metadata = None if shortened is None else shortened.plain()
        emit_json({"directory": storage.root, "logs": [row.plain() for row in rows], "metadata": metadata})
    elif output == "csv":
        emit_rows(FIELDS, [row.plain() for row in rows])
    else:
        print_table(rows)
        if shortened is not None:
            shortened.print()
    if any(row.damage for row in rows):
        sys.exit(EXIT_DAMAGED)


def _compact_all(
    opened: LogDirectory, wanted: tuple[str, ...], config: Config, roll: bool, steps: list[Step]
) -> tuple[list[Row], MetadataRow | None]:
    # Use the node id of the directory.
    config.core.node_id = opened.meta.node_id
    core = Core(config.core)
    metadata = opened.get(core.metadata_log.topic, core.metadata_log.partition)
    if metadata is None:
        raise StorageError("the metadata log, which determines the compacted topics, is missing")
    state = MetadataState(metadata)
    for fact in state.load(core):
        note(" ".join(str(value) for value in fact.fields.values()))
    names = compacted_topics(core.topics, wanted)
    now_ms = time.time_ns() // 1_000_000
    first_dirty, reason = read_hint(opened.storage, CLEANER_OFFSETS)
    if reason:
        note(f"compacting from the start: {reason}")
    rows = [Row(log) for log in sorted(opened, key=lambda log: (log.topic, log.partition)) if log.topic in names]
    for row in rows:
        _prepare(core.topics, row, config.server, roll, now_ms)
        known = first_dirty.get((row.log.topic, row.log.partition), 0)
        # A checkpoint beyond the end belongs to an earlier log of the same name.
        row.first_dirty = known if known <= row.log.end_offset else 0
    needed = max((row.compacted_bytes for row in rows), default=0)
    free = opened.storage.free_bytes()
    if free < needed:
        fail(f"compaction needs {format_bytes(needed)}, but only {format_bytes(free)} are free", EXIT_DISK_FULL)
    try:
        with progress("Compacting", PASSES * sum(row.compacted_bytes for row in rows)) as step:
            steps.append(step)
            for row in rows:
                _compact_one(row, now_ms)
    finally:
        steps.clear()
    save_ends(opened, rows)
    if wanted:
        return rows, None
    return rows, shorten_metadata(opened, state, config.server, opened.meta.node_id, roll, now_ms)


def _prepare(topics: TopicRegistry, row: Row, server: ServerConfig, roll: bool, now_ms: int) -> None:
    if roll and row.log.roll():
        row.log.flush()
    try:
        plan(topics, row, server, now_ms)
    except LogDamaged as damage:
        row.damage = str(damage)


def _compact_one(row: Row, now_ms: int) -> None:
    if not row.bases:
        return
    try:
        compact_log(row, now_ms)
    except LogDamaged as damage:
        row.damage = str(damage)
