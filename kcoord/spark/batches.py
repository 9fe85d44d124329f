"""The batches of a slice, and what lies between them that is none."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

from kcoord.log.reader import RELATIVE_OFFSET_MAX, DamagedBytes, StoredBatch, Window, batches_between
from kcoord.log.segment import segment_name
from kcoord.spark.filesystem import FileBytes
from kcoord.spark.plan import Slice
from kcoord.spark.scan import Scan, ScanRange

# What is read at once, and the most that one batch may take.
CHUNK_BYTES = 8 << 20
BATCH_BYTES_MAX = 256 << 20
# Of a file beside a segment, which is read whole.
INDEX_BYTES_MAX = 64 << 20
ROWS_PER_BATCH = 65_536
DECOMPRESSED_BYTES_MAX = 256 << 20


def wanted_range(part: Slice, decompressed_bytes_max: int) -> ScanRange:
    aborted: dict[int, list[tuple[int, int]]] = {}
    for one in part.aborted:
        aborted.setdefault(one.producer_id, []).append((one.first_offset, one.last_offset))
    wanted = ScanRange(
        part.from_offset, part.to_offset, part.from_ms, part.to_ms, aborted, decompressed_bytes_max
    )
    wanted.format_1_end = part.format_1_end
    return wanted


def stored_batches(filesystem: Any, part: Slice) -> Iterator[StoredBatch | DamagedBytes]:
    """Batch after batch, as objects. Raises OSError."""
    with FileBytes(filesystem, part.segment.path, part.segment.size) as file:
        base = part.segment.base_offset
        window = Window(file.pread, file.size)
        yield from batches_between(window, part.segment.path, part.start, part.end, part.next_offset, base)
        if window.size < file.size:
            yield _shrunk(file, part, window.size, window.next_offset)
        elif overlap := _overlap(filesystem, file, part, window.next_offset):
            yield overlap


def scan_slice(
    filesystem: Any, part: Slice, scan: Scan, rows_max: int = ROWS_PER_BATCH
) -> Iterator[DamagedBytes | None]:
    """Scan a slice: damage as it is met, and None whenever there is much in the scan, which has to be taken then.

    What is in the scan at the end is to be taken, too. Raises OSError.
    """
    base = part.segment.base_offset
    highest = base + RELATIVE_OFFSET_MAX
    scan.next_offset = part.next_offset
    with FileBytes(filesystem, part.segment.path, part.segment.size) as file:
        end = min(part.end, file.size)
        position = part.start
        wanted = CHUNK_BYTES
        while position < end:
            chunk = file.pread(wanted, position)
            if not chunk:
                yield _shrunk(file, part, position, scan.next_offset)
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
            if (
                not scan.reason
                and len(chunk) == wanted
                and wanted < min(file.size - position, BATCH_BYTES_MAX)
            ):
                # A batch larger than the chunk, or a length that is wrong: look for its end in steps.
                wanted *= 2
                continue
            # Damage, or a batch that ends behind the file.
            item = _damage_at(file, part, position, end, scan)
            yield item
            position = item.position + item.size_bytes
            wanted = CHUNK_BYTES
        if overlap := _overlap(filesystem, file, part, scan.next_offset):
            yield overlap


def _shrunk(file: FileBytes, part: Slice, position: int, due: int) -> DamagedBytes:
    reason = "the file became shorter while it was read"
    return DamagedBytes(part.segment.path, position, file.size - position, due, reason, False)


def _overlap(filesystem: Any, file: FileBytes, part: Slice, next_offset: int) -> DamagedBytes | None:
    """Batches that end behind the next segment's beginning: no checksum covers the offset that damage moved there.

    If that segment is there no more, they are what compaction made of both.
    """
    if part.end < file.size or not part.from_offset < part.to_offset < next_offset:
        return None
    following = posixpath.join(posixpath.dirname(part.segment.path), segment_name(part.to_offset) + ".log")
    if filesystem.get_file_info(following).type.name != "File":
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
    """How far the damage at `position` reaches, and why it is one."""
    window = Window(file.pread, file.size)
    path = part.segment.path
    due = scan.next_offset
    for item in batches_between(window, path, position, end, due, part.segment.base_offset):
        if isinstance(item, DamagedBytes):
            if item.reason.startswith("offsets"):
                # What comes behind is judged by it.
                scan.next_offset = max(due, window.next_offset)
            return item
        # The batch as such is right, its records are not.
        scan.next_offset = item.header.last_offset + 1
        return DamagedBytes(
            path, position, item.header.size, due, scan.reason or "records cannot be read", False
        )
    return DamagedBytes(path, position, end - position, due, scan.reason or "cut short", False)
