"""Shortens the metadata log for `kcoord log compact`: a snapshot replaces its beginning, because it has no keys."""

from __future__ import annotations

from typing import Any, final

from kcoord.cli.log.common import format_bytes, note, say
from kcoord.engine.metadata_snapshot import MetadataState, remove_waste, save_start
from kcoord.engine.metadata_writer import SnapshotNotWritten, write_snapshot
from kcoord.log.directory import LogDirectory
from kcoord.log.metadata_checkpoint import BadCheckpoint
from kcoord.log.partition_log import PartitionLog
from kcoord.server.settings.config import ServerConfig


@final
class MetadataRow:
    """The result for the metadata log. `reason` is set if a new snapshot was due but could not be written."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.snapshot = ""
        self.reason = ""
        self.bytes_before = log.size_bytes
        self.bytes_after = log.size_bytes

    def plain(self) -> dict[str, Any]:
        return {
            "log": self.log.name,
            "start_offset": self.log.log_start_offset,
            "end_offset": self.log.end_offset,
            "snapshot": self.snapshot or None,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "reason": self.reason or None,
        }

    def print(self) -> None:
        if self.reason:
            note(f"{self.log.name} is unchanged: {self.reason}")
            return
        size = f"{format_bytes(self.bytes_before)}, now {format_bytes(self.bytes_after)}"
        say(f"{self.log.name}: begins at offset {self.log.log_start_offset}, {size}", 4, 0)


def shorten_metadata(
    opened: LogDirectory, state: MetadataState, config: ServerConfig, node_id: int, roll: bool, now_ms: int
) -> MetadataRow:
    """Write a snapshot of the metadata log, move the log's start as far as the settings allow, and remove old segments.

    Raises LogError and OSError.
    """
    log = state.log
    row = MetadataRow(log)
    if state.has_news:
        row.reason = _write(opened, state, row, node_id, roll, now_ms)
    start = state.new_start(now_ms, config.metadata_retention_ms, config.metadata_retention_bytes)
    if start > log.log_start_offset:
        log.log_start_offset = start
        save_start(opened, opened.take_starts(), log.name)
    if state.has_waste():
        segments, paths = state.take_waste()
        remove_waste(log.storage, log.name, segments, paths)
    row.bytes_after = log.size_bytes
    return row


def _write(opened: LogDirectory, state: MetadataState, row: MetadataRow, node_id: int, roll: bool, now_ms: int) -> str:
    """Write a snapshot. Returns the reason if that is not possible, otherwise an empty string."""
    if not opened.was_clean:
        # Deletions of topics in the log may not be completed yet.
        return "the server was not stopped cleanly. Start it, stop it, and try again"
    log = state.log
    if roll and log.roll():
        log.flush()
    try:
        plan = state.plan(log.durable_end, node_id, [])
        result = write_snapshot(log.storage, plan, now_ms)
    except (SnapshotNotWritten, BadCheckpoint) as error:
        return str(error)
    state.written(plan, result)
    row.snapshot = state.known[-1].name.file
    return ""
