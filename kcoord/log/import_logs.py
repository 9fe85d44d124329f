"""Coordinator logs of a broker become ours: every record to the partition of its group or transactional id.

Records keep their bytes, their headers, their timestamps and, among those of one key, their order. A transaction's
offset commits are written where it committed, as plain commits, since that is what they are from then on; those of
an aborted one are left out. A transaction without a marker at the log's end counts as its coordinator had decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, final

from kcoord.log.cluster_image import DECOMPRESSED_BYTES_MAX, durable_batches
from kcoord.log.errors import LogDamaged
from kcoord.log.import_report import ImportReport
from kcoord.log.inspect import PartitionFiles
from kcoord.log.journal import Journal
from kcoord.log.partition_log import PartitionLog
from kcoord.log.reader import StoredBatch
from kcoord.log.serde import decode_record, decode_transaction_record
from kcoord.log.steps import Step, watched
from kcoord.protocol.records.transaction_log import TransactionLogValue
from kcoord.wire.compression import DecompressionError
from kcoord.wire.primitives import DecodeError, Reader
from kcoord.wire.record_batch import BatchBuilder, Record

BATCH_BYTES_TARGET: Final = 1 << 20
# States of a transaction whose outcome is decided, and is to commit.
PREPARE_COMMIT: Final = 2
COMPLETE_COMMIT: Final = 4
COMMIT_MARKER: Final = 1

OFFSET_TYPES: Final = (0, 1)
CLASSIC_GROUP: Final = 2
# Record types by the groups they belong to.
GROUP_KINDS: Final[dict[int, str]] = {
    **dict.fromkeys((3, 4, 5, 6, 7, 8, 16), "consumer group (KIP-848) records"),
    **dict.fromkeys((10, 11, 12, 13, 14, 15), "share group records"),
    **dict.fromkeys((17, 19, 20, 21, 22, 23), "streams group records"),
}

# (id, number of partitions) -> partition, as clients compute it.
PartitionOf = Callable[[str, int], int]


@final
class LogWriter:
    """Appends records to a log, in batches of its own."""

    def __init__(self, journal: Journal, log: PartitionLog, leader_epoch: int) -> None:
        self.journal = journal
        self.log = log
        self.leader_epoch = leader_epoch
        self.builder = BatchBuilder()

    def append(self, record: Record) -> None:
        self.builder.append(record.timestamp, record.key, record.value, record.headers)
        if self.builder.size_bytes() > BATCH_BYTES_TARGET:
            self.flush()

    def flush(self) -> None:
        builder = self.builder
        if not builder.count:
            return
        base = self.log.end_offset
        batch = builder.build(base, self.leader_epoch)
        last = base + int(builder.count) - 1
        self.journal.append(self.log, batch, base, last, int(builder.max_timestamp), self.leader_epoch)
        self.journal.commit()
        self.builder = BatchBuilder()


def id_in_key(key: bytes) -> str:
    """The group or transactional id, which is the first field of every coordinator record's key.

    Raises DecodeError.
    """
    r = Reader(key)
    r.int16()
    return r.string()


def records_of(batch: StoredBatch) -> list[Record]:
    """Raises LogDamaged."""
    try:
        return batch.records(DECOMPRESSED_BYTES_MAX)
    except (DecodeError, DecompressionError) as error:
        raise LogDamaged(batch.file, batch.header.base_offset, batch.position, str(error)) from None


def is_commit(batch: StoredBatch) -> bool | None:
    """Whether a control batch commits or aborts; None for a marker of another kind."""
    for record in records_of(batch):
        if record.key is not None and len(record.key) >= 4:
            kind = int.from_bytes(record.key[2:4], "big")
            if kind in (0, COMMIT_MARKER):
                return kind == COMMIT_MARKER
    return None


@final
class TransactionLogs:
    """What `__transaction_state` says, besides what is copied of it."""

    def __init__(self) -> None:
        # Producer ids (with epochs) whose transaction is decided and to be committed.
        self.committed: set[tuple[int, int]] = set()
        self.producer_id_max = -1
        self._by_id: dict[str, TransactionLogValue | None] = {}

    def note(self, transactional_id: str, value: TransactionLogValue | None) -> None:
        self._by_id[transactional_id] = value
        if value is not None:
            self.producer_id_max = max(self.producer_id_max, value.producer_id, value.next_producer_id)

    def finish(self, report: ImportReport) -> None:
        for value in self._by_id.values():
            if value is None:
                continue
            report.kept["transactional ids"] += 1
            if value.transaction_status in (PREPARE_COMMIT, COMPLETE_COMMIT):
                self.committed.add((value.producer_id, value.producer_epoch))
        self._by_id.clear()


def import_transaction_logs(
    sources: Iterable[tuple[PartitionFiles, int]],
    writers: list[LogWriter],
    partition_of: PartitionOf,
    report: ImportReport,
    step: Step,
) -> TransactionLogs:
    """Copy the records of `__transaction_state`; each source comes with its first offset.

    Without `writers` they are only looked at. Raises LogDamaged and OSError.
    """
    found = TransactionLogs()
    torn: list[int] = []
    for files, start in sources:
        for batch in watched(durable_batches(files, start, torn), step):
            if batch.header.is_control:
                report.left_out["markers in coordinator logs"] += batch.header.count
                report.records_read += batch.header.count
                continue
            for record in records_of(batch):
                if record.offset < start:
                    continue
                report.records_read += 1
                if record.key is None:
                    report.left_out["coordinator records without a key"] += 1
                    continue
                try:
                    transactional_id = id_in_key(record.key)
                    _key, value = decode_transaction_record(record.key, record.value)
                except DecodeError:
                    report.left_out["transaction records that cannot be read"] += 1
                    continue
                if value is None or isinstance(value, TransactionLogValue):
                    found.note(transactional_id, value)
                if writers:
                    writers[partition_of(transactional_id, len(writers))].append(record)
                    report.kept["transaction records"] += 1
    report.left_out["bytes at torn ends of logs"] += sum(torn)
    found.finish(report)
    return found


@final
class OffsetsImport:
    """Merges the partitions of `__consumer_offsets`; see the module."""

    def __init__(
        self,
        writers: list[LogWriter],
        partition_of: PartitionOf,
        committed: set[tuple[int, int]],
        report: ImportReport,
    ) -> None:
        self.writers = writers
        self.partition_of = partition_of
        self.committed = committed
        self.report = report
        # Of the partition that is being read: records of open transactions by producer id and epoch, and by key.
        self.open: dict[tuple[int, int], dict[bytes, Record]] = {}
        # What is there now: the type of the newest record by key; tombstones leave none.
        self.live: dict[bytes, int] = {}

    def read(self, files: PartitionFiles, start: int, step: Step) -> None:
        """Take one source partition, from its first offset on. Raises LogDamaged and OSError."""
        self.open = {}
        torn: list[int] = []
        for batch in watched(durable_batches(files, start, torn), step):
            header = batch.header
            producer = (int(header.producer_id), int(header.producer_epoch))
            if header.is_control:
                self.report.records_read += header.count
                self.report.left_out["markers in coordinator logs"] += header.count
                self._end(producer[0], is_commit(batch))
                continue
            for record in records_of(batch):
                if record.offset < start:
                    continue
                self.report.records_read += 1
                if record.key is None:
                    self.report.left_out["coordinator records without a key"] += 1
                elif header.is_transactional:
                    self._hold(producer, record.key, record)
                else:
                    self._supersede(record.key, record.offset)
                    self._take(record.key, record)
        self.report.left_out["bytes at torn ends of logs"] += sum(torn)
        for producer in list(self.open):
            if producer in self.committed:
                self.report.notes.append(
                    f"{files.name}: the transaction of producer {producer[0]} was decided and is committed"
                )
                self._end(producer[0], True)
        for pending in self.open.values():
            self.report.left_out["offset commits of open transactions"] += len(pending)

    def _hold(self, producer: tuple[int, int], key: bytes, record: Record) -> None:
        pending = self.open.setdefault(producer, {})
        if key in pending:
            self.report.left_out["offset commits replaced in their own transaction"] += 1
        pending[key] = record

    def _supersede(self, key: bytes, offset: int) -> None:
        """A newer record of a key counts, even if a transaction with an older one commits after it."""
        for pending in self.open.values():
            older = pending.get(key)
            if older is not None and older.offset < offset:
                del pending[key]
                self.report.left_out["offset commits replaced before their transaction ended"] += 1

    def _end(self, producer_id: int, commit: bool | None) -> None:
        # A marker may carry a newer epoch than what it ends (KIP-890).
        for producer in [p for p in self.open if p[0] == producer_id]:
            pending = self.open.pop(producer)
            if not commit:
                self.report.left_out["offset commits of aborted transactions"] += len(pending)
                continue
            for key, record in pending.items():
                self._supersede(key, record.offset)
                self._take(key, record)
                self.report.taken["offset commits of committed transactions"] += 1

    def _take(self, key: bytes, record: Record) -> None:
        """Write a record to where its group lives, and count it."""
        kind = int.from_bytes(key[:2], "big", signed=True) if len(key) >= 2 else -1
        try:
            group = id_in_key(key)
            decode_record(key, record.value)
        except DecodeError as error:
            # The server could not start with it.
            self.report.left_out["coordinator records that cannot be read"] += 1
            self.report.notes.append(f"a record of type {kind} is left out: {error}")
            return
        self.writers[self.partition_of(group, len(self.writers))].append(record)
        if record.value is None:
            self.live.pop(key, None)
        else:
            self.live[key] = kind
        if kind in OFFSET_TYPES:
            self.report.taken["offset commit records"] += 1
        elif kind == CLASSIC_GROUP:
            self.report.taken["group records"] += 1
        else:
            self.report.kept[GROUP_KINDS.get(kind, f"coordinator records of type {kind}")] += 1

    def finish(self) -> None:
        """Count what is there in the end."""
        kinds = list(self.live.values())
        self.report.taken["committed offsets"] = sum(kind in OFFSET_TYPES for kind in kinds)
        self.report.taken["classic groups"] = kinds.count(CLASSIC_GROUP)
        for kind, name in (
            (3, "consumer groups (KIP-848)"), (11, "share groups"), (17, "streams groups"),
        ):  # fmt: skip
            count = kinds.count(kind)
            if count:
                self.report.kept[name] = count
        for writer in self.writers:
            writer.flush()
