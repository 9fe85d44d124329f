"""Checks that the snapshots of the metadata log are readable and match the log that they replace."""

from __future__ import annotations

import os
from typing import Final, final

from kcoord.cli.log.past.state_start import LookedAtStorage
from kcoord.cli.log.verify.findings import Findings
from kcoord.core.config import CoreConfig
from kcoord.core.coordinator import Core
from kcoord.engine.metadata_snapshot import decode_all
from kcoord.log.inspect import DataDirectory, PartitionFiles
from kcoord.log.metadata_checkpoint import (
    BadCheckpoint,
    CheckpointName,
    list_checkpoints,
    no_base,
    read_checkpoint_file,
)

CHECK: Final = "metadata snapshot"


@final
class SnapshotCheck:
    """Loads the snapshot at the log's start into `core`, and compares at the end of each later snapshot."""

    def __init__(self, directory: DataDirectory, files: PartitionFiles, core: Core, findings: Findings) -> None:
        self.files = files
        self.core = core
        self.findings = findings
        self.is_running = directory.in_use
        self.is_ours = directory.is_kcoord
        self.storage = LookedAtStorage(os.path.dirname(files.path))
        # The snapshots still to compare, and the offset from which the log's records are replayed.
        self.names: list[CheckpointName] = []
        self.from_offset = 0
        self.is_whole = bool(files.segments)
        self._begin(directory.start_of(files))

    def _error(self, name: CheckpointName, text: str) -> None:
        path = os.path.join(self.files.path, name.file)
        self.findings.error(CHECK, self.files.name, text, path, -1, name.end_offset)

    def _begin(self, start: int) -> None:
        names = list_checkpoints(self.storage, self.files.name)
        reason = ""
        for name in names:
            if name.end_offset < start:
                text = f"it ends before the log's start, {start}; opening the log removes it in time"
                path = os.path.join(self.files.path, name.file)
                self.findings.warning(CHECK, self.files.name, text, path, -1, name.end_offset)
                continue
            try:
                records = decode_all(name.file, read_checkpoint_file(self.storage, self.files.name, name).values)
            except BadCheckpoint as error:
                reason = str(error)
                self._error(name, f"it cannot be read: {error}")
                continue
            except FileNotFoundError:
                # A running server removes older snapshots.
                continue
            if start > 0 and not self.from_offset:
                for record in records:
                    self.core.replay(self.core.metadata_log, name.end_offset - 1, None, record)
                self.from_offset = name.end_offset
            elif self.is_ours:
                # A broker's snapshot has more records than kcoord's registry, and begins with those of the formatting.
                self.names.append(name)
        if start > 0 and not self.from_offset:
            self.is_whole = False
            damage = no_base(self.files.path, start, names, reason)
            self.findings.error(CHECK, self.files.name, damage.reason, damage.file, -1, start)

    def before(self, offset: int) -> None:
        """Called after the log's records below `offset` were replayed."""
        while self.names and self.names[0].end_offset <= offset:
            self._compare(self.names.pop(0))

    def finish(self, end_offset: int, is_damaged: bool) -> None:
        """Called after all readable records of the log were replayed."""
        if is_damaged:
            return
        self.before(end_offset)
        if not self.is_running:
            for name in self.names:
                self._error(name, f"the log ends at {end_offset}")

    def _compare(self, name: CheckpointName) -> None:
        try:
            found = read_checkpoint_file(self.storage, self.files.name, name)
            records = decode_all(name.file, found.values)
        except (BadCheckpoint, FileNotFoundError):
            return  # reported before, or removed since
        core = Core(CoreConfig())
        for record in records:
            core.replay(core.metadata_log, name.end_offset - 1, None, record)
        log_says = dict.fromkeys(self.core.topics.digest_lines())
        it_says = dict.fromkeys(core.topics.digest_lines())
        for line in log_says:
            if line not in it_says:
                self._error(name, f"it lacks a record of the log: {line}")
        for line in it_says:
            if line not in log_says:
                self._error(name, f"it has a record that is not in the log: {line}")
