"""Reads the records of logs for timelines, and notes what is damaged, lost or compacted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

from kcoord.cli.log.common import fail, format_time, note, plural
from kcoord.core.outcome import GROUP_EVENTS_TOPIC
from kcoord.log.errors import LogDamaged
from kcoord.log.history import HistoryStart
from kcoord.log.inspect import DataDirectory, PartitionFiles, lost_end
from kcoord.log.reader import DamagedBytes, StoredBatch
from kcoord.log.typed_records import DECOMPRESSED_BYTES_MAX
from kcoord.server.failures import EXIT_DAMAGED
from kcoord.wire.compression import DecompressionError
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import Record


@final
class Scan:
    def __init__(self) -> None:
        self.damaged = 0
        # Logs that end before their durable marks.
        self.lost: list[LogDamaged] = []
        # The latest start of complete history among the logs.
        self.history = HistoryStart(0)
        self.incomplete = ""

    def forget_history(self) -> None:
        """Leave out the logs so far: they had nothing to say."""
        self.incomplete = ""
        self.history = HistoryStart(0)

    def add(self, other: Scan) -> None:
        """Take over what another scan noted."""
        self.damaged += other.damaged
        self.lost += other.lost
        if other.incomplete:
            self.history, self.incomplete = other.history, other.incomplete

    @property
    def is_whole(self) -> bool:
        """Whether everything could be read."""
        return not self.damaged and not self.lost

    def records(
        self, directory: DataDirectory, files: PartitionFiles, step: Any
    ) -> Iterator[tuple[StoredBatch, Record]]:
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
        # An empty last segment marks the end of the log.
        if files.segments:
            history.segment(min(files.segments[-1].base_offset, directory.readable_end(files)))
        if not history.is_whole and history.time_ms >= self.history.time_ms:
            self.history = history
            self.incomplete = files.name

    def warn(self, what: str) -> None:
        """Print a remark if some of `what` may be missing because records were removed."""
        if not self.incomplete:
            return
        since = format_time(self.history.time_ms)
        cause = "retention" if self.incomplete.startswith(GROUP_EVENTS_TOPIC) else "compaction"
        note(
            f"the history in {self.incomplete} is complete only from offset {self.history.offset}"
            f"{f' ({since})' if since else ''} on: {what} before that may be missing, since {cause} removed records. "
            "docs/pipeline.md describes how to keep history"
        )

    def fail_if_damaged(self) -> None:
        """Exit if something could not be read."""
        if self.lost:
            fail(str(self.lost[0]), EXIT_DAMAGED)
        if self.damaged:
            fail(f"{plural(self.damaged, 'part')} of the log cannot be read", EXIT_DAMAGED)
