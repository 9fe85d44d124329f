"""Exchanging cleaned segments for the old ones, so that a crash at any moment leaves the one or the other.

1. The cleaner leaves `<base>.log.cleaned` with its indexes, synced. A crash so far: `settle` drops them.
2. `promote` renames them to `.swap` and syncs the directory. From here on the exchange is settled forwards.
3. The old segments are renamed to `.deleted`, and that is synced: a new segment never gets its final name while
   an old one that it stands for may come back.
4. `.swap` is taken off the new names, and that is synced; then the `.deleted` files go.

A new segment ends with the last offset of the old ones, so its name and its contents say which those are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kcoord.log.cleaner import CLEANED_SUFFIX
from kcoord.log.errors import LogDamaged
from kcoord.log.segment import INDEX_KINDS, BadBatch, Segment
from kcoord.log.storage import Storage

SWAP_SUFFIX: Final = ".swap"
DELETED_SUFFIX: Final = ".deleted"
BASE_DIGITS: Final = 20


def promote(storage: Storage, directory: str, bases: Iterable[int], interval: int) -> None:
    """Make the cleaned segments at `bases` the ones that count, durably. Raises OSError."""
    for base in bases:
        Segment(storage, directory, base, interval, CLEANED_SUFFIX).rename(SWAP_SUFFIX)
    storage.sync_dir(directory)


def demote(storage: Storage, directory: str, base: int, interval: int) -> None:
    """Drop a promoted segment whose old ones have gone meanwhile. Raises OSError."""
    Segment(storage, directory, base, interval, SWAP_SUFFIX).remove()
    storage.sync_dir(directory)


def settle(storage: Storage, directory: str, interval: int) -> bool:
    """Finish or undo what a crash interrupted; whether there was anything. Raises LogDamaged and OSError."""
    names = storage.list_dir(directory)
    leftovers = [name for name in names if name.endswith((CLEANED_SUFFIX, DELETED_SUFFIX))]
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    if not leftovers and not swaps:
        return False
    for name in leftovers:
        try:
            storage.remove(f"{directory}/{name}")
        except FileNotFoundError:
            # The cleaner of a server that was killed a moment ago has begun the file anew.
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


def _remove_replaced(
    storage: Storage, directory: str, segment: Segment, names: list[str], interval: int
) -> None:
    """Remove the old segments that `segment` stands for. The producers' snapshot of its own base stays."""
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
    """Indexes that came too late: their segment has its final name already, or never got it."""
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
