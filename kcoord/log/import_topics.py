"""Imports the partitions of a broker's topics, with their records or empty from their end offset.

Batches keep their bytes, offsets, leader epochs and timestamps. Markers and records of aborted transactions are kept as
well. Indexes are rebuilt, those of aborted transactions included.

A transaction that is open at the end of the log stays open, and the server decides at its first start: its coordinator
continues a transaction that its state has, and others are aborted. If the state has that the transaction was committed,
its marker was not copied to this replica. It is appended here, because the coordinator knows only of its next
transaction.
"""

from __future__ import annotations

import os
from typing import Final, final

from kcoord.log.cluster_image import durable_batches, sound_batches
from kcoord.log.control_records import end_transaction_batch
from kcoord.log.directory import Checkpoint
from kcoord.log.import_logs import is_commit
from kcoord.log.import_report import ImportReport
from kcoord.log.inspect import PartitionFiles, lost_end
from kcoord.log.partition_files import encode_partition_metadata
from kcoord.log.partition_log import EPOCH_CHECKPOINT, PARTITION_METADATA
from kcoord.log.reader import StoredBatch
from kcoord.log.segment import Segment
from kcoord.log.steps import Step, watched
from kcoord.log.storage import Storage

INDEX_INTERVAL_BYTES: Final = 4096
WRITE_BYTES: Final = 1 << 20


@final
class PartitionScan:
    """The result of scanning a partition's batches.

    `decided` has (producer id, epoch) of open transactions whose coordinator has decided to commit.
    """

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.leader_epoch = -1
        self.producer_id_max = -1
        self.open_count = 0
        self.decided: list[tuple[int, int]] = []


def end_offset_of(files: PartitionFiles, start: int, step: Step) -> int:
    """The end offset of the log, read from its last segment alone. Raises LogDamaged and OSError."""
    end = start
    if files.segments:
        last = files.segments[-1]
        end = max(end, last.base_offset)
        for batch in watched(sound_batches(last.path), step):
            end = max(end, batch.header.last_offset + 1)
    lost = lost_end(files, end)
    if lost is not None:
        raise lost
    return end


def scan(files: PartitionFiles, start: int, committed: set[tuple[int, int]], step: Step) -> PartitionScan:
    """Scan every batch of a partition. Raises LogDamaged and OSError."""
    found = PartitionScan(start)
    if files.segments:
        found.end = max(start, files.segments[-1].base_offset)
    is_open: dict[tuple[int, int], bool] = {}
    for batch in watched(durable_batches(files, 0, []), step):
        header = batch.header
        found.end = max(found.end, header.last_offset + 1)
        found.leader_epoch = max(found.leader_epoch, header.leader_epoch)
        found.producer_id_max = max(found.producer_id_max, header.producer_id)
        producer = (int(header.producer_id), int(header.producer_epoch))
        if header.is_control:
            if is_commit(batch) is not None:
                for ended in [one for one in is_open if one[0] == producer[0]]:
                    del is_open[ended]
        elif header.is_transactional:
            is_open[producer] = True
    found.decided = [producer for producer in is_open if producer in committed]
    found.open_count = len(is_open) - len(found.decided)
    return found


@final
class TransactionNotes:
    """Follows the transactions of a partition through its segments, for their indexes."""

    def __init__(self) -> None:
        # By producer id, in ascending order.
        self.first_offsets: dict[int, int] = {}

    def note(self, batch: StoredBatch, segment: Segment) -> None:
        """The batch was appended to the segment. Raises LogDamaged."""
        header = batch.header
        producer_id = int(header.producer_id)
        if not header.is_control:
            self.first_offsets.setdefault(producer_id, int(header.base_offset))
            return
        commit = is_commit(batch)
        first = None if commit is None else self.first_offsets.pop(producer_id, None)
        if first is not None and not commit:
            offset = int(header.last_offset)
            stable = next(iter(self.first_offsets.values()), offset + 1)
            segment.note_aborted(producer_id, first, offset, stable)


@final
class TopicWriter:
    """Writes partition directories into `storage` before it is opened as a data directory.

    `wall_ms` is the time of markers that are appended.
    """

    def __init__(self, storage: Storage, report: ImportReport, step: Step, wall_ms: int = 0) -> None:
        self.storage = storage
        self.wall_ms = wall_ms
        self.report = report
        self.step = step
        self.points: Checkpoint = {}
        self.starts: Checkpoint = {}

    def _make(self, topic: str, partition: int, topic_id: bytes) -> str:
        name = f"{topic}-{partition}"
        self.storage.make_dir(name)
        file = self.storage.open(f"{name}/{PARTITION_METADATA}")
        file.append(encode_partition_metadata(topic_id))
        file.datasync()
        file.close()
        return name

    def write_empty(self, topic: str, partition: int, topic_id: bytes, end: int) -> None:
        """Write an empty log that continues at `end`."""
        name = self._make(topic, partition, topic_id)
        segment = Segment(self.storage, name, end, INDEX_INTERVAL_BYTES)
        segment.file().datasync()
        segment.close()
        self._note(topic, partition, end, end)

    def copy(self, files: PartitionFiles, topic_id: bytes, found: PartitionScan) -> None:
        """Write the partition with its records. Raises LogDamaged and OSError."""
        name = self._make(files.topic, files.partition, topic_id)
        epochs = os.path.join(files.path, EPOCH_CHECKPOINT)
        if os.path.exists(epochs):
            with open(epochs, "rb") as file:
                self.storage.write_atomic(f"{name}/{EPOCH_CHECKPOINT}", file.read())
        torn: list[int] = []
        notes = TransactionNotes()
        for source in files.segments:
            segment = Segment(self.storage, name, source.base_offset, INDEX_INTERVAL_BYTES)
            self._copy_segment(source.path, segment, notes, torn)
            if source is files.segments[-1]:
                self._commit_decided(segment, found)
            segment.file().datasync()
            segment.save_indexes()
            segment.close()
        self.report.left_out["bytes at torn ends of logs"] += sum(torn)
        if not files.segments:
            segment = Segment(self.storage, name, found.end, INDEX_INTERVAL_BYTES)
            segment.file().datasync()
            segment.close()
        self._note(files.topic, files.partition, found.end, found.start)

    def _copy_segment(self, path: str, segment: Segment, notes: TransactionNotes, torn: list[int]) -> None:
        waiting = 0
        for batch in watched(sound_batches(path, 0, torn), self.step):
            header = batch.header
            data = batch.data
            self.report.taken["transaction markers" if header.is_control else "records of topics"] += int(header.count)
            segment.append(data, header.last_offset, header.max_timestamp)
            if header.is_transactional:
                notes.note(batch, segment)
            waiting += len(data)
            if waiting > WRITE_BYTES:
                segment.write_pending()
                waiting = 0
            self.report.taken["bytes of topics"] += len(data)
        if waiting:
            segment.write_pending()

    def _commit_decided(self, segment: Segment, found: PartitionScan) -> None:
        """Append the missing markers of transactions that were committed."""
        for producer_id, epoch in found.decided:
            offset = found.end
            leader_epoch = max(found.leader_epoch, 0)
            batch = end_transaction_batch(producer_id, epoch, True, 0, offset, leader_epoch, self.wall_ms)
            segment.append(batch, offset, self.wall_ms)
            found.end = offset + 1
        if found.decided:
            segment.write_pending()

    def _note(self, topic: str, partition: int, end: int, start: int) -> None:
        if end:
            self.points[(topic, partition)] = end
        if start:
            self.starts[(topic, partition)] = start
