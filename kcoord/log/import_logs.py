"""Imports a broker's coordinator logs: writes every record to the partition of its group or transactional id.

Records keep their bytes, headers and timestamps, and records of one key keep their order. The offset commits of a
transaction are written as plain commits at the position of its commit marker, because they take effect there. Those of
an aborted transaction are left out. A transaction without a marker at the end of the log is treated as its coordinator
decided. If it is ongoing there, its offset commits are written as those of an open transaction. Its state then lists
the new partitions of `__consumer_offsets`, so that its end reaches them.
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
from kcoord.log.serde import decode_record, decode_transaction_record, encode_record
from kcoord.log.steps import Step, watched
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue
from kcoord.wire.compression import DecompressionError
from kcoord.wire.primitives import DecodeError, Reader
from kcoord.wire.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, BatchBuilder, Record

BATCH_BYTES_TARGET: Final = 1 << 20
# States of a transaction.
ONGOING: Final = 1
PREPARE_COMMIT: Final = 2
PREPARE_ABORT: Final = 3
COMPLETE_COMMIT: Final = 4
# From this version on the end of a transaction increments the epoch of its producer (KIP-890).
VERSION_2: Final = 2
# The last epoch of a producer id.
CLIENT_EPOCH_MAX: Final = 32766
OFFSETS_TOPIC: Final = "__consumer_offsets"
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
    """Appends records to a log in new batches."""

    def __init__(self, journal: Journal, log: PartitionLog, leader_epoch: int) -> None:
        self.journal = journal
        self.log = log
        self.leader_epoch = leader_epoch
        self.builder = BatchBuilder()

    def append(self, record: Record) -> None:
        self.builder.append(record.timestamp, record.key, record.value, record.headers)
        if self.builder.size_bytes() > BATCH_BYTES_TARGET:
            self.flush()

    def append_transactional(self, records: Iterable[Record], producer_id: int, producer_epoch: int) -> None:
        """Append records of an open transaction, in batches of their own."""
        self.flush()
        for record in records:
            self.builder.append(record.timestamp, record.key, record.value, record.headers)
            if self.builder.size_bytes() > BATCH_BYTES_TARGET:
                self._write(producer_id, producer_epoch)
        self._write(producer_id, producer_epoch)

    def flush(self) -> None:
        self._write(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)

    def _write(self, producer_id: int, producer_epoch: int) -> None:
        builder = self.builder
        if not builder.count:
            return
        base = self.log.end_offset
        is_transactional = producer_id != NO_PRODUCER_ID
        sequence = 0 if is_transactional else NO_SEQUENCE
        batch = builder.build(base, self.leader_epoch, producer_id, producer_epoch, sequence, is_transactional)
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


def producer_of(value: TransactionLogValue) -> tuple[int, int]:
    """(producer id, epoch) in the batches of the transaction that a state is about."""
    if value.client_transaction_version < VERSION_2 or value.transaction_status == ONGOING:
        return value.producer_id, value.producer_epoch
    if value.producer_epoch == 0:
        return value.previous_producer_id, CLIENT_EPOCH_MAX
    return value.producer_id, value.producer_epoch - 1


def with_offsets_partitions(value: TransactionLogValue, count: int) -> bool:
    """List all partitions of `__consumer_offsets` if the transaction is not over and has some; whether it does.

    A marker in a partition where the transaction has nothing is harmless.
    """
    if value.transaction_status not in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT):
        return False
    for schema in value.transaction_partitions or []:
        if schema.topic == OFFSETS_TOPIC:
            schema.partition_ids = list(range(count))
            return True
    return False


@final
class TransactionLogs:
    """The state of transactions in `__transaction_state`."""

    def __init__(self) -> None:
        # (producer id, epoch) of the transactions that their coordinator decided to commit.
        self.committed: set[tuple[int, int]] = set()
        # Those of transactions that may still be committed or aborted.
        self.ongoing: set[tuple[int, int]] = set()
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
                self.committed.add(producer_of(value))
            elif value.transaction_status == ONGOING:
                self.ongoing.add(producer_of(value))
        self._by_id.clear()


def import_transaction_logs(
    sources: Iterable[tuple[PartitionFiles, int]],
    writers: list[LogWriter],
    partition_of: PartitionOf,
    report: ImportReport,
    step: Step,
    offsets_partitions: int = 0,
) -> TransactionLogs:
    """Copy the records of `__transaction_state`; each source comes with its first offset.

    Without `writers` the records are only read. `offsets_partitions` is the new number of partitions of
    `__consumer_offsets` if it changes, or 0. Raises LogDamaged and OSError.
    """
    found = TransactionLogs()
    torn: list[int] = []
    for files, start in sources:
        for batch in watched(durable_batches(files, start, torn), step):
            if batch.header.is_control:
                report.left_out["markers in coordinator logs"] += batch.header.count
                continue
            for record in records_of(batch):
                if record.offset < start:
                    continue
                if record.key is None:
                    report.left_out["coordinator records without a key"] += 1
                    continue
                try:
                    transactional_id = id_in_key(record.key)
                    key, value = decode_transaction_record(record.key, record.value)
                except DecodeError:
                    report.left_out["transaction records that cannot be read"] += 1
                    continue
                if isinstance(key, TransactionLogKey) and (value is None or isinstance(value, TransactionLogValue)):
                    found.note(transactional_id, value)
                if writers:
                    if offsets_partitions and isinstance(value, TransactionLogValue):
                        if with_offsets_partitions(value, offsets_partitions):
                            record.value = encode_record(key, value)[1]
                    writers[partition_of(transactional_id, len(writers))].append(record)
                    report.kept["transaction records"] += 1
    report.left_out["bytes at torn ends of logs"] += sum(torn)
    found.finish(report)
    return found


@final
class OffsetsImport:
    """Merges the partitions of `__consumer_offsets`; see the module docstring."""

    def __init__(
        self,
        writers: list[LogWriter],
        partition_of: PartitionOf,
        transactions: TransactionLogs,
        report: ImportReport,
    ) -> None:
        self.writers = writers
        self.partition_of = partition_of
        self.committed = transactions.committed
        self.ongoing = transactions.ongoing
        self.report = report
        # The records of open transactions in the current partition, by (producer id, epoch) and by key.
        self.open: dict[tuple[int, int], dict[bytes, Record]] = {}
        # The live keys with the type of their newest record; a tombstone removes its key.
        self.live: dict[bytes, int] = {}

    def read(self, files: PartitionFiles, start: int, step: Step) -> None:
        """Read one source partition from its first offset. Raises LogDamaged and OSError."""
        self.open = {}
        torn: list[int] = []
        for batch in watched(durable_batches(files, start, torn), step):
            header = batch.header
            producer = (int(header.producer_id), int(header.producer_epoch))
            if header.is_control:
                self.report.left_out["markers in coordinator logs"] += header.count
                self._end(producer[0], is_commit(batch))
                continue
            for record in records_of(batch):
                if record.offset < start:
                    continue
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
                    f"{files.name}: the coordinator had decided to commit the transaction of producer {producer[0]}"
                )
                self._end(producer[0], True)
        for producer, pending in self.open.items():
            if producer in self.ongoing:
                self._keep_open(producer, list(pending.values()))
            else:
                self.report.left_out["offset commits of open transactions"] += len(pending)

    def _keep_open(self, producer: tuple[int, int], pending: list[Record]) -> None:
        """Write the offset commits of a transaction that its coordinator may still commit."""
        by_partition: dict[int, list[Record]] = {}
        for record in pending:
            group = self._group_of(record.key or b"", record)
            if group is not None:
                by_partition.setdefault(self.partition_of(group, len(self.writers)), []).append(record)
        for partition, records in by_partition.items():
            self.writers[partition].append_transactional(records, *producer)
            self.report.kept["offset commits of open transactions"] += len(records)

    def _hold(self, producer: tuple[int, int], key: bytes, record: Record) -> None:
        pending = self.open.setdefault(producer, {})
        if key in pending:
            self.report.left_out["offset commits replaced in their own transaction"] += 1
        pending[key] = record

    def _supersede(self, key: bytes, offset: int) -> None:
        """A newer record of a key wins, even if a transaction with an older record commits later."""
        for pending in self.open.values():
            older = pending.get(key)
            if older is not None and older.offset < offset:
                del pending[key]
                self.report.left_out["offset commits replaced before their transaction ended"] += 1

    def _end(self, producer_id: int, commit: bool | None) -> None:
        # A marker may carry a newer epoch than the transaction it ends (KIP-890).
        for producer in [p for p in self.open if p[0] == producer_id]:
            pending = self.open.pop(producer)
            if not commit:
                self.report.left_out["offset commits of aborted transactions"] += len(pending)
                continue
            for key, record in pending.items():
                self._supersede(key, record.offset)
                self._take(key, record)
                self.report.taken["offset commits of committed transactions"] += 1

    def _group_of(self, key: bytes, record: Record) -> str | None:
        """The group of a record; None, and counted, for one that the server could not decode at its start."""
        try:
            group = id_in_key(key)
            decode_record(key, record.value)
        except DecodeError as error:
            self.report.left_out["coordinator records that cannot be read"] += 1
            self.report.notes.append(f"a record of type {_kind_of(key)} was left out: {error}")
            return None
        return group

    def _take(self, key: bytes, record: Record) -> None:
        """Write a record to the partition of its group, and count it."""
        group = self._group_of(key, record)
        if group is None:
            return
        kind = _kind_of(key)
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
        """Count the live keys at the end."""
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


def _kind_of(key: bytes) -> int:
    """The type of a coordinator record; -1 without one."""
    return int.from_bytes(key[:2], "big", signed=True) if len(key) >= 2 else -1
