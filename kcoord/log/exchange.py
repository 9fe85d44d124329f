"""Exchanges cleaned segments for the old ones, so that a crash at any moment leaves either the old or the new segments.

1. The cleaner writes `<base>.log.cleaned` and its indexes, and syncs them. After a crash up to this point `settle`
   removes them: the old segments are complete.
2. `promote` renames them to `.swap` and syncs the directory. From this sync on the new segments are valid, and `settle`
   completes the exchange after a crash. Before it, no old segment may be touched.
3. The old segments are renamed to `.deleted`, and the directory is synced. Only then may a new segment get its final
   name: otherwise a crash could leave it together with an old segment that it replaces.
4. The suffix `.swap` is removed from the new names, and the directory is synced. Then the `.deleted` files are removed:
   the new segments are durable under their final names, so nothing refers to the old ones.

A new segment ends at the last offset of the old ones. So its base offset and its contents determine which segments it
replaces, and `settle` needs no other record of the exchange.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kcoord.log.errors import LogDamaged
from kcoord.log.segment import INDEX_KINDS, BadBatch, Segment
from kcoord.log.storage import Storage

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
DELETED_SUFFIX: Final = ".deleted"
BASE_DIGITS: Final = 20


def promote(storage: Storage, directory: str, bases: Iterable[int], interval: int) -> None:
    """Step 2: make the cleaned segments at `bases` the valid ones, durably. Raises OSError."""
    for base in bases:
        Segment(storage, directory, base, interval, CLEANED_SUFFIX).rename(SWAP_SUFFIX)
    storage.sync_dir(directory)


def demote(storage: Storage, directory: str, base: int, interval: int) -> None:
    """Remove a promoted segment whose old segments were removed in the meantime. Raises OSError."""
    Segment(storage, directory, base, interval, SWAP_SUFFIX).remove()
    storage.sync_dir(directory)


def settle(storage: Storage, directory: str, interval: int) -> bool:
    """Complete or undo an exchange that a crash interrupted. Returns whether there was one.

    Raises LogDamaged and OSError.
    """
    names = storage.list_dir(directory)
    leftovers = [name for name in names if name.endswith((CLEANED_SUFFIX, DELETED_SUFFIX))]
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    if not leftovers and not swaps:
        return False
    for name in leftovers:
        try:
            storage.remove(f"{directory}/{name}")
        except FileNotFoundError:
            # The cleaner of a server that was just killed may have removed the file to write it again.
            continue
    segments = [
        Segment(storage, directory, int(name[:BASE_DIGITS]), interval, SWAP_SUFFIX).existing()
        for name in swaps
        if name.endswith(".log" + SWAP_SUFFIX)
    ]
    for segment in segments:
        _remove_replaced(storage, directory, segment, names, interval)
    storage.sync_dir(directory)
    for segment in segments:
        segment.rename("")
    _settle_indexes(storage, directory, [name for name in swaps if not name.endswith(".log" + SWAP_SUFFIX)])
    storage.sync_dir(directory)
    return True


def _remove_replaced(storage: Storage, directory: str, segment: Segment, names: list[str], interval: int) -> None:
    """Remove the old segments that `segment` replaces. The producer snapshot at its own base is kept."""
    try:
        end = segment.rescan(contiguous=False)
    except BadBatch as bad:
        raise LogDamaged(segment.log_path, bad.next_offset, bad.position, bad.reason) from None
    finally:
        segment.close()
    for name in names:
        stem, _, suffix = name.partition(".")
        if suffix == "log" and stem.isdecimal() and segment.base_offset <= int(stem) < end:
            Segment(storage, directory, int(stem), interval).remove(int(stem) != segment.base_offset)


def _settle_indexes(storage: Storage, directory: str, names: list[str]) -> None:
    """Handle indexes whose rename is missing: their segment has its final name already, or never got it."""
    for name in names:
        path = f"{directory}/{name}"
        if not storage.exists(path):
            continue
        final = path.removesuffix(SWAP_SUFFIX)
        log = final.rpartition(".")[0] + ".log"
        if storage.exists(log) and not storage.exists(final) and final.endswith(INDEX_KINDS):
            storage.rename(path, final)
        else:
            storage.remove(path)
