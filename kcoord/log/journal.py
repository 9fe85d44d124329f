"""Group commit over all logs of a directory.

The engine appends through a loop turn, then `write()` hands everything to the operating system with one call
per log. Under `always` that gives a ticket: its syncs may run in any threads, in parallel; when all are done,
`complete` moves the durable ends, and the next write takes what arrived meanwhile. One ticket is in flight at
a time. Under `os` and `memory` the durable ends move with the write. Under `os`, too, a write that closes a segment
gives a ticket: the old segment is synced before anything of the new one is written (see log_write). So does one that
has to write the starts of logs: their file replaces the old one, so it is synced whatever `log.sync` says.

Fail-stop: after a failed write or sync nothing is written, acknowledged or tried again; what the disk holds is
found out by opening the directory anew.
"""

from __future__ import annotations

from typing import Final

from kcoord.log.directory import DeletedLog, LogDirectory, Marks, StartsWrite
from kcoord.log.errors import JournalFailed, LogError, SyncFailed, WriteFailed
from kcoord.log.log_write import LogWrite
from kcoord.log.partition_log import PartitionLog
from kcoord.log.segment import Segment
from kcoord.log.storage import DirectorySync, Syncable

SYNC_ALWAYS: Final = "always"
SYNC_OS: Final = "os"
SYNC_MEMORY: Final = "memory"
SYNC_MODES: Final = (SYNC_ALWAYS, SYNC_OS, SYNC_MEMORY)

CHECKPOINT_INTERVAL_MS: Final = 1000
# Under `os`, with more logs written than files can be held open: how many files a ticket syncs so that they may close.
FREED_FILES: Final = 16


class CommitTicket:
    """One commit on its way to the disk: what to sync, and the log ends that are durable after that."""

    def __init__(self, sequence: int, syncs: list[Syncable], ends: list[tuple[PartitionLog, int]]) -> None:
        self.sequence = sequence
        self.syncs = syncs
        self.ends = ends
        # Under `os`: segments that the ticket syncs so that their files may be closed.
        self.freed: list[Segment] = []

    def sync(self) -> None:
        """Sync everything one after the other, in whatever thread. Raises SyncFailed."""
        for item in self.syncs:
            sync_one(item)


def sync_one(item: Syncable) -> None:
    """Sync one item of a ticket; the items of a ticket may run in parallel. Raises SyncFailed."""
    try:
        item.datasync()
    except OSError as error:
        raise SyncFailed(f"sync failed: {error}") from error


def _once(syncs: list[Syncable]) -> list[Syncable]:
    """The same, but the root is synced once, however many logs ask for it."""
    is_root = [isinstance(item, DirectorySync) and not item.path for item in syncs]
    first = is_root.index(True) if True in is_root else -1
    return [item for i, item in enumerate(syncs) if not is_root[i] or i == first]


class Journal:
    """Group commit, see the module. `sequence` counts the commits written so far."""

    def __init__(self, directory: LogDirectory, sync_mode: str) -> None:
        if sync_mode not in SYNC_MODES:
            raise ValueError(f"log.sync = {sync_mode}")
        self.directory = directory
        self.sync_mode = sync_mode
        self.sequence = 0
        self.failure: str | None = None
        # In order of their first append; as keys, so that a deleted one is found at once.
        self._dirty: dict[PartitionLog, None] = {}
        self._in_flight: CommitTicket | None = None
        self._pending_bytes = 0
        self._to_close: list[PartitionLog] = []
        self._checkpoint_at_ms: int | None = None
        self._unmarked = False
        self._rolled = False

    @property
    def in_flight(self) -> bool:
        return self._in_flight is not None

    @property
    def has_pending(self) -> bool:
        return bool(self._dirty or self.directory.pending_syncs or self.directory.starts_moved)

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet written."""
        return self._pending_bytes

    def append(
        self,
        log: PartitionLog,
        batch: bytes,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        leader_epoch: int = 0,
    ) -> None:
        """Append a batch to `log`; write takes it to the file. Raises JournalFailed after a failure."""
        if self.failure is not None:
            raise JournalFailed(self.failure)
        log.append(batch, base_offset, last_offset, max_timestamp, leader_epoch)
        self._pending_bytes += len(batch)
        if not log.dirty:
            log.dirty = True
            self._dirty[log] = None

    def roll(self, log: PartitionLog) -> None:
        """Begin a new segment of `log` with the next write. Raises JournalFailed after a failure."""
        if self.failure is not None:
            raise JournalFailed(self.failure)
        if log.roll() and not log.dirty:
            log.dirty = True
            self._dirty[log] = None

    def write(self) -> CommitTicket | None:
        """Write everything appended. The ticket to sync and complete, or None when it is durable already.

        Must not be called while a ticket is in flight. Raises WriteFailed, SyncFailed.
        """
        if self.failure is not None:
            raise JournalFailed(self.failure)
        if self._in_flight is not None:
            raise ValueError("a commit is in flight")
        if not self.has_pending:
            return None
        syncs = self.directory.take_pending_syncs()
        ends: list[tuple[PartitionLog, int]] = []
        try:
            if self.sync_mode == SYNC_ALWAYS:
                self.directory.allow_commits(self._dirty)
            for log in self._dirty:
                syncs += log.write_pending(self.sync_mode == SYNC_ALWAYS)
                ends.append((log, log.end_offset))
                log.dirty = False
        except OSError as error:
            raise self._fail(WriteFailed(f"write failed: {error}")) from error
        except LogError as error:
            raise self._fail(error) from error
        self._dirty = {}
        self._pending_bytes = 0
        self.sequence += 1
        ticket = CommitTicket(self.sequence, syncs, ends)
        if self.sync_mode != SYNC_ALWAYS:
            ticket.syncs = [item for item in syncs if isinstance(item, LogWrite | StartsWrite)]
            if self.sync_mode == SYNC_MEMORY:
                ticket.sync()
                ticket.syncs = []
            if not ticket.syncs:
                self._settle(ticket)
                return None
            self._free_files(ticket)
        ticket.syncs = _once(ticket.syncs)
        self._in_flight = ticket
        return ticket

    def _free_files(self, ticket: CommitTicket) -> None:
        files = self.directory.files
        if any(len(item.writes) == 1 for item in ticket.syncs if isinstance(item, LogWrite)):
            ticket.freed = files.oldest_held(FREED_FILES)
            ticket.syncs += [segment.file() for segment in ticket.freed]

    def _settle(self, ticket: CommitTicket) -> None:
        """Everything that the ticket has to sync is: move the ends."""
        for segment in ticket.freed:
            segment.release()
        for log, end in ticket.ends:
            log.end_write()
            log.durable_end = end
            if self.sync_mode == SYNC_ALWAYS:
                log.synced_end = end
            if log.rolled:
                log.rolled = False
                self._rolled = True

    def complete(self, ticket: CommitTicket) -> None:
        """All syncs of `ticket` are done: its ends are durable."""
        if ticket is not self._in_flight:
            raise ValueError("that commit is not in flight")
        if self.failure is not None:
            raise JournalFailed(self.failure)
        self._settle(ticket)
        if self.sync_mode == SYNC_ALWAYS:
            self._unmarked = self._unmarked or bool(ticket.ends)
        self._in_flight = None
        self._close_deleted()

    def fail(self, error: BaseException) -> None:
        """A sync of the ticket in flight, or anything else of the log, failed: refuse everything from now on."""
        self._fail(error)

    def _fail(self, error: BaseException) -> BaseException:
        if self.failure is None:
            self.failure = str(error)
        return error

    def commit(self) -> None:
        """Write, sync and complete, waiting for the disk: for start-up, tests and tools."""
        ticket = self.write()
        if ticket is None:
            return
        try:
            ticket.sync()
        except SyncFailed as error:
            self.fail(error)
            raise
        self.complete(ticket)

    # --- deleting

    def delete_log(self, topic: str, partition: int) -> DeletedLog | None:
        """Delete a log, also while a commit is in flight: its files are closed after that.

        None where it has no files.
        """
        log = self.directory.get(topic, partition)
        if log is None:
            raise ValueError(f"no log {topic}-{partition}")
        if log.dirty:
            log.dirty = False
            self._dirty.pop(log, None)
        deleted = self.directory.delete_log(topic, partition, close=False)
        self._to_close.append(log)
        if self._in_flight is None:
            self._close_deleted()
        return deleted

    def _close_deleted(self) -> None:
        for log in self._to_close:
            log.close(save=False)
        self._to_close = []

    # --- the durable marks

    def checkpoint_due(self, now_ms: int) -> bool:
        """Whether the recovery points should be written: each second while they move, and after a roll."""
        if self.failure is not None or not (self._unmarked or self._rolled):
            return False
        if self._rolled or self._checkpoint_at_ms is None:
            return True
        return now_ms - self._checkpoint_at_ms >= CHECKPOINT_INTERVAL_MS

    def begin_checkpoint(self, now_ms: int) -> Marks:
        """The marks to write with `directory.write_recovery_points(marks)`, which may run in a thread."""
        self._checkpoint_at_ms = now_ms
        self._unmarked = False
        self._rolled = False
        return self.directory.take_marks()

    def checkpoint(self, now_ms: int) -> None:
        """Write the marks here and now. Raises SyncFailed."""
        try:
            self.directory.write_recovery_points(self.begin_checkpoint(now_ms))
        except OSError as error:
            raise self._fail(SyncFailed(f"recovery points not written: {error}")) from error

    def close(self, clean: bool = True) -> None:
        """Stop: with `clean` all is written, synced and marked, unless the journal failed before."""
        clean = clean and self.failure is None and self._in_flight is None
        self._close_deleted()
        self._dirty = {}
        try:
            self.directory.close(clean)
        except OSError as error:
            raise self._fail(WriteFailed(f"not stopped cleanly: {error}")) from error
        if self.failure is None:
            self.failure = "the log is closed"
