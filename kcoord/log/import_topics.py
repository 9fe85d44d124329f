"""Partitions of a broker's topics become ours: with their records, or empty from where they ended.

Batches keep their bytes, offsets, leader epochs and timestamps. Only records that no reader with
`isolation.level=read_committed` may see are taken out, since there is no transaction coordinator here that tells
readers what was aborted: their batches stay as empty ones, as compaction leaves them. Indexes are made anew.
"""

from __future__ import annotations

import os
from typing import Final, final

from kcoord.log.cluster_image import durable_batches, sound_batches
from kcoord.log.directory import Checkpoint
from kcoord.log.import_logs import is_commit
from kcoord.log.import_report import ImportReport
from kcoord.log.inspect import PartitionFiles, lost_end
from kcoord.log.partition_log import EPOCH_CHECKPOINT, PARTITION_METADATA, encode_partition_metadata
from kcoord.log.segment import Segment
from kcoord.log.steps import Step, watched
from kcoord.log.storage import Storage
from kcoord.wire.record_batch import empty_batch

INDEX_INTERVAL_BYTES: Final = 4096
WRITE_BYTES: Final = 1 << 20


@final
class PartitionScan:
    """What a partition's batches say: `aborted` are (producer id, first offset, offset of the marker)."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.leader_epoch = -1
        self.producer_id_max = -1
        self.aborted: list[tuple[int, int, int]] = []
        self.open_count = 0
        self.decided_count = 0


def end_offset_of(files: PartitionFiles, start: int, step: Step) -> int:
    """Where the log ends, from its last segment alone. Raises LogDamaged and OSError."""
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
    """Look at every batch of a partition. Raises LogDamaged and OSError."""
    found = PartitionScan(start)
    if files.segments:
        found.end = max(start, files.segments[-1].base_offset)
    open_since: dict[tuple[int, int], int] = {}
    for batch in watched(durable_batches(files, 0, []), step):
        header = batch.header
        found.end = max(found.end, header.last_offset + 1)
        found.leader_epoch = max(found.leader_epoch, header.leader_epoch)
        found.producer_id_max = max(found.producer_id_max, header.producer_id)
        producer = (int(header.producer_id), int(header.producer_epoch))
        if header.is_control:
            commit = is_commit(batch)
            for ended in [p for p in open_since if p[0] == producer[0] and commit is not None]:
                first = open_since.pop(ended)
                if not commit:
                    found.aborted.append((ended[0], first, int(header.base_offset)))
        elif header.is_transactional:
            open_since.setdefault(producer, int(header.base_offset))
    for producer, first in open_since.items():
        if producer in committed:
            found.decided_count += 1
        else:
            found.open_count += 1
            found.aborted.append((producer[0], first, found.end))
    return found


@final
class TopicWriter:
    """Writes partition directories into `storage`, before it is opened as a data directory."""

    def __init__(self, storage: Storage, report: ImportReport, step: Step) -> None:
        self.storage = storage
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
        """A log without records that goes on at `end`."""
        name = self._make(topic, partition, topic_id)
        segment = Segment(self.storage, name, end, INDEX_INTERVAL_BYTES)
        segment.file().datasync()
        segment.close()
        self._note(topic, partition, end, end)

    def copy(self, files: PartitionFiles, topic_id: bytes, found: PartitionScan) -> None:
        """The partition with its records. Raises LogDamaged and OSError."""
        name = self._make(files.topic, files.partition, topic_id)
        epochs = os.path.join(files.path, EPOCH_CHECKPOINT)
        if os.path.exists(epochs):
            with open(epochs, "rb") as file:
                self.storage.write_atomic(f"{name}/{EPOCH_CHECKPOINT}", file.read())
        torn: list[int] = []
        for source in files.segments:
            segment = Segment(self.storage, name, source.base_offset, INDEX_INTERVAL_BYTES)
            self._copy_segment(source.path, segment, found, torn)
            segment.file().datasync()
            segment.save_indexes()
            segment.close()
        self.report.left_out["bytes at torn ends of logs"] += sum(torn)
        if not files.segments:
            segment = Segment(self.storage, name, found.end, INDEX_INTERVAL_BYTES)
            segment.file().datasync()
            segment.close()
        self._note(files.topic, files.partition, found.end, found.start)

    def _copy_segment(self, path: str, segment: Segment, found: PartitionScan, torn: list[int]) -> None:
        waiting = 0
        for batch in watched(sound_batches(path, 0, torn), self.step):
            header = batch.header
            data = batch.data
            count = int(header.count)
            is_data = not header.is_control
            if (
                is_data
                and header.is_transactional
                and _is_aborted(found, header.producer_id, header.base_offset)
            ):
                data = empty_batch(header)
                self.report.left_out["records of aborted or unfinished transactions"] += count
            elif header.is_control:
                self.report.taken["transaction markers"] += count
            else:
                self.report.taken["records of topics"] += count
            segment.append(data, header.last_offset, header.max_timestamp)
            waiting += len(data)
            if waiting > WRITE_BYTES:
                segment.write_pending()
                waiting = 0
            self.report.taken["bytes of topics"] += len(data)
        if waiting:
            segment.write_pending()

    def _note(self, topic: str, partition: int, end: int, start: int) -> None:
        if end:
            self.points[(topic, partition)] = end
        if start:
            self.starts[(topic, partition)] = start


def _is_aborted(found: PartitionScan, producer_id: int, offset: int) -> bool:
    return any(
        producer_id == aborted and first <= offset < marker for aborted, first, marker in found.aborted
    )
