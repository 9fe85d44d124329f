"""The batches of a slice, and what lies between them that is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kcoord.log.reader import RELATIVE_OFFSET_MAX, DamagedBytes, StoredBatch, Window, batches_between
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
    return ScanRange(
        part.from_offset, part.to_offset, part.from_ms, part.to_ms, aborted, decompressed_bytes_max
    )


def stored_batches(filesystem: Any, part: Slice) -> Iterator[StoredBatch | DamagedBytes]:
    """Batch after batch, as objects. Raises OSError."""
    with FileBytes(filesystem, part.segment.path, part.segment.size) as file:
        base = part.segment.base_offset
        yield from batches_between(
            Window(file.pread, file.size), part.segment.path, part.start, part.end, part.next_offset, base
        )


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
            at = 0
            while True:
                at = scan.feed(chunk, at, end - position, position, highest, rows_max)
                if not scan.is_full(rows_max):
                    break
                yield None
            position += at
            if position >= end:
                return
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
