"""Compaction: keeps only the newest record of every key, and tombstones until their delete horizon.

`clean` reads closed segments and writes the records to keep to `.cleaned` files. The owner of the log then exchanges
the files (exchange.py). The rules are those of Kafka's cleaner:

- Offsets never change. A batch keeps its base and last offset, however many of its records are removed.
- A record is removed if a later record below `CleanResult.end` has the same key, or if it has no key. Records of
  aborted transactions are removed, and their keys do not count. Records of open transactions are kept unchanged.
- A tombstone is removed after the delete horizon of its batch. The horizon is `delete_retention_ms` after the first
  cleaning that sees the tombstone, and is stored in the batch (KIP-534). So a reader has that long to catch up.
- The marker that ends a transaction is removed, also after a delete horizon, once no batch of the transaction is left.
  The key of a marker is never compared with the keys of records (KAFKA-14055).
- The last batch of each producer is kept, empty if necessary, for its epoch and sequence. A producer with only markers
  left keeps the last marker (KAFKA-9144).
- Tombstones and markers after the end of the log's state checkpoint are kept: the next start replays them after the
  checkpoint, which still has what they ended.
- The last batch of each group of segments is kept, empty if necessary. So the new segment ends where the old ones
  ended, and recovery can determine which old segments it replaces.

The cleaner follows transactions through all segments in one pass, from the start of the log (KAFKA-8351).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kcoord.log.errors import LogDamaged
from kcoord.log.exchange import CLEANED_SUFFIX
from kcoord.log.pace import Pace
from kcoord.log.segment import RELATIVE_OFFSET_MAX, Segment
from kcoord.log.sieve import NO_OFFSET, SURVIVORS_MAX, NewestOffsets, Sieve, Survivors, cut_out, cut_out_shifted
from kcoord.log.state_file import known_end, state_path
from kcoord.log.storage import Storage
from kcoord.log.transaction_index import ABORT, COMMIT, AbortedTransaction
from kcoord.wire.compression import CODEC_NONE, DecompressionError, compress
from kcoord.wire.primitives import DecodeError, Reader
from kcoord.wire.record_batch import (
    CODEC_MASK,
    DELETE_HORIZON_FLAG,
    LOG_APPEND_TIME_FLAG,
    NO_TIMESTAMP,
    BatchHeader,
    check_crc,
    decode_records,
    empty_batch,
    encode_batch,
    records_reader,
)

WRITE_BYTES: Final = 1 << 18
# Output is synced each time this much was written, so a commit never waits for the write-back of a large file.
SYNC_BYTES: Final = 1 << 18
INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF


class CleanConfig:
    """How to clean. `keys_max` bounds memory: cleaning ends early, at a batch boundary, after that many keys,
    or fewer large ones. With at most `survivors_max` keys, batches of which nothing stays are not read a second time.
    """

    def __init__(
        self,
        delete_retention_ms: int = 24 * 3600 * 1000,
        segment_bytes: int = 1 << 30,
        index_interval_bytes: int = 4096,
        keys_max: int = 1_000_000,
        decompressed_bytes_max: int = 64 << 20,
        survivors_max: int = SURVIVORS_MAX,
    ) -> None:
        self.delete_retention_ms = delete_retention_ms
        self.segment_bytes = segment_bytes
        self.index_interval_bytes = index_interval_bytes
        self.keys_max = keys_max
        self.decompressed_bytes_max = decompressed_bytes_max
        self.survivors_max = survivors_max


class CleanedGroup:
    """A new segment at `base`, written with CLEANED_SUFFIX, that replaces the segments at `old_bases`."""

    def __init__(self, base: int, old_bases: list[int]) -> None:
        self.base = base
        self.old_bases = old_bases


class CleanResult:
    """The result of a cleaning. `end` is the first offset that was not cleaned; the next cleaning starts there."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.groups: list[CleanedGroup] = []
        self.bytes_before = 0
        self.bytes_after = 0
        self.records_before = 0
        self.records_after = 0


class _Producer:
    """The newest state of a producer in the log: its epoch, and the last offset of its data in that epoch, if any."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.last_data_offset = NO_OFFSET


class _Survey:
    """The transactions and producers of all segments, read from batch headers and markers alone."""

    def __init__(self, segments: Sequence[Segment], config: CleanConfig, pace: Pace) -> None:
        self.aborted: dict[int, list[AbortedTransaction]] = {}
        self.producers: dict[int, _Producer] = {}
        self.end = segments[0].base_offset
        open_since: dict[int, int] = {}
        for segment in segments:
            for header, data in segment.batches(0, False):
                pace.breathe()
                self.end = header.last_offset + 1
                if header.producer_id < 0:
                    continue
                if header.is_control:
                    self._marker(segment, header, data, open_since, config)
                    continue
                if header.is_transactional:
                    open_since.setdefault(header.producer_id, header.base_offset)
                self._producer(header).last_data_offset = header.last_offset
        # The cleaner must not change anything from the first offset of the oldest open transaction on.
        self.stable_end = min(open_since.values(), default=self.end)

    def _producer(self, header: BatchHeader) -> _Producer:
        producer = self.producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = self.producers[header.producer_id] = _Producer(header.producer_epoch)
        return producer

    def _marker(
        self,
        segment: Segment,
        header: BatchHeader,
        data: bytes,
        open_since: dict[int, int],
        config: CleanConfig,
    ) -> None:
        self._producer(header)
        kind = control_type(segment, header, data, config)
        if kind not in (ABORT, COMMIT):
            return
        first = open_since.pop(header.producer_id, None)
        if kind == ABORT and first is not None:
            stable = min(open_since.values(), default=header.last_offset + 1)
            aborted = AbortedTransaction(header.producer_id, first, header.last_offset, stable)
            self.aborted.setdefault(header.producer_id, []).append(aborted)

    def aborted_by(self, header: BatchHeader) -> AbortedTransaction | None:
        """The aborted transaction that a batch belongs to."""
        if header.is_transactional:
            for found in self.aborted.get(header.producer_id, ()):
                if found.first_offset <= header.base_offset <= found.last_offset:
                    return found
        return None

    def is_last_of_producer(self, header: BatchHeader) -> bool:
        producer = self.producers.get(header.producer_id)
        if producer is None:
            return False
        if producer.last_data_offset != NO_OFFSET:
            return producer.last_data_offset == header.last_offset
        return header.is_control and header.producer_epoch == producer.epoch


def control_type(segment: Segment, header: BatchHeader, data: bytes, config: CleanConfig) -> int:
    """The type of a control batch; -1 for a batch that cleaning has emptied."""
    try:
        records = decode_records(data, header.pos, header, config.decompressed_bytes_max)
    except (DecodeError, DecompressionError) as error:
        raise LogDamaged(segment.log_path, header.base_offset, 0, str(error)) from None
    if not records or records[0].key is None or len(records[0].key) < 4:
        return -1
    return int.from_bytes(records[0].key[2:4], "big", signed=True)


def reader_of(segment: Segment, header: BatchHeader, data: bytes, bytes_max: int) -> Reader:
    """A reader of the uncompressed records of a batch. Raises LogDamaged."""
    try:
        return records_reader(data, header.pos, header, bytes_max)
    except (DecodeError, DecompressionError) as error:
        raise LogDamaged(segment.log_path, header.base_offset, 0, str(error)) from None


def clean(
    storage: Storage,
    directory: str,
    bases: Sequence[int],
    first_dirty: int,
    config: CleanConfig,
    now_ms: int,
    producers: frozenset[int] | None = None,
    pace: Pace | None = None,
) -> CleanResult:
    """Clean the closed segments at `bases` of the log in `directory`: a prefix of the log's segments.

    Everything below `first_dirty` was cleaned before. With `producers`, the state of other producers is not kept. The
    written files are durable when this returns. Without a `pace` it runs at full speed. Raises LogDamaged and OSError.
    """
    segments = [Segment(storage, directory, base, config.index_interval_bytes).existing() for base in bases]
    try:
        cleaning = _Cleaning(storage, directory, segments, config, now_ms, producers, pace or Pace())
        return cleaning.run(first_dirty)
    finally:
        for segment in segments:
            segment.close()


class _Cleaning:
    """One round of cleaning."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        segments: list[Segment],
        config: CleanConfig,
        now_ms: int,
        producers: frozenset[int] | None,
        pace: Pace,
    ) -> None:
        self.pace = pace
        self.storage = storage
        self.directory = directory
        self.segments = segments
        self.config = config
        self.now_ms = now_ms
        self.survey = _Survey(segments, config, pace)
        if producers is not None:
            for producer_id in [one for one in self.survey.producers if one not in producers]:
                del self.survey.producers[producer_id]
        self.newest = NewestOffsets(config.keys_max)
        # What stays of the records from `mapped_from` to the end of the cleaning; None if there are too many.
        self.survivors: Survivors | None = None
        self.mapped_from = 0
        # Producers with a batch of the current transaction among the segments; their marker removes them.
        self.met: set[int] = set()
        self.kept_aborted: list[AbortedTransaction] = []
        self.result = CleanResult(first_offset_of(segments))
        # Tombstones and markers from here on must stay. A later checkpoint would only have a higher end.
        self.checkpoint_end = known_end(storage, state_path(directory))

    def run(self, first_dirty: int) -> CleanResult:
        result = self.result
        result.end = self._map_keys(first_dirty)
        if len(self.newest.by_key) <= self.config.survivors_max:
            self.survivors = self.newest.survivors()
            self.mapped_from = first_dirty
        touched = [segment for segment in self.segments if segment.base_offset < result.end]
        groups = list(self._groups(touched))
        for group in groups:
            self._clean_group(group)
        if result.groups:
            self.storage.sync_dir(self.directory)
        return result

    # --- which record is the newest of its key

    def _map_keys(self, first_dirty: int) -> int:
        """Map every key from `first_dirty` on to its newest offset. Returns the offset at which the map ends."""
        end = min(max(first_dirty, first_offset_of(self.segments)), self.survey.stable_end)
        for i, segment in enumerate(self.segments):
            if i + 1 < len(self.segments) and self.segments[i + 1].base_offset <= first_dirty:
                continue
            for header, data in segment.batches(segment.position_before(first_dirty), True):
                if header.base_offset >= self.survey.stable_end:
                    return self.survey.stable_end
                if header.last_offset < first_dirty:
                    continue
                if not header.is_control and self.survey.aborted_by(header) is None:
                    if self.newest.is_full:
                        return end
                    r = reader_of(segment, header, data, self.config.decompressed_bytes_max)
                    try:
                        self.newest.note_batch(r, header.base_offset, header.count, first_dirty, self.pace)
                    except DecodeError as error:
                        raise LogDamaged(segment.log_path, header.base_offset, 0, str(error)) from None
                end = header.last_offset + 1
        return end

    # --- segments

    def _groups(self, segments: list[Segment]) -> Iterator[list[Segment]]:
        """Groups of adjacent segments that fit into one segment."""
        group: list[Segment] = []
        size = 0
        for i, segment in enumerate(segments):
            beyond = segments[i + 1].base_offset if i + 1 < len(segments) else self.survey.end
            too_far = bool(group) and beyond - group[0].base_offset > RELATIVE_OFFSET_MAX
            if group and (size + segment.size > self.config.segment_bytes or too_far):
                yield group
                group, size = [], 0
            group.append(segment)
            size += segment.size
        if group:
            yield group

    def _clean_group(self, group: list[Segment]) -> None:
        base = group[0].base_offset
        interval = self.config.index_interval_bytes
        target = Segment(self.storage, self.directory, base, interval, CLEANED_SUFFIX)
        # A cleaning that was interrupted may have left the file.
        target.remove()
        last_offset = last_offset_of(group)
        has_changed = len(group) > 1
        pending = unsynced = 0
        for segment in group:
            for header, data in segment.batches(0, False):
                batch = self._filter(segment, header, data, header.last_offset == last_offset)
                has_changed = has_changed or batch is not data
                if batch is data:
                    batch = data[header.pos : header.pos + header.size]
                if not batch:
                    continue
                target.append(batch, header.last_offset, max_timestamp_of(batch))
                pending += len(batch)
                if pending >= WRITE_BYTES:
                    target.write_pending()
                    unsynced += pending
                    pending = 0
                if unsynced >= SYNC_BYTES:
                    self.pace.sync(target.file())
                    unsynced = 0
        if target.pending:
            target.write_pending()
        self._finish(target, group, has_changed)

    def _finish(self, target: Segment, group: list[Segment], has_changed: bool) -> None:
        aborted, self.kept_aborted = self.kept_aborted, []
        before = sum(segment.size for segment in group)
        self.result.bytes_before += before
        if not has_changed:
            target.remove()
            self.result.bytes_after += before
            return
        self.result.bytes_after += target.size
        self.pace.sync(target.file())
        target.save_indexes()
        if aborted:
            file = self.storage.open(target.file_path(".txnindex"))
            try:
                file.append(b"".join([entry.encode() for entry in aborted]))
                file.datasync()
            finally:
                file.close()
        target.close()
        self.result.groups.append(CleanedGroup(target.base_offset, [segment.base_offset for segment in group]))

    # --- batches

    def _filter(self, segment: Segment, header: BatchHeader, data: bytes, is_last: bool) -> bytes:
        """What is left of a batch: `data` itself if it is unchanged, no bytes if nothing is left."""
        self.result.records_before += header.count
        if not is_last and self._is_superseded(header):
            self.pace.breathe()
            return b""
        if not check_crc(data, header.pos, header):
            raise LogDamaged(segment.log_path, header.base_offset, 0, "wrong checksum")
        horizon = header.base_timestamp if header.attributes & DELETE_HORIZON_FLAG else NO_TIMESTAMP
        must_stay = is_last or (header.producer_id >= 0 and self.survey.is_last_of_producer(header))
        has_passed = horizon != NO_TIMESTAMP and horizon <= self.now_ms
        if header.is_control:
            can_go = self._marker_can_go(segment, header, data)
            is_known = header.last_offset < self.checkpoint_end
            drop_all = can_go and (header.count == 0 or (has_passed and is_known))
            wants_horizon = can_go and header.count > 0
        else:
            drop_all = self._is_aborted(header)
            wants_horizon = False
        if drop_all:
            if must_stay:
                return data if header.count == 0 else empty_batch(header)
            return b""
        r = reader_of(segment, header, data, self.config.decompressed_bytes_max)
        sieve = Sieve()
        end = self.result.end
        # Where tombstones stay again.
        deleted_end = min(end, self.checkpoint_end) if has_passed else NO_OFFSET
        try:
            if header.is_control:
                sieve.take_all(r, header.count)
            else:
                sieve.take_newest(r, header.base_offset, header.count, self.newest, end, deleted_end, self.pace)
                wants_horizon = sieve.has_tombstone
        except DecodeError as error:
            raise LogDamaged(segment.log_path, header.base_offset, 0, str(error)) from None
        if not sieve.kept:
            if must_stay:
                return data if header.count == 0 else empty_batch(header)
            return b""
        self.result.records_after += sieve.kept
        # A batch beyond this round's key map gets no horizon: its tombstones still have older records to remove.
        if wants_horizon and horizon == NO_TIMESTAMP and header.base_offset < end:
            return rebuild(header, r.buf, sieve, self.now_ms + self.config.delete_retention_ms)
        if sieve.kept == header.count:
            return data
        return rebuild(header, r.buf, sieve, NO_TIMESTAMP)

    def _is_superseded(self, header: BatchHeader) -> bool:
        """Whether the map of keys says that no record of a batch stays, so that the batch need not be read again.

        The map was made of the whole batch, and its checksum was verified then. Transactions and the last batch of a
        producer need a closer look.
        """
        survivors = self.survivors
        if survivors is None or header.is_control or header.is_transactional:
            return False
        if header.base_offset < self.mapped_from or header.last_offset >= self.result.end:
            return False
        if header.producer_id >= 0 and self.survey.is_last_of_producer(header):
            return False
        return survivors.knows_none(header.base_offset, header.last_offset)

    def _is_aborted(self, header: BatchHeader) -> bool:
        if not header.is_transactional:
            return False
        self.met.add(header.producer_id)
        return self.survey.aborted_by(header) is not None

    def _marker_can_go(self, segment: Segment, header: BatchHeader, data: bytes) -> bool:
        """Whether no batch of the marker's transaction is left."""
        if header.count == 0:
            return True
        kind = control_type(segment, header, data, self.config)
        if kind not in (ABORT, COMMIT) or header.base_offset >= self.survey.stable_end:
            return False
        if header.producer_id not in self.met:
            return True
        self.met.discard(header.producer_id)
        if kind == ABORT:
            for found in self.survey.aborted.get(header.producer_id, ()):
                if found.last_offset == header.last_offset:
                    self.kept_aborted.append(found)
        return False


def first_offset_of(segments: Sequence[Segment]) -> int:
    return segments[0].base_offset


def last_offset_of(group: Sequence[Segment]) -> int:
    """The last offset of the last batch in a group of segments."""
    for segment in reversed(group):
        last = NO_OFFSET
        for header, _data in segment.batches(segment.position_before(INT64_MAX), False):
            last = header.last_offset
        if last != NO_OFFSET:
            return last
    return NO_OFFSET


def max_timestamp_of(batch: bytes) -> int:
    return int.from_bytes(batch[35:43], "big", signed=True)


def rebuild(header: BatchHeader, buf: bytes, sieve: Sieve, horizon_ms: int) -> bytes:
    """The batch with only the records that stay, byte for byte, and with a delete horizon if one is given.

    The horizon replaces the base timestamp, so the timestamp delta of every record changes.
    """
    attributes: int = header.attributes
    base_timestamp: int = header.base_timestamp
    if horizon_ms == NO_TIMESTAMP:
        records = cut_out(buf, sieve.ranges)
    else:
        attributes |= DELETE_HORIZON_FLAG
        records = cut_out_shifted(buf, sieve.ranges, base_timestamp - horizon_ms)
    max_timestamp: int = header.max_timestamp
    if not attributes & LOG_APPEND_TIME_FLAG:
        max_timestamp = base_timestamp + sieve.time_delta_max
    codec = attributes & CODEC_MASK
    if codec != CODEC_NONE:
        records = compress(codec, records)
    return encode_batch(
        header.base_offset,
        header.leader_epoch,
        attributes,
        header.last_offset_delta,
        base_timestamp if horizon_ms == NO_TIMESTAMP else horizon_ms,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        sieve.kept,
        records,
    )
