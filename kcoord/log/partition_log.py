"""The log of one topic partition: a directory `<topic>-<partition>` of segments.

A log has four ends, each at most the next: `synced_end` (certainly on disk), `durable_end` (as durable as `log.sync`
promises; the high watermark), `written_end` (passed to the operating system) and `end_offset` (appended, perhaps only
in memory). `append` buffers, `write_pending` writes, and the journal moves the durable ends.

A roll is a barrier: the old segment, its indexes and its directory entry are synced before the new segment's files
exist. So only the last segment can have a torn tail. A thread executes these steps; `log_write` explains their order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from kcoord.log.aborted import collect_aborted, has_aborted, index_of, rebuild_index
from kcoord.log.errors import LogDamaged, OffsetOutOfRange
from kcoord.log.exchange import DELETED_SUFFIX, SWAP_SUFFIX, settle
from kcoord.log.log_config import PREALLOCATING_FREE_MIN, LogConfig
from kcoord.log.log_write import PARTITION_METADATA, LogWrite, SegmentWrite
from kcoord.log.open_files import OpenFiles
from kcoord.log.partition_files import encode_epochs, encode_partition_metadata
from kcoord.log.reader import Window
from kcoord.log.segment import LOOKUP_CHUNK_BYTES, RELATIVE_OFFSET_MAX, BadBatch, Segment, segment_name
from kcoord.log.snapshot_files import SnapshotFiles, offsets_of_files
from kcoord.log.storage import DirectorySync, DiskFile, FileSync, Folder, SharedDescriptor, Storage, Syncable
from kcoord.log.tail import Tail
from kcoord.log.time_lookup import TimeLookup
from kcoord.log.transaction_index import AbortedTransaction, TransactionSurvey
from kcoord.wire.file_range import FileRange
from kcoord.wire.record_batch import NO_TIMESTAMP

EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
# From this size on, it is cheaper to let the system copy records from the file than to read them.
FILE_RANGE_BYTES_MIN: Final = 64 << 10
INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF
INT64_DIGITS: Final = 19


class RecoveryEvent:
    """A repair during recovery: `bytes_cut` bytes were removed from `file` at `position`."""

    def __init__(self, log: str, file: str, position: int, bytes_cut: int, reason: str) -> None:
        self.log = log
        self.file = file
        self.position = position
        self.bytes_cut = bytes_cut
        self.reason = reason

    def __repr__(self) -> str:
        return f"RecoveryEvent({self.file}: {self.bytes_cut} bytes cut at {self.position}: {self.reason})"


class Extent:
    """Whole batches in one file: from byte `start` up to byte `end`."""

    def __init__(self, path: str, start: int, end: int) -> None:
        self.path = path
        self.start = start
        self.end = end


class PartitionLog:
    """The log of one partition, see the module docstring. LogDirectory creates it.

    Not thread-safe, except that any thread may sync the items that write_pending returns.
    """

    def __init__(
        self,
        storage: Storage,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        files: OpenFiles | None = None,
    ) -> None:
        self.storage = storage
        self.files = files
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.name = f"{topic}-{partition}"
        self.folder = Folder(storage, self.name)
        self.config = config
        self.log_start_offset = 0
        # Below this offset records have format 1 (record_format.py).
        self.format_1_end = 0
        self.end_offset = 0
        self.written_end = 0
        self.durable_end = 0
        self.synced_end = 0
        # Set by the journal while the log is on its list.
        # What was appended since its file was last synced in the background (see Journal.take_ahead).
        self.ahead_bytes = 0
        self.dirty = False
        self.rolled = False
        self._segments: list[Segment] = [self._new_segment(0)]
        self._bases: list[int] = [0]
        self._active = self._segments[0]
        # The index of the first segment that is not closed on disk. Appends since then went to it or to later ones.
        self._first_dirty = 0
        # For the commit in flight: the work of a thread, if any, and whether the commit syncs the loop's own writes.
        self._write: LogWrite | None = None
        self._is_syncing = False
        # Files found at opening that may not be synced; `settle_tail` syncs them.
        self.unsettled: list[Syncable] = []
        # False if a killed process may have created names and files without syncing them. The first write syncs them,
        # so that the start does not have to.
        self._is_settled = True
        # Whether a clean close has something to save: indexes, epochs, or the files of a new log.
        self.unsaved = False
        # Whether the directory exists: the first write to a new log creates it.
        self.has_files = True
        self._tail = Tail(config.tail_bytes_max)
        # (epoch, first offset), ascending in both.
        self._epochs: list[tuple[int, int]] = []
        self._last_epoch = -1
        self.snapshots = SnapshotFiles(storage, self.name)
        # Returns the producer snapshot at the current end. If None, no snapshots are written.
        self.producer_state: Callable[[], bytes] | None = None

    def __repr__(self) -> str:
        return f"PartitionLog({self.name}, {self.log_start_offset}..{self.end_offset})"

    def _new_segment(self, base_offset: int, suffix: str = "") -> Segment:
        return Segment(self.storage, self.name, base_offset, self.config.index_interval_bytes, suffix, self.files)

    # --- opening

    def begin(self) -> None:
        """Begin a new log. `create_files` or the first write creates its files."""
        self.has_files = False
        self.unsaved = True
        self._assign_epoch(0, 0)

    def create_files(self) -> None:
        """Create the directory and the files of a new log without syncing them."""
        self.has_files = True
        self.storage.make_dir(self.name)
        self.write_metadata()
        self._segments[0].create_files()
        self._write_small(EPOCH_CHECKPOINT, encode_epochs(self._epochs))

    def write_metadata(self) -> None:
        self._write_small(PARTITION_METADATA, encode_partition_metadata(self.topic_id))

    def _write_small(self, name: str, data: bytes) -> None:
        file = self.storage.open(f"{self.name}/{name}")
        try:
            file.truncate(0)
            file.append(data)
        finally:
            file.close()

    def recover(
        self,
        recovery_point: int,
        log_start_offset: int,
        clean: bool,
        commit_bytes_max: int | None,
        verify: bool = False,
    ) -> list[RecoveryEvent]:
        """Open the existing segments. Returns the repairs that were made; raises LogDamaged.

        Everything below `recovery_point` was synced, so an invalid batch there is damage, never a torn write. After an
        unclean stop the last segment is checked batch by batch. (Older ones need no check: a roll is a barrier.) If a
        batch is invalid, the segment is truncated there, under two conditions: its offset is not below the recovery
        point, and no valid batch lies more than `commit_bytes_max` bytes (None: any distance) after it. A valid batch
        farther away belongs to a later commit, so the invalid one was durable once. With `verify` all segments are
        checked.

        The caller must sync `unsettled` (see settle_tail) before it serves the log: a crash could otherwise lose
        records that a client has read.
        """
        settle(self.storage, self.name, self.config.index_interval_bytes)
        bases = offsets_of_files(self.storage, self.name, ".log")
        if not bases:
            if recovery_point > log_start_offset:
                raise LogDamaged(self.name, log_start_offset, 0, f"no segments, {recovery_point} offsets synced")
            self._start_at(log_start_offset)
            self.snapshots.remove_stale([], log_start_offset)
            return []
        self._segments = [self._new_segment(base).existing() for base in bases]
        self._bases = bases
        self._active = self._segments[-1]
        self._first_dirty = len(bases) - 1
        self._read_epochs(INT64_MAX)
        if verify:
            for i in range(len(bases) - 1):
                self._check_closed(self._segments[i], bases[i + 1])
        events: list[RecoveryEvent] = []
        if clean and not verify:
            end = self._last_offset_of(self._active) + 1
        else:
            end = self._recover_active(recovery_point, commit_bytes_max, events)
            if end > recovery_point:
                self._note_unsettled(recovery_point)
            elif not self._active.size:
                self._is_settled = False
        if end < recovery_point:
            reason = f"the log ends at {end}, but was synced up to {recovery_point}"
            raise LogDamaged(self._active.log_path, end, self._active.size, reason)
        self.end_offset = self.written_end = self.durable_end = self.synced_end = end
        self.log_start_offset = min(max(log_start_offset, bases[0]), end)
        self._load_epochs()
        self.snapshots.remove_stale(bases, end)
        for segment in self._segments:
            segment.close()
        return events

    def _start_at(self, offset: int) -> None:
        self._segments = [self._new_segment(offset)]
        self._bases = [offset]
        self._active = self._segments[0]
        self.log_start_offset = offset
        self.end_offset = self.written_end = self.durable_end = self.synced_end = offset
        self._is_settled = False
        self._load_epochs()

    def _check_closed(self, segment: Segment, next_base: int) -> None:
        try:
            end = segment.rescan(contiguous=False, epochs=self._epochs)
        except BadBatch as bad:
            raise LogDamaged(segment.log_path, bad.next_offset, bad.position, bad.reason) from None
        if end > next_base:
            reason = f"the segment ends at {end}, the next one begins at {next_base}"
            raise LogDamaged(segment.log_path, next_base, segment.size, reason)

    def _last_offset_of(self, segment: Segment) -> int:
        last = segment.base_offset - 1
        for header, _data in segment.batches(segment.position_before(INT64_MAX), True):
            last = header.last_offset
        return last

    def _recover_active(self, recovery_point: int, commit_bytes_max: int | None, events: list[RecoveryEvent]) -> int:
        segment = self._active
        self.unsaved = True
        # A killed process may have removed them without syncing that.
        segment.may_end_in_zeros = True
        survey = TransactionSurvey()
        try:
            end = segment.rescan(contiguous=True, epochs=self._epochs, survey=survey)
            self._rebuild_transactions(segment, survey)
            return end
        except BadBatch as bad:
            found = bad
        if found.next_offset < recovery_point:
            raise LogDamaged(segment.log_path, found.next_offset, found.position, found.reason)
        if commit_bytes_max is not None:
            self._refuse_batch_after(segment, found, commit_bytes_max)
        cut = segment.size - found.position
        reason = found.reason
        if self._window_of(segment).is_zero(found.position, segment.size):
            reason = "zeros: preallocated, or the contents did not reach the disk"
        segment.file().truncate(found.position)
        self.unsettled.append(FileSync(self.storage, segment.log_path))
        segment.size = segment.end_position = found.position
        events.append(RecoveryEvent(self.name, segment.log_path, found.position, cut, reason))
        self._rebuild_transactions(segment, survey)
        return found.next_offset

    def _rebuild_transactions(self, segment: Segment, survey: TransactionSurvey) -> None:
        earlier = [one for one in self._segments if one.base_offset < segment.base_offset]
        segment.set_transactions(rebuild_index(survey, earlier, self.snapshots, segment.base_offset))

    def _window_of(self, segment: Segment) -> Window:
        file = segment.file()
        return Window(lambda size, position: file.read_at(position, size), segment.size)

    def _refuse_batch_after(self, segment: Segment, bad: BadBatch, commit_bytes_max: int) -> None:
        """Raise LogDamaged if a valid batch lies farther after the bad one than one commit can reach."""
        window = self._window_of(segment)
        further = window.next_valid(bad.position + commit_bytes_max, bad.next_offset)
        if further < window.size:
            reason = f"{bad.reason}, but a valid batch follows at byte {further}"
        elif window.has_given_up:
            reason = f"{bad.reason}, and the search for a later valid batch exceeded its limit"
        else:
            return
        raise LogDamaged(segment.log_path, bad.next_offset, bad.position, reason)

    def _note_unsettled(self, recovery_point: int) -> None:
        """Note the files above the recovery point that must be synced.

        A killed process leaves bytes in the page cache that were never synced. From here on clients can read them, and
        the recovery points will cover them. Files that the recovery point proves to be synced are left out: a durable
        record in the active segment proves the segment's name and the topic id. The leader epoch file is durable before
        the first batch of an epoch; an epoch without a durable batch may have a name that is not synced.
        """
        active = self._active
        if active.size:
            self.unsettled.append(FileSync(self.storage, active.log_path))
        if not recovery_point and self.folder.exists(PARTITION_METADATA):
            self.unsettled.append(FileSync(self.folder, PARTITION_METADATA))
        if recovery_point <= active.base_offset or self._epochs_from(recovery_point):
            self.unsettled.append(self.folder)

    def _epochs_from(self, offset: int) -> bool:
        return len(self._epochs) > 1 and self._epochs[-1][1] >= offset

    def settle_tail(self) -> None:
        """Sync the files found at opening. The caller syncs the root. May run in any thread. Raises OSError."""
        for item in self.unsettled:
            item.datasync()
        self.unsettled = []

    # --- appending

    def append(
        self, batch: bytes, base_offset: int, last_offset: int, max_timestamp: int, leader_epoch: int = 0
    ) -> None:
        """Append one whole batch in memory; write_pending writes it.

        `batch` must carry these offsets, this epoch and a correct checksum; the caller has built or checked it.
        """
        if base_offset != self.end_offset or last_offset < base_offset:
            raise ValueError(f"batch {base_offset}..{last_offset} appended to {self!r}")
        active = self._active
        position = active.end_position
        if position and (
            position + len(batch) > self.config.segment_bytes
            or last_offset - active.base_offset > RELATIVE_OFFSET_MAX
            or (
                active.first_timestamp != NO_TIMESTAMP
                and max_timestamp - active.first_timestamp > self.config.segment_ms
            )
        ):
            active = self._roll(base_offset)
        if leader_epoch != self._last_epoch:
            self._assign_epoch(leader_epoch, base_offset)
        active.append(batch, last_offset, max_timestamp)
        self.unsaved = True
        self._tail.append(base_offset, batch)
        self.end_offset = last_offset + 1

    def note_aborted(self, producer_id: int, first_offset: int, marker_offset: int, stable_offset: int) -> None:
        """The last batch appended is an abort marker: note the transaction that it ended."""
        index_of(self._segments, len(self._segments) - 1, self.snapshots)
        self._active.note_aborted(producer_id, first_offset, marker_offset, stable_offset)

    def _roll(self, base_offset: int) -> Segment:
        self._active = self._new_segment(base_offset)
        if self.producer_state is not None:
            self._active.producer_snapshot = self.producer_state()
        self._segments.append(self._active)
        self._bases.append(base_offset)
        return self._active

    def write_pending(self, sync: bool = True, is_last: bool = False) -> list[Syncable]:
        """Write everything appended, with one call per segment. Returns the items to sync, which any thread may do.

        Call `end_write` after the last sync. With `sync` false only a LogWrite among the items must be executed: it is
        returned if a segment is closed or no more files can be held open, and writes the remaining bytes. In this case
        `written_end` moves in `end_write`, not here. With `is_last` nothing is preallocated. Raises OSError and
        LogDamaged.
        """
        first = self._segments[self._first_dirty]
        rolls = first is not self._active
        if not rolls and not first.pending:
            self.written_end = self.end_offset
            return []
        if not self.has_files:
            self.create_files()
            # The first commit also syncs the topic id and the names: records without them would be orphaned.
            self._is_settled = False
        syncs: list[Syncable] = []
        if sync and not self._is_settled:
            self._is_settled = True
            syncs.append(FileSync(self.folder, PARTITION_METADATA))
            syncs.append(self.folder)
            syncs.append(DirectorySync(self.storage, ""))
        self._is_syncing = sync
        may_hold = first.may_hold()
        if first.pending and may_hold:
            size_bytes = first.end_position - first.size
            if first.write_pending() and not rolls:
                syncs.append(self.folder)
            if sync and not rolls and self.config.preallocated_bytes and not is_last:
                self._preallocate(size_bytes)
            self.written_end = self._bases[self._first_dirty + 1] if rolls else self.end_offset
        if not rolls and may_hold:
            syncs.append(first.file())
        else:
            self._write = self._begin_write()
            syncs.append(self._write)
        return syncs

    def _preallocate(self, written_bytes: int) -> None:
        """Write zeros behind the end, if the log has some size and grows by small writes. Raises OSError.

        A small log may never be written again. After a large write the time of a sync is that of its bytes, and zeros
        would only be more of them. If files are closed for others, each of them would be preallocated again and again.
        The volume keeps room for contents.
        """
        active = self._active
        most = self.config.preallocated_bytes
        size_bytes = min(most, self.config.segment_bytes - active.size)
        if 4 * written_bytes > most or 4 * active.size < most or size_bytes <= 0 or active.is_preallocated():
            return
        if self.files is not None and self.files.is_scarce:
            return
        if self.storage.free_bytes() >= PREALLOCATING_FREE_MIN:
            active.preallocate(size_bytes)

    def write_plainly(self) -> bool:
        """`write_pending` and `end_write` in one, without a sync, if there is nothing to do but to append to the newest
        file. False: nothing was done. Raises OSError.
        """
        active = self._active
        if active is not self._segments[self._first_dirty] or not active.pending or not active.size:
            return False
        if not active.may_hold():
            return False
        self._is_syncing = False
        active.write_pending()
        self.written_end = self.end_offset
        self.durable_end = self.end_offset
        return True

    def share_active(self) -> SharedDescriptor | None:
        """The newest file, if it is open on a disk and may have bytes that are not synced."""
        file = self._active.held_file
        return file.share() if isinstance(file, DiskFile) else None

    def _begin_write(self) -> LogWrite:
        """Prepare for a thread: write the remaining bytes and close all segments but the last."""
        segments = self._segments[self._first_dirty :]
        for segment in segments:
            # The thread appends at the end of the file.
            segment.trim()
        for segment in segments[:-1]:
            segment.seal()
        writes = [SegmentWrite(segment, segment.take_pending(), segment.held_file) for segment in segments]
        for segment in segments:
            segment.producer_snapshot = None
        return LogWrite(self.folder, DirectorySync(self.storage, ""), writes, self.end_offset)

    @property
    def is_writing(self) -> bool:
        """Whether a thread is writing or closing segments; true until `end_write`."""
        return self._write is not None

    def end_write(self) -> None:
        """Apply the result of a write: every item that `write_pending` returned is done."""
        write, self._write = self._write, None
        if write is None:
            if self._is_syncing:
                self._segments[self._first_dirty].release()
            return
        for part in write.writes:
            part.segment.grow(len(part.data))
        self.written_end = write.end
        if len(write.writes) > 1:
            self._first_dirty += len(write.writes) - 1
            self.rolled = True
            # Closing a segment syncs the names of the log and its files as well. A single write under `log.sync=os`
            # does not, so it must not move this end.
            self.synced_end = max(self.synced_end, write.end)

    def flush(self) -> None:
        """Write and sync everything appended, and wait for it. Raises OSError and LogDamaged."""
        for sync in self.write_pending(is_last=True):
            sync.datasync()
        self.end_write()

    # --- reading

    def read(self, offset: int, max_bytes: int, upto_offset: int, min_one_batch: bool = True) -> bytes:
        """Whole batches from the one that holds `offset` on, as long as they begin below `upto_offset`.

        Returns at most `max_bytes`, but with `min_one_batch` at least one batch, whatever its size. Nothing above
        written_end is returned; the caller passes the end that its reader may see. Raises OffsetOutOfRange outside
        log_start_offset … end_offset, and LogDamaged.
        """
        if offset < self.log_start_offset or offset > self.end_offset:
            raise OffsetOutOfRange(f"{offset} is not in {self!r}")
        upto_offset = min(upto_offset, self.written_end)
        if offset >= upto_offset:
            return b""
        if self._tail.holds(offset):
            return self._tail.read(offset, max_bytes, upto_offset, min_one_batch)
        i = bisect_right(self._bases, offset) - 1
        while i < len(self._segments) and self._bases[i] < upto_offset:
            segment = self._segments[i]
            if segment.size:
                data = segment.read(offset, max_bytes, upto_offset, min_one_batch)
                if data or not min_one_batch:
                    return data
            i += 1
        return b""

    def locate(self, offset: int, max_bytes: int, upto_offset: int) -> FileRange | None:
        """The file and the position of what `read` would return, if that is a lot and to be found without reading it.

        Batches between the first and the last one are not looked at, as on a broker. None: use `read`, which also
        raises what is to be raised.
        """
        if max_bytes < FILE_RANGE_BYTES_MIN or offset < self.log_start_offset or self._tail.holds(offset):
            return None
        upto_offset = min(upto_offset, self.written_end)
        if offset >= upto_offset:
            return None
        i = bisect_right(self._bases, offset) - 1
        if i < 0:
            return None
        end = self._bases[i + 1] if i + 1 < len(self._bases) else self.written_end
        found = self._segments[i].locate(offset, max_bytes, min(end, self.written_end), upto_offset)
        return found if found is not None and found.size >= FILE_RANGE_BYTES_MIN else None

    def has_aborted(self, offset: int) -> bool:
        """Whether the segment of `offset` or a later one has a marker of an aborted transaction. Raises LogDamaged."""
        return has_aborted(self._segments, self._bases, self.snapshots, offset)

    def aborted_transactions(self, offset: int, last_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions with records among those read from `offset` to `last_offset`, and some later ones.

        As on a broker, the list reaches up to the next entry of the offset index. Raises LogDamaged.
        """
        return collect_aborted(self._segments, self._bases, self.snapshots, offset, last_offset, self.end_offset)

    def extents(self, from_offset: int, upto_offset: int) -> list[Extent]:
        """The file ranges of the written batches between the offsets, possibly with a few batches before and after.

        For readers with their own loops. Raises LogDamaged.
        """
        upto_offset = min(upto_offset, self.written_end)
        extents: list[Extent] = []
        first = max(bisect_right(self._bases, from_offset) - 1, 0)
        for segment in self._segments[first:]:
            if segment.base_offset < upto_offset and segment.size and from_offset < upto_offset:
                start = 0
                if from_offset > segment.base_offset:
                    start = segment.position_before(from_offset)
                extents.append(Extent(segment.log_path, start, segment.size))
        return extents

    def find_by_timestamp(
        self, timestamp: int, upto_offset: int = INT64_MAX, lookup: TimeLookup | None = None
    ) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record at or after `timestamp`, for ListOffsets.

        None if there is none below `upto_offset`, or if `lookup` must continue in a thread. Raises LogDamaged.
        """
        lookup = lookup or TimeLookup(self.config.decompressed_bytes_max)
        upto_offset = min(upto_offset, self.written_end)
        for i, segment in enumerate(self._segments):
            beyond = self._bases[i + 1] if i + 1 < len(self._bases) else self.end_offset
            if beyond <= self.log_start_offset or not segment.size:
                continue
            if segment.max_timestamp < timestamp:
                continue
            position = max(segment.position_before_timestamp(timestamp), segment.position_before(self.log_start_offset))
            for header, data in segment.batches(position, False, LOOKUP_CHUNK_BYTES):
                if header.base_offset >= upto_offset:
                    return None
                if header.max_timestamp < timestamp or header.last_offset < self.log_start_offset:
                    continue
                found = lookup.find(segment.log_path, data, header.pos, timestamp, self.log_start_offset)
                if lookup.search is not None:
                    return None
                if found is not None:
                    return None if found[1] >= upto_offset else (found[0], found[1], header.leader_epoch)
        return None

    def max_timestamp(self, lookup: TimeLookup | None = None) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record with the largest timestamp.

        None if there is none, or if `lookup` must continue in a thread. Raises LogDamaged.
        """
        lookup = lookup or TimeLookup(self.config.decompressed_bytes_max)
        best: Segment | None = None
        for i, segment in enumerate(self._segments):
            beyond = self._bases[i + 1] if i + 1 < len(self._bases) else self.end_offset
            if beyond <= self.log_start_offset or not segment.size:
                continue
            if best is None or segment.max_timestamp > best.max_timestamp:
                best = segment
        if best is None or best.max_timestamp == NO_TIMESTAMP:
            return None
        position = best.position_before(best.offset_of_max_timestamp)
        for header, data in best.batches(position, False, LOOKUP_CHUNK_BYTES):
            if header.max_timestamp != best.max_timestamp:
                continue
            found = lookup.find(best.log_path, data, header.pos, header.max_timestamp, 0)
            if lookup.search is not None:
                return None
            if found is not None:
                return found[0], found[1], header.leader_epoch
        return None

    # --- producer snapshots

    def _save_producers(self) -> None:
        """Write the producer snapshot at the log's end, unless it exists."""
        if self.producer_state is None or self.end_offset == 0:
            return
        if self.end_offset not in self.snapshots.offsets():
            self.snapshots.write(self.end_offset, self.producer_state())

    def offset_before(self, offset: int, size_bytes: int) -> int:
        """The offset of a batch about `size_bytes` before `offset`, or the log's start. Raises LogDamaged."""
        left = size_bytes
        first = bisect_right(self._bases, offset) - 1
        for i in range(first, -1, -1):
            segment = self._segments[i]
            if not segment.size:
                continue
            position = segment.position_before(offset) if i == first else segment.size
            if position >= left:
                return max(segment.offset_near(position - left), self.log_start_offset)
            left -= position
        return self.log_start_offset

    # --- leader epochs

    def _read_epochs(self, end_offset: int) -> None:
        """Read the leader epoch checkpoint for the offsets up to `end_offset`."""
        path = f"{self.name}/{EPOCH_CHECKPOINT}"
        self._epochs = []
        self._last_epoch = -1
        text = self.storage.read_bytes(path).decode("ascii", "replace") if self.storage.exists(path) else ""
        for line in text.split("\n")[2:]:
            words = line.split()
            if len(words) == 2 and all(word.isdecimal() and len(word) <= INT64_DIGITS for word in words):
                epoch, start = int(words[0]), int(words[1])
                if epoch > self._last_epoch and start <= end_offset:
                    self._epochs.append((epoch, start))
                    self._last_epoch = epoch

    def _load_epochs(self) -> None:
        self._read_epochs(self.end_offset)
        if not self._epochs:
            # The file is not synced for a single epoch, because the first batch contains it.
            for segment in self._segments:
                for header, _data in segment.batches(0, False):
                    self._last_epoch = header.leader_epoch
                    self._epochs = [(header.leader_epoch, segment.base_offset)]
                    return

    def _assign_epoch(self, epoch: int, start_offset: int) -> None:
        if epoch < self._last_epoch:
            raise ValueError(f"leader epoch {epoch} after {self._last_epoch} in {self!r}")
        # Drop epochs without a batch, as a broker does.
        while self._epochs and self._epochs[-1][1] >= start_offset:
            self._epochs.pop()
        self._epochs.append((epoch, start_offset))
        self._last_epoch = epoch
        if len(self._epochs) > 1:
            self._write_epochs()

    def _write_epochs(self) -> None:
        # A log without files gets them all with its first write.
        if self.has_files:
            self.storage.write_atomic(f"{self.name}/{EPOCH_CHECKPOINT}", encode_epochs(self._epochs))

    @property
    def leader_epoch(self) -> int:
        """Epoch of the newest batch; -1 for a log that never had one."""
        return self._last_epoch

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch not above `epoch`, for OffsetForLeaderEpoch; (-1, -1) if none.

        The end of the newest epoch is the log's end; the caller limits it to the end that its reader may see.
        """
        if epoch < 0 or epoch > self._last_epoch or not self._epochs:
            return (-1, -1)
        if epoch == self._last_epoch:
            return (epoch, self.end_offset)
        i = bisect_right(self._epochs, (epoch, INT64_MAX)) - 1
        if i < 0:
            # Older than all known epochs: it ended where the oldest known epoch begins.
            return (epoch, self._epochs[0][1])
        return (self._epochs[i][0], self._epochs[i + 1][1])

    # --- start, size, end

    @property
    def size_bytes(self) -> int:
        return sum(segment.end_position for segment in self._segments)

    @property
    def unwritten_bytes(self) -> int:
        """The bytes that the next write adds to the last segment."""
        return self._active.end_position - self._active.size

    @property
    def segments(self) -> list[Segment]:
        """The segments in order of offsets; the last one is appended to."""
        return self._segments[:]

    def roll(self) -> bool:
        """Close the active segment and begin the next one, in memory. Returns whether the old one had records.

        write_pending then syncs the old segment's files. Use Journal.roll, which does both.
        """
        if not self._active.end_position:
            return False
        self._roll(self.end_offset)
        self.unsaved = True
        return True

    @property
    def closed_segments(self) -> list[Segment]:
        """The segments that will not change again and whose files are complete."""
        return self._segments[: self._first_dirty] if self.storage.exists(self._active.log_path) else []

    def begin_replace(self, base: int, old_bases: list[int]) -> tuple[Segment, list[Segment]] | None:
        """Serve the promoted segment at `base` instead of the ones at `old_bases` (exchange.py, step 3).

        Returns the new and the old segments. The caller syncs the directory, renames the new segment to its final name,
        syncs again and removes the old segments, in this order. Returns None, and does nothing, if an old segment no
        longer exists.
        """
        first = bisect_right(self._bases, base) - 1
        beyond = first + len(old_bases)
        if first < 0 or self._bases[first:beyond] != old_bases or beyond > self._first_dirty:
            return None
        old = self._segments[first:beyond]
        new = self._new_segment(base, SWAP_SUFFIX).existing()
        for segment in old:
            segment.close()
            segment.rename(DELETED_SUFFIX, segment.base_offset != base)
        self._tail.forget(self._bases[beyond])
        self._segments[first:beyond] = [new]
        self._bases[first:beyond] = [base]
        self._first_dirty -= len(old) - 1
        return new, old

    def take_segments_below(self, offset: int) -> list[Segment]:
        """Drop closed segments that lie entirely below `offset`; the caller removes their files.

        The new start must be durable before the files are removed: otherwise a crash would leave a log whose start
        points to missing records.
        """
        count = 0
        while count < self._first_dirty and self._bases[count + 1] <= offset:
            count += 1
        taken = self._segments[:count]
        del self._segments[:count]
        del self._bases[:count]
        self._first_dirty -= count
        for segment in taken:
            segment.close()
        return taken

    def close(self, save: bool) -> None:
        """Close the files. With `save` everything, including the indexes, is written and synced first.

        Otherwise nothing is changed any more: the log has failed, or was deleted.

        May run in any thread if nothing else uses the log.
        """
        if save:
            self.flush()
            if self.unsaved and self.has_files:
                if self._active.size:
                    self._active.trim()
                    self._active.file().datasync()
                    self._active.save_indexes()
                self._save_producers()
                if self._epochs:
                    self._write_epochs()
                FileSync(self.folder, PARTITION_METADATA).datasync()
                self.folder.datasync()
                self.unsaved = False
            self.durable_end = self.synced_end = self.end_offset
        for segment in self._segments:
            segment.close(save)


__all__ = [
    "PARTITION_METADATA",
    "PartitionLog",
    "RecoveryEvent",
    "segment_name",
]
