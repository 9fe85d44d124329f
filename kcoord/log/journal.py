"""Group commit over all logs of a directory.

The engine appends during a turn of the event loop. Then `write` passes everything to the operating system with one call
per log. Under `always` it returns a ticket, whose syncs may run in parallel in any threads. After the last of them
`complete` moves the durable ends, and the next `write` takes the batches that arrived in the meantime.

The order of a commit, and why:

1. `write` makes `kcoord-commit-bytes` durable before the first byte is written: after a crash, recovery uses it to
   distinguish a torn write from damage.
2. It writes each log and collects everything that must be synced: files, directories, log starts.
3. One ticket is in flight at a time. So the ends of a log become durable in the order of its offsets, and a failed
   sync concerns exactly one commit.
4. `complete` moves the durable ends only after every sync of the ticket has returned. The engine releases responses
   after that, so an acknowledged record is on disk.

Under `os` and `memory` the durable ends move with the write. There are three exceptions under `os`. A write that closes
a segment returns a ticket, because the old segment must be synced before the files of the new one exist (see
log_write). So does a write that changes log starts: their file replaces the old one, so it is always synced. And so
does one with records that a power cut must not take back while it keeps others (`sync_next`). A thread syncs what a log
writes every AHEAD_BYTES, one log after the other, so that the ticket of a closed segment takes milliseconds.

Fail-stop: after a failed write or sync nothing is written, acknowledged or retried. The operating system may have
dropped the pages, so a second sync that succeeds would prove nothing. The next start determines what the disk holds.
"""

from __future__ import annotations

from typing import Final

from kcoord.log.directory import DeletedLog, LogDirectory, Marks, StartsWrite
from kcoord.log.errors import JournalFailed, LogError, SyncFailed, WriteFailed
from kcoord.log.log_write import LogWrite
from kcoord.log.open_files import Owner
from kcoord.log.partition_log import PartitionLog
from kcoord.log.storage import DirectorySync, DiskFile, Syncable
from kcoord.wire.causes import caused_by

SYNC_ALWAYS: Final = "always"
SYNC_OS: Final = "os"
SYNC_MEMORY: Final = "memory"
SYNC_MODES: Final = (SYNC_ALWAYS, SYNC_OS, SYNC_MEMORY)

CHECKPOINT_INTERVAL_MS: Final = 1000
# Under `os`, what a log may write until it is synced in the background, so that there is little left to sync when its
# segment is closed: answers wait for that.
AHEAD_BYTES: Final = 2 << 20
# Under `os`, if more logs are written than files can be held open: how many files a ticket syncs to close them.
FREED_FILES: Final = 16


class CommitTicket:
    """One commit in flight: what to sync, and the log ends that are durable afterwards."""

    def __init__(self, syncs: list[Syncable], ends: list[tuple[PartitionLog, int]]) -> None:
        self.syncs = syncs
        self.ends = ends
        # Under `os`: segments that the ticket syncs so that their files can be closed.
        self.freed: list[Owner] = []

    def sync(self) -> None:
        """Sync all items one after the other, in any thread. Raises SyncFailed."""
        for item in self.syncs:
            sync_one(item)

    def only_descriptor(self) -> int:
        """The descriptor of the file if all there is to sync is one file on disk; -1 otherwise."""
        if len(self.syncs) == 1:
            item = self.syncs[0]
            if isinstance(item, DiskFile):
                return item.descriptor
        return -1


def sync_one(item: Syncable) -> None:
    """Sync one item of a ticket; several items may be synced in parallel. Raises SyncFailed."""
    try:
        item.datasync()
    except OSError as error:
        raise caused_by(sync_error(error), error) from error


def sync_error(error: OSError) -> SyncFailed:
    return SyncFailed(f"sync failed: {error}")


def _once(syncs: list[Syncable]) -> list[Syncable]:
    """The same items, but with a single sync of the root directory, however many logs require one."""
    is_root = [isinstance(item, DirectorySync) and not item.path for item in syncs]
    first = is_root.index(True) if True in is_root else -1
    return [item for i, item in enumerate(syncs) if not is_root[i] or i == first]


class Journal:
    """Group commit, see the module docstring."""

    def __init__(self, directory: LogDirectory, sync_mode: str) -> None:
        if sync_mode not in SYNC_MODES:
            raise ValueError(f"log.sync = {sync_mode}")
        self.directory = directory
        self.sync_mode = sync_mode
        self.failure: str | None = None
        # The logs to write, in order of their first append. A dict, so that deleting a log removes it in constant time.
        self._dirty: dict[PartitionLog, None] = {}
        self._in_flight: CommitTicket | None = None
        self._pending_bytes = 0
        self._to_close: list[PartitionLog] = []
        self._checkpoint_at_ms: int | None = None
        self._unmarked = False
        self._rolled = False
        # Under `os`: the logs that the next write syncs.
        self._synced_next: dict[PartitionLog, None] = {}
        # The logs to sync in the background; the first one has waited longest.
        self._ahead: dict[PartitionLog, None] = {}

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
        """Append a batch to `log` in memory; `write` writes it. Raises JournalFailed after a failure."""
        if self.failure is not None:
            raise JournalFailed(self.failure)
        log.append(batch, base_offset, last_offset, max_timestamp, leader_epoch)
        self._pending_bytes += len(batch)
        log.ahead_bytes += len(batch)
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

    def sync_next(self, log: PartitionLog) -> None:
        """Let the next write sync this log also under `os`."""
        if self.sync_mode == SYNC_OS:
            self._synced_next[log] = None

    def write(self) -> CommitTicket | None:
        """Write everything appended. Returns the ticket to sync and complete, or None if it is durable already.

        Must not be called while a ticket is in flight. Raises WriteFailed, SyncFailed.
        """
        if self.failure is not None:
            raise JournalFailed(self.failure)
        if self._in_flight is not None:
            raise ValueError("a commit is in flight")
        if self.sync_mode != SYNC_ALWAYS and not self._synced_next and self._write_plainly():
            return None
        if not self.has_pending:
            return None
        syncs = self.directory.take_pending_syncs()
        wanted: list[Syncable] = []
        ends: list[tuple[PartitionLog, int]] = []
        try:
            if self.sync_mode == SYNC_ALWAYS:
                # Before the first byte: recovery needs the bound if a crash tears this very write.
                self.directory.allow_commits(self._dirty)
            for log in self._dirty:
                if log in self._synced_next:
                    wanted += log.write_pending()
                else:
                    syncs += log.write_pending(self.sync_mode == SYNC_ALWAYS)
                # The end as of this write: batches appended while the ticket is in flight belong to the next commit.
                ends.append((log, log.end_offset))
                log.dirty = False
                if log.ahead_bytes >= AHEAD_BYTES:
                    self._note_ahead(log)
        except OSError as error:
            raise self._fail(caused_by(WriteFailed(f"write failed: {error}"), error)) from error
        except LogError as fault:
            self._fail(fault)
            raise
        self._dirty = {}
        self._synced_next = {}
        self._pending_bytes = 0
        ticket = CommitTicket(syncs, ends)
        if self.sync_mode != SYNC_ALWAYS:
            ticket.syncs = [item for item in syncs if isinstance(item, LogWrite | StartsWrite)] + wanted
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

    def _write_plainly(self) -> bool:
        """Without syncs, most writes are those of a single log: the usual case in short. False: it is not that one."""
        directory = self.directory
        if len(self._dirty) != 1 or directory.pending_syncs or directory.starts_moved:
            return False
        try:
            for log in self._dirty:
                if not log.write_plainly():
                    return False
                log.dirty = False
                if log.ahead_bytes >= AHEAD_BYTES:
                    self._note_ahead(log)
        except OSError as error:
            raise self._fail(caused_by(WriteFailed(f"write failed: {error}"), error)) from error
        self._dirty.clear()
        self._pending_bytes = 0
        return True

    def _note_ahead(self, log: PartitionLog) -> None:
        """The log has written a lot: let its file be synced before anybody waits for that."""
        log.ahead_bytes = 0
        if self.sync_mode == SYNC_OS:
            self._ahead[log] = None

    def take_ahead(self) -> Syncable | None:
        """A file to sync in the background; None if there is none. A failure is one of the log: call `fail`."""
        if not self._ahead:
            return None
        for log in list(self._ahead):
            del self._ahead[log]
            file = log.share_active()
            if file is not None:
                return file
        return None

    def _free_files(self, ticket: CommitTicket) -> None:
        files = self.directory.files
        if any(len(item.writes) == 1 for item in ticket.syncs if isinstance(item, LogWrite)):
            ticket.freed = files.oldest_held(FREED_FILES)
            ticket.syncs += [segment.file() for segment in ticket.freed]

    def _settle(self, ticket: CommitTicket) -> None:
        """All syncs of the ticket are done: move the ends."""
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
        """Move the durable ends. Call this only after every sync of `ticket` has succeeded."""
        if ticket is not self._in_flight:
            raise ValueError("that commit is not in flight")
        if self.failure is not None:
            raise JournalFailed(self.failure)
        self._settle(ticket)
        if self.sync_mode == SYNC_ALWAYS:
            self._unmarked = self._unmarked or bool(ticket.ends)
        self._in_flight = None
        # Only now: a sync of this ticket may have used the files of a deleted log.
        self._close_deleted()

    def fail(self, error: BaseException) -> None:
        """Record that a sync or another operation of the log failed: from now on every call is refused."""
        self._fail(error)

    def _fail(self, error: BaseException) -> BaseException:
        if self.failure is None:
            self.failure = str(error)
        return error

    def commit(self) -> None:
        """Write, sync and complete in one call. Waits for the disk: only for start-up, tests and tools."""
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
        """Delete a log. If a commit is in flight, the files are closed after it. Returns None if it has no files."""
        log = self.directory.get(topic, partition)
        if log is None:
            raise ValueError(f"no log {topic}-{partition}")
        if log.dirty:
            log.dirty = False
            self._dirty.pop(log, None)
        self._ahead.pop(log, None)
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
        """Whether to write the recovery points: each second while they move, and after a roll."""
        if self.failure is not None or not (self._unmarked or self._rolled):
            return False
        if self._rolled or self._checkpoint_at_ms is None:
            return True
        return now_ms - self._checkpoint_at_ms >= CHECKPOINT_INTERVAL_MS

    def begin_checkpoint(self, now_ms: int) -> Marks:
        """Returns the marks for `directory.write_recovery_points(marks)`, which may run in a thread."""
        self._checkpoint_at_ms = now_ms
        self._unmarked = False
        self._rolled = False
        return self.directory.take_marks()

    def close(self, clean: bool = True) -> None:
        """Close the log. With `clean` everything is written, synced and marked clean, unless the journal failed."""
        clean = clean and self.failure is None and self._in_flight is None
        self._close_deleted()
        self._dirty = {}
        try:
            self.directory.close(clean)
        except OSError as error:
            raise self._fail(caused_by(WriteFailed(f"the clean stop failed: {error}"), error)) from error
        if self.failure is None:
            self.failure = "the log is closed"
