"""The open files of a data directory's segments: at most so many at a time, the least recently used go first.

A file whose last bytes are not synced is **held**: it is never closed to make room. Linux reports a failed write-back
once to each descriptor that was open when it failed. A descriptor that is opened later may not see the failure, so a
sync through it proves nothing about bytes that another one wrote. `hold` says that bytes were written, `release` that
they are synced.

Held files leave a share of the limit for the others, so that readers always find room. Where no more can be held, the
log's bytes are written, synced and closed in one go by a thread (see log_write).

Everything happens in the thread that made the object, but for `relieve`, and for what `retire` allows.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from kcoord.log.storage import DiskStorage, File, Storage

if TYPE_CHECKING:
    from kcoord.log.segment import Segment

# For tools and tests. A server computes its own limit (kcoord.server.listen.descriptors).
OPEN_FILES_MAX: Final = 128
# Of the limit, at most so much is held: in quarters.
HELD_QUARTERS: Final = 3
# How long a thread that finds no descriptor waits for the loop to close files, for each try.
SHORTAGE_WAIT_S: Final = 0.01


class OpenFiles:
    """See the module. `files_max` bounds the segments whose files are open."""

    def __init__(self, storage: Storage, files_max: int = OPEN_FILES_MAX) -> None:
        self.storage = storage
        self.files_max = max(files_max, 2)
        self.held_max = max(self.files_max * HELD_QUARTERS // 4, 1)
        # Both are in order of use, the least recent one first.
        self._open: dict[Segment, None] = {}
        self._held: dict[Segment, None] = {}
        self._thread = threading.get_ident()
        self._is_short = False
        self._is_retired = False
        if isinstance(storage, DiskStorage):
            storage.on_shortage = self.relieve

    def __len__(self) -> int:
        return len(self._open) + len(self._held)

    def open(self, segment: Segment) -> File:
        """Open a segment's file, and close others for it. Raises OSError."""
        if self._is_short:
            self.ease()
        while len(self) >= self.files_max and self._close_oldest():
            pass
        file = self.storage.open(segment.log_path)
        self._open[segment] = None
        return file

    def touch(self, segment: Segment) -> None:
        """The file was used just now."""
        if segment in self._open:
            del self._open[segment]
            self._open[segment] = None

    def forget(self, segment: Segment) -> None:
        """The segment closed its file."""
        self._open.pop(segment, None)
        self._held.pop(segment, None)

    def may_hold(self, segment: Segment) -> bool:
        return segment in self._held or len(self._held) < self.held_max

    def is_held(self, segment: Segment) -> bool:
        return segment in self._held

    def hold(self, segment: Segment) -> None:
        """The file, which is open, has bytes that are not synced."""
        self._open.pop(segment, None)
        self._held.pop(segment, None)
        self._held[segment] = None

    def release(self, segment: Segment) -> None:
        """All bytes of the file are synced."""
        if segment in self._held:
            del self._held[segment]
            self._open[segment] = None

    def oldest_held(self, count: int) -> list[Segment]:
        """Held segments, the least recently held first."""
        found: list[Segment] = []
        for segment in self._held:
            if len(found) == count:
                break
            found.append(segment)
        return found

    def _close_oldest(self) -> bool:
        if self._is_retired:
            return False
        for segment in self._open:
            segment.close()
            return True
        return False

    # --- shortage

    def relieve(self) -> bool:
        """No descriptor is left: close half of what may be closed; whether to try again. May run in any thread."""
        if threading.get_ident() != self._thread or self._is_retired:
            # Only the owner knows that nobody uses a file at this moment.
            self._is_short = True
            time.sleep(SHORTAGE_WAIT_S)
            return True
        before = len(self)
        for _ in range(max(len(self._open) // 2, 1)):
            self._close_oldest()
        return len(self) < before

    def ease(self) -> None:
        """Close files if a thread found no descriptor. A server calls this now and then."""
        if self._is_short:
            self._is_short = False
            self.relieve()

    def retire(self) -> None:
        """Close what is not held. From now on nothing is closed for room, and logs may be closed in any threads."""
        while self._close_oldest():
            pass
        self._is_retired = True
