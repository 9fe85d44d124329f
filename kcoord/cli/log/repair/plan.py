"""The repairs of `kcoord log repair`: planned first, then executed one by one.

A log is truncated before its first unreadable byte; the removed bytes are kept next to it. The order of the steps
matters: later segments are put aside starting with the last one, then the damaged segment is truncated, then the marks
are lowered. So a crash leaves either the old state or a log that repair reports again, never one that opens with
records missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, final

from kcoord.cli.log.verify.findings import Findings
from kcoord.cli.log.verify.index_checks import IndexChecks
from kcoord.cli.log.verify.transaction_checks import TransactionChecks
from kcoord.log.aborted import rebuild_indexes
from kcoord.log.directory import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS, encode_checkpoint
from kcoord.log.errors import StorageError
from kcoord.log.inspect import (
    CLEANER_OFFSETS,
    Checkpoint,
    DataDirectory,
    PartitionFiles,
    SegmentFile,
    read_checkpoint,
)
from kcoord.log.log_config import LogConfig
from kcoord.log.lost_logs import lost_logs
from kcoord.log.reader import DamagedBytes
from kcoord.log.segment import segment_name
from kcoord.log.state_file import STATE_FILE, known_end, state_path
from kcoord.log.storage import DiskStorage, File

CHECKPOINTS: Final = (RECOVERY_POINTS, LOG_START_OFFSETS, CLEANER_OFFSETS, HIGH_WATERMARKS)
SEGMENT_SUFFIXES: Final = (".index", ".timeindex", ".txnindex", ".snapshot")
TEMPORARY_SUFFIX: Final = ".repaired"
COPY_BYTES: Final = 1 << 20

Step = Callable[[int], None]


@final
class Repair:
    """One repair. `kept` are the files with the removed bytes, known once it was executed."""

    def __init__(self, action: str, log: str, file: str, position: int, offset: int, reason: str) -> None:
        self.action = action
        self.log = log
        self.file = file
        self.position = position
        self.offset = offset
        self.reason = reason
        self.bytes = 0
        # For a cut: the readable records after the damage, which are removed, too, and the segments after this one.
        self.records = 0
        self.later: list[str] = []
        self.kept: list[str] = []

    def plain(self) -> dict[str, Any]:
        return {
            "action": self.action,
            "log": self.log,
            "file": self.file,
            "position": self.position,
            "offset": self.offset,
            "bytes": self.bytes,
            "readable_records": self.records,
            "later_segments": self.later,
            "reason": self.reason,
            "kept": self.kept,
        }


CUT: Final = "cut"
REBUILD_INDEX: Final = "rebuild index"
LOWER_MARK: Final = "lower mark"
# A repair that only the user can make.
PUT_BACK: Final = "put back"
REPLACE_CHECKPOINT: Final = "replace checkpoint"
# Only for the metadata log.
BEGIN_AT: Final = "begin at snapshot"
PUT_ASIDE: Final = "put aside"


def plan_checkpoints(root: str) -> list[Repair]:
    """Repairs of unreadable checkpoint files. Raises OSError."""
    repairs = []
    for name in CHECKPOINTS:
        try:
            read_checkpoint(root, name)
        except StorageError as error:
            repairs.append(Repair(REPLACE_CHECKPOINT, "", os.path.join(root, name), -1, -1, str(error)))
    return repairs


def plan_lost(directory: DataDirectory) -> list[Repair]:
    """Repairs of lost logs: durable records, but no directory. Raises OSError."""
    repairs = []
    for lost in lost_logs(directory):
        action = PUT_BACK if lost.is_metadata else LOWER_MARK
        path = os.path.join(directory.root, lost.name)
        repairs.append(Repair(action, lost.name, path, -1, 0, lost.reason))
    return repairs


def plan_log(directory: DataDirectory, files: PartitionFiles, step: Step) -> tuple[list[Repair], int]:
    """The repairs of one log, and its end offset after them. Raises OSError."""
    cut: Repair | None = None
    repairs: list[Repair] = []
    indexes: IndexChecks | None = None
    findings = Findings()
    transactions = TransactionChecks(files.name, findings)
    end = files.start_offset
    epoch = -1
    current: SegmentFile | None = None
    for item in files.batches():
        step(item.size_bytes if isinstance(item, DamagedBytes) else item.header.size)
        if cut is not None:
            if not isinstance(item, DamagedBytes):
                cut.records += item.header.count
            continue
        if current is None or item.file != current.path:
            _settle_indexes(indexes, transactions, findings, files, current, end, repairs)
            current = next(segment for segment in files.segments if segment.path == item.file)
            is_trusted = current is not files.segments[-1] or directory.was_clean
            indexes = IndexChecks(files.name, current, findings) if is_trusted else None
            epoch = -1
        if isinstance(item, DamagedBytes):
            if directory.is_unwritten(files, item):
                continue
            cut = _cut_at(files, current, item.position, max(item.next_offset, end), item.reason)
            continue
        header = item.header
        due = max(end, current.base_offset)
        if current is files.segments[-1] and (header.base_offset != due or header.leader_epoch < epoch):
            # Only damage causes this; opening a log after an unclean stop refuses it.
            reason = f"offset {header.base_offset}, epoch {header.leader_epoch} after {due - 1}, {epoch}"
            cut = _cut_at(files, current, item.position, due, reason)
            cut.records += header.count
            continue
        if indexes is not None:
            indexes.note(item.position, header)
        transactions.note(item)
        epoch = header.leader_epoch
        end = header.last_offset + 1
    if cut is not None:
        return [*repairs, cut], cut.offset
    _settle_indexes(indexes, transactions, findings, files, current, end, repairs)
    end = max(end, files.segments[-1].base_offset) if files.segments else end
    mark = directory.mark_of(files)
    if mark > end:
        reason = f"the log ends at {end}, but was synced up to {mark}: the records in between are lost"
        repairs.append(Repair(LOWER_MARK, files.name, "", -1, end, reason))
    return repairs, end


def _settle_indexes(
    indexes: IndexChecks | None,
    transactions: TransactionChecks,
    findings: Findings,
    files: PartitionFiles,
    segment: SegmentFile | None,
    end: int,
    repairs: list[Repair],
) -> None:
    if indexes is None or segment is None:
        return
    before = findings.errors
    indexes.finish(end)
    transactions.leave(segment, True)
    files_of_segment = [segment.beside(suffix) for suffix in SEGMENT_SUFFIXES[:3]]
    own = [f for f in findings.found if f.file in files_of_segment]
    if own or findings.errors > before:
        repairs.append(Repair(REBUILD_INDEX, files.name, own[0].file, -1, segment.base_offset, own[0].message))


def _cut_at(files: PartitionFiles, segment: SegmentFile, position: int, offset: int, reason: str) -> Repair:
    cut = Repair(CUT, files.name, segment.path, position, offset, reason)
    later = files.segments[files.segments.index(segment) + 1 :]
    cut.later = [other.path for other in later]
    cut.bytes = segment.size_bytes - position + sum(other.size_bytes for other in later)
    return cut


# --- execution


@final
class Repairer:
    """Changes the files. The caller holds the directory's lock. Any failure is an OSError."""

    def __init__(self, storage: DiskStorage, directory: DataDirectory) -> None:
        self.storage = storage
        self.directory = directory

    def carry_out(self, repair: Repair) -> None:
        if repair.action == CUT:
            self._cut(repair)
            self._lower_marks(repair)
        elif repair.action == LOWER_MARK:
            self._lower_marks(repair)
        elif repair.action == REBUILD_INDEX:
            self._rebuild(repair.log, repair.offset)
        elif repair.action == PUT_ASIDE:
            self._put_aside(repair.log, os.path.basename(repair.file), 0, repair)
            self.storage.sync_dir(repair.log)
        elif repair.action == BEGIN_AT:
            self._begin_at(repair)

    def _files(self, name: str) -> PartitionFiles:
        return next(files for files in self.directory.partitions if files.name == name)

    def _cut(self, repair: Repair) -> None:
        name = repair.log
        segment = os.path.basename(repair.file)
        for path in reversed(repair.later):
            self._put_aside_segment(name, os.path.basename(path), repair)
        if repair.position == 0 and not self._is_first(repair):
            # Nothing of the segment is left; the log continues with an empty segment at its base offset.
            self._put_aside_segment(name, segment, repair)
            self._make_empty(name, repair.offset)
        else:
            self._keep_tail(name, segment, repair)
            for suffix in SEGMENT_SUFFIXES[:3]:
                self._remove(f"{name}/{segment.removesuffix('.log')}{suffix}")
            self._rebuild(name, int(segment.removesuffix(".log")))
            if repair.later and repair.position:
                # A closed segment may have gaps from compaction; the active one must not have any.
                self._make_empty(name, repair.offset)
        if not 0 < known_end(self.storage, state_path(name)) <= repair.offset:
            # Otherwise it stays: compaction may have removed what it has, because of records that are cut off now.
            self._put_aside(name, STATE_FILE, 0, repair)
        self.storage.sync_dir(name)

    def _begin_at(self, repair: Repair) -> None:
        """Move the log's start to the end of a snapshot and put the segments below it aside, oldest first."""
        files = self._files(repair.log)
        try:
            starts = read_checkpoint(self.directory.root, LOG_START_OFFSETS)
        except StorageError:
            # An unreadable checkpoint file is replaced completely.
            starts = {}
        starts[(files.topic, files.partition)] = repair.offset
        self.storage.write_atomic(LOG_START_OFFSETS, encode_checkpoint(starts))
        for path in repair.later:
            self._put_aside_segment(repair.log, os.path.basename(path), repair)
        if len(repair.later) == len(files.segments):
            self._make_empty(repair.log, repair.offset)
            self._lower_marks(repair)
        self.storage.sync_dir(repair.log)

    def _is_first(self, repair: Repair) -> bool:
        return self._files(repair.log).segments[0].path == repair.file

    def _keep_tail(self, name: str, segment: str, repair: Repair) -> None:
        kept = self._free_name(name, f"{segment}.cut-{repair.position}")
        source = self.storage.open(f"{name}/{segment}")
        target = self.storage.open(kept)
        try:
            position = repair.position
            while position < source.size:
                data = source.read_at(position, COPY_BYTES)
                target.append(data)
                position += len(data)
            target.datasync()
            # The copy and its name must be durable before the original is truncated.
            self.storage.sync_dir(name)
            if os.stat(repair.file).st_nlink == 1:
                source.truncate(repair.position)
                source.datasync()
            else:
                self._replace_by_head(f"{name}/{segment}", source, repair.position)
        finally:
            source.close()
            target.close()
        repair.kept.append(os.path.join(self.directory.root, kept))

    def _replace_by_head(self, path: str, source: File, size: int) -> None:
        """Replace a file by its beginning. Not truncated in place: snapshots may share the file by hard links."""
        temporary = path + TEMPORARY_SUFFIX
        self._remove(temporary)
        head = self.storage.open(temporary)
        try:
            position = 0
            while position < size:
                data = source.read_at(position, min(COPY_BYTES, size - position))
                head.append(data)
                position += len(data)
            head.datasync()
        finally:
            head.close()
        self.storage.rename(temporary, path)

    def _put_aside_segment(self, name: str, segment: str, repair: Repair) -> None:
        stem = segment.removesuffix(".log")
        self._put_aside(name, segment, 0, repair)
        for suffix in SEGMENT_SUFFIXES:
            self._put_aside(name, stem + suffix, 0, repair)
        self.storage.sync_dir(name)

    def _put_aside(self, name: str, file: str, position: int, repair: Repair) -> None:
        if not self.storage.exists(f"{name}/{file}"):
            return
        kept = self._free_name(name, f"{file}.cut-{position}")
        self.storage.rename(f"{name}/{file}", kept)
        repair.kept.append(os.path.join(self.directory.root, kept))

    def _free_name(self, directory: str, file: str) -> str:
        prefix = f"{directory}/" if directory else ""
        number = 1
        path = prefix + file
        while self.storage.exists(path):
            number += 1
            path = f"{prefix}{file}.{number}"
        return path

    def _make_empty(self, name: str, base_offset: int) -> None:
        file = self.storage.open(f"{name}/{segment_name(base_offset)}.log")
        file.datasync()
        file.close()

    def _remove(self, path: str) -> None:
        if self.storage.exists(path):
            self.storage.remove(path)

    def _lower_marks(self, repair: Repair) -> None:
        topic, _, partition = repair.log.rpartition("-")
        key = (topic, int(partition))
        for name in CHECKPOINTS:
            try:
                entries = read_checkpoint(self.directory.root, name)
            except StorageError:
                # An unreadable checkpoint file is replaced completely.
                continue
            if entries.get(key, 0) > repair.offset:
                if repair.offset > 0:
                    entries[key] = repair.offset
                else:
                    del entries[key]
                self.storage.write_atomic(name, encode_checkpoint(entries))

    def _rebuild(self, name: str, base_offset: int) -> None:
        # A snapshot may share the files by hard links, so new files are created.
        for suffix in SEGMENT_SUFFIXES[:3]:
            self._remove(f"{name}/{segment_name(base_offset)}{suffix}")
        rebuild_indexes(self.storage, name, base_offset, LogConfig().index_interval_bytes)
        self.storage.sync_dir(name)

    def replace_checkpoint(self, repair: Repair, ends: Checkpoint) -> None:
        """Put an unreadable checkpoint file aside; the durable marks are rebuilt from the end offsets of the logs."""
        name = os.path.basename(repair.file)
        kept = self._free_name("", f"{name}.cut-0")
        self.storage.rename(name, kept)
        repair.kept.append(os.path.join(self.directory.root, kept))
        if name == RECOVERY_POINTS:
            self.storage.write_atomic(name, encode_checkpoint(ends))
        self.storage.sync_dir("")
