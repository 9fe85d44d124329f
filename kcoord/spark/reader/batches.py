"""The batches of a slice, and the damage between them."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any, final

from kcoord.log.reader import RELATIVE_OFFSET_MAX, DamagedBytes, StoredBatch, Window, batches_between
from kcoord.spark.reader.discovery import list_partition
from kcoord.spark.reader.filesystem import FileBytes
from kcoord.spark.reader.segments import SegmentChanged, has_changed, is_gone, open_segment
from kcoord.spark.reader.slices import Slice
from kcoord.spark.scan.columns import Scan, ScanRange

# How much is read at once, and the largest batch.
CHUNK_BYTES = 8 << 20
BATCH_BYTES_MAX = 256 << 20
# The largest index, which is read whole.
INDEX_BYTES_MAX = 64 << 20
ROWS_PER_BATCH = 65_536
DECOMPRESSED_BYTES_MAX = 256 << 20


@final
class NotAsPlanned:
    """The last item of a slice whose file has changed: it must be planned again from `next_offset` on."""

    def __init__(self, path: str, reason: str, next_offset: int) -> None:
        self.path = path
        self.reason = reason
        self.next_offset = next_offset


Item = DamagedBytes | NotAsPlanned | None


def wanted_range(part: Slice, decompressed_bytes_max: int) -> ScanRange:
    aborted: dict[int, list[tuple[int, int]]] = {}
    for one in part.aborted:
        aborted.setdefault(one.producer_id, []).append((one.first_offset, one.last_offset))
    wanted = ScanRange(part.from_offset, part.to_offset, part.from_ms, part.to_ms, aborted, decompressed_bytes_max)
    wanted.format_1_end = part.format_1_end
    return wanted


def stored_batches(filesystem: Any, part: Slice) -> Iterator[StoredBatch | DamagedBytes]:
    """Batch after batch, as objects. Raises SegmentChanged and OSError."""
    with open_segment(filesystem, part.segment) as file:
        base = part.segment.base_offset
        window = Window(file.pread, file.size)
        yield from batches_between(window, part.segment.path, part.start, part.end, part.next_offset, base)
        if window.size < file.size:
            yield _shrunk(file, part, window.size, window.next_offset)


def scan_slice(filesystem: Any, part: Slice, scan: Scan, rows_max: int = ROWS_PER_BATCH) -> Iterator[Item]:
    """Scan a slice: yields damage when it is found, and None when the scan is full and its rows must be taken.

    After the last item the scan has more rows to take. If that item is NotAsPlanned, they are all rows below its
    offset. Raises OSError.
    """
    scan.next_offset = part.next_offset
    try:
        file = open_segment(filesystem, part.segment)
    except SegmentChanged as change:
        yield NotAsPlanned(change.path, change.reason, part.next_offset)
        return
    with file:
        try:
            yield from _scan_open(filesystem, file, part, scan, rows_max)
        except OSError as error:
            if not is_gone(error) and not has_changed(filesystem, part.segment):
                raise
            yield NotAsPlanned(part.segment.path, str(error), scan.next_offset)


def _scan_open(filesystem: Any, file: FileBytes, part: Slice, scan: Scan, rows_max: int) -> Iterator[Item]:
    highest = part.segment.base_offset + RELATIVE_OFFSET_MAX
    end = min(part.end, file.size)
    position = part.start
    wanted = CHUNK_BYTES
    item: DamagedBytes | None = None
    while position < end:
        chunk = file.pread(wanted, position)
        due = scan.next_offset
        if not chunk:
            item = _shrunk(file, part, position, due)
            yield _planned_again(filesystem, part, item, due) or item
            return
        at = 0
        while True:
            at = scan.feed(chunk, at, end - position, position, highest, rows_max)
            if not scan.is_full(rows_max):
                break
            yield None
        position += at
        if position >= end:
            break
        if not scan.reason and at > 0:
            wanted = CHUNK_BYTES
            continue
        if not scan.reason and len(chunk) == wanted and wanted < min(file.size - position, BATCH_BYTES_MAX):
            # A batch larger than the chunk, or a wrong length: read more in steps.
            wanted *= 2
            continue
        # Damage, or a batch that ends after the file.
        due = scan.next_offset
        item = _damage_at(file, part, position, end, scan)
        if again := _planned_again(filesystem, part, item, due):
            yield again
            return
        if _is_of(part, due):
            yield item
        position = item.position + item.size_bytes
        wanted = CHUNK_BYTES
    if overlap := _overlap(filesystem, file, part, scan.next_offset):
        yield overlap
    if item is None or item.position + item.size_bytes < file.size:
        # Otherwise the unreadable end has been reported.
        if gap := _gap(file, part, scan.next_offset):
            yield gap


def _planned_again(filesystem: Any, part: Slice, item: DamagedBytes, due: int) -> NotAsPlanned | None:
    """Unreadable bytes are not damage if the file has been replaced or was being written to.

    A slice is planned again for them only once: a file that grows all the time may be damaged as well.
    """
    if due <= part.tried_at or not has_changed(filesystem, part.segment):
        return None
    return NotAsPlanned(part.segment.path, item.reason, due)


def _is_of(part: Slice, due: int) -> bool:
    """Whether unreadable bytes belong to this slice. A slice that was planned again may share its file with others."""
    return part.tried_at < 0 or part.tried_at <= due < part.to_offset


def _gap(file: FileBytes, part: Slice, next_offset: int) -> DamagedBytes | NotAsPlanned | None:
    """The missing records of a log that ends below its durable mark.

    The mark may be newer than the listing, so the directory is listed once more before they count as missing.
    """
    if next_offset >= part.synced_to:
        return None
    reason = f"the log ends at {next_offset}, but was synced up to {part.synced_to}"
    if next_offset > part.tried_at:
        return NotAsPlanned(part.segment.path, reason, next_offset)
    return DamagedBytes(part.segment.path, file.size, 0, next_offset, reason, False)


def _shrunk(file: FileBytes, part: Slice, position: int, due: int) -> DamagedBytes:
    reason = "the file became shorter while it was read"
    return DamagedBytes(part.segment.path, position, file.size - position, due, reason, False)


def _overlap(filesystem: Any, file: FileBytes, part: Slice, next_offset: int) -> DamagedBytes | None:
    """Batches that end after the next segment's first offset: no checksum covers a batch's offset, so it is damaged.

    If the next segment no longer exists, compaction has merged both.
    """
    if part.end < file.size or not part.from_offset < part.to_offset < next_offset:
        return None
    now = list_partition(filesystem, posixpath.dirname(part.segment.path), part)
    if now is None or part.to_offset not in [segment.base_offset for segment in now.segments]:
        return None
    window = Window(file.pread, file.size)
    base = part.segment.base_offset
    for item in batches_between(window, part.segment.path, part.start, part.end, part.next_offset, base):
        if isinstance(item, StoredBatch) and item.header.last_offset >= part.to_offset:
            last = item.header.last_offset
            reason = f"offsets up to {last} where the next segment begins at {part.to_offset}"
            return DamagedBytes(item.file, item.position, item.header.size, part.to_offset, reason, False)
    return None


def _damage_at(file: FileBytes, part: Slice, position: int, end: int, scan: Scan) -> DamagedBytes:
    """The extent of the damage at `position`, and the reason."""
    window = Window(file.pread, file.size)
    path = part.segment.path
    due = scan.next_offset
    for item in batches_between(window, path, position, end, due, part.segment.base_offset):
        if isinstance(item, DamagedBytes):
            if item.reason.startswith("offsets"):
                # Offsets of the following batches are compared with it.
                scan.next_offset = max(due, window.next_offset)
            return item
        # The batch itself is valid, its records are not.
        scan.next_offset = item.header.last_offset + 1
        return DamagedBytes(path, position, item.header.size, due, scan.reason or "records cannot be read", False)
    return DamagedBytes(path, position, end - position, due, scan.reason or "cut short", False)
