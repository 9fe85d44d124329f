"""The commits: which appends become durable together, and under which number.

Everything that is appended between two writes is one commit. Commits are numbered from 1, in the order of their
writes, and these numbers determine the state of each:

    durable_seq  <=  the commit in flight  <  open_seq

- `open_seq` is the commit that collects appends now. It grows by one with each write, and never otherwise.
- At most one commit is in flight: it is written, and threads sync its files. Meanwhile, appends go into the open
  commit, which waits for the commit in flight. So commits become durable in the order of their numbers, and
  `durable_seq` is always `open_seq - 1` or `open_seq - 2`.
- `durable_seq` grows when all files of a commit are synced; if log.sync promises only a write, when it is written.

Why one number is enough: an answer may depend on records in several logs. A commit covers all logs, and a later commit
is never durable before an earlier one. So "all records up to this append are durable" is the same as "this commit is
durable", and an answer that waits for one number waits for everything that was appended before it, in any log.

Records that nobody waits for, and that a crash may lose (`Outcome.may_wait`), need no commit of their own. `may_hold`
returns true while the open commit has nothing else. The server then delays the write a little, so that they go with the
next records. Once an answer or an event waits for the open commit (`is_awaited`), it is not held any more.

A failed write or sync is final: the journal remembers it, `check_failure` raises from then on, and the numbers no
longer change. So a response that waits for a failed commit is never released (see outbox.py).
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.outcome import LogId, TransactionalProducer
from kcoord.engine.coordinator_log import CoordinatorLog, EncodedRecords
from kcoord.engine.partitions import PartitionTable
from kcoord.log.directory import LogDirectory
from kcoord.log.errors import JournalFailed
from kcoord.log.journal import CommitTicket, Journal

# If the open commit has more bytes, requests that append wait until it is written. Even with one more batch of up to
# 64 MiB, a commit then stays below the size that recovery accepts as a torn tail.
COMMIT_BYTES_TARGET: Final = 12 * 1024 * 1024


@final
class Commits:
    """The coordinator logs with their open batches, and the numbers of commits."""

    def __init__(self, journal: Journal, table: PartitionTable, directory: LogDirectory, batch_bytes_max: int) -> None:
        self.journal = journal
        self.directory = directory
        self.batch_bytes_max = batch_bytes_max
        self.table = table
        self.logs: dict[LogId, CoordinatorLog] = {}
        # How much was appended to coordinator logs since the last write.
        self.open_bytes = 0
        self.bytes_target = COMMIT_BYTES_TARGET
        self.open_seq = 1
        self.durable_seq = 0
        self.in_flight: CommitTicket | None = None
        # Whether an answer or an event waits for the open commit, whatever is in it.
        self.is_awaited = False

    def open_log(self, log_id: LogId) -> None:
        """Write to one of the coordinator's own logs from now on. It is loaded, and its partition is served."""
        log = self.directory.get(log_id.topic, log_id.partition)
        if log is None:
            raise RuntimeError(f"{log_id} has no directory")
        partition = self.table.find(log_id.topic, log_id.partition)
        self.logs[log_id] = CoordinatorLog(log_id, log, partition, self.journal, self.batch_bytes_max)

    def append(
        self, log: CoordinatorLog, encoded: EncodedRecords, wall_ms: int, producer: TransactionalProducer | None = None
    ) -> int:
        """Append records to the open batch of their log, or as a transactional batch; the offset of the first one."""
        self.open_bytes += encoded.size_bytes
        return log.append(encoded, wall_ms, producer)

    def is_full(self) -> bool:
        """Whether requests that append have to wait until the open commit is written."""
        return self.unwritten_bytes() > self.bytes_target

    def unwritten_bytes(self) -> int:
        """The size of what was appended since the last write."""
        return self.open_bytes + self.journal.pending_bytes

    def write(self) -> bool:
        """Close all open batches and write them; whether there was anything to write.

        No commit may be in flight. Afterwards one is, unless what was written is durable already.
        """
        for log in self.logs.values():
            log.close_batch()
            if log.take_closed() and log.partition is not None:
                self.table.note_append(log.partition)
            log.written_end = log.next_offset
        if not self.journal.has_pending:
            return False
        self.in_flight = self.journal.write()
        self.open_seq += 1
        self.open_bytes = 0
        self.is_awaited = False
        if self.in_flight is None:
            self.durable_seq = self.open_seq - 1
        return True

    def complete(self, ticket: CommitTicket) -> None:
        """The files of the commit in flight are synced."""
        self.journal.complete(ticket)
        self.in_flight = None
        self.durable_seq = self.open_seq - 1

    def has_unwritten(self) -> bool:
        """Whether another write would have something to write."""
        if self.journal.has_pending:
            return True
        for log in self.logs.values():
            if log.builder.count > 0:
                return True
        return False

    def may_hold(self) -> bool:
        """Whether the open commit has nothing, or only records that may wait for the next commit."""
        if self.is_awaited or self.journal.has_pending:
            return False
        for log in self.logs.values():
            if log.is_urgent():
                return False
        return True

    def seq_of(self, log_id: LogId, offset: int) -> int:
        """The commit after which a log is durable up to `offset`; 0 when it is already."""
        log = self.logs[log_id]
        if offset <= log.log.durable_end:
            return 0
        if offset <= log.written_end:
            return self.open_seq - 1
        self.is_awaited = True
        return self.open_seq

    def last_seq(self) -> int:
        """The commit after which everything appended to the journal so far is durable; 0 when it is already."""
        if self.journal.has_pending:
            return self.open_seq
        if self.in_flight is not None:
            return self.open_seq - 1
        return 0

    def newest_seq(self) -> int:
        """Like last_seq, but including what coordinator logs have in their open batches."""
        if not self.has_unwritten():
            return self.last_seq()
        self.is_awaited = True
        return self.open_seq

    def has_failed(self) -> bool:
        """Whether storing anything failed."""
        return self.journal.failure is not None

    def check_failure(self) -> None:
        """Raises JournalFailed once storing anything has failed: nothing is handled or answered any more."""
        if self.journal.failure is not None:
            raise JournalFailed(self.journal.failure)
