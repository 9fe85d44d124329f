"""Bounds the open segment files of a data directory, and closes the least recently used ones first.

A file whose last bytes are not synced is **held**: it is never closed to free a descriptor. Linux reports a failed
write-back once to each descriptor that was open when it failed. A descriptor opened later may not see the failure, so a
sync through it proves nothing about bytes that another descriptor wrote. `hold` marks a file after a write, `release`
after its sync.

Held files may use only a share of the limit, so readers can always open a file. If no more files can be held, a thread
writes, syncs and closes the log's file in one step (see log_write).

All methods run in the thread that created the object, except `relieve`, and after `retire`.
"""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol

from kcoord.log.storage import DiskStorage, File, Storage

# For tools and tests. A server computes its own limit (kcoord.server.listen.descriptors).
OPEN_FILES_MAX: Final = 128
# The share of the limit that held files may use, in quarters.
HELD_QUARTERS: Final = 3
# How long a thread that finds no free descriptor waits for the loop to close files, per attempt.
SHORTAGE_WAIT_S: Final = 0.01


class Owner(Protocol):
    """The owner of a file: a segment."""

    log_path: str

    def file(self) -> File: ...
    def release(self) -> None: ...
    def close(self) -> None: ...


class OpenFiles:
    """The open files, see the module docstring. `files_max` bounds the segments whose files are open."""

    def __init__(self, storage: Storage, files_max: int = OPEN_FILES_MAX) -> None:
        self.storage = storage
        self.files_max = max(files_max, 2)
        self.held_max = max(self.files_max * HELD_QUARTERS // 4, 1)
        # Both are in order of use, the least recent one first.
        self._open: dict[Owner, None] = {}
        self._held: dict[Owner, None] = {}
        # The last one of `_held`: a log that is written again and again stays at the end.
        self._last_held: Owner | None = None
        self._owner = threading.get_ident()
        self._is_short = False
        self._is_retired = False
        if isinstance(storage, DiskStorage):
            storage.on_shortage = self.relieve

    def __len__(self) -> int:
        return len(self._open) + len(self._held)

    @property
    def is_scarce(self) -> bool:
        """Whether more than half of the files that may be open are: closing one must free its descriptor then."""
        return 2 * len(self) > self.files_max

    def open(self, segment: Owner) -> File:
        """Open a segment's file, and close others if the limit requires it. Raises OSError."""
        if self._is_short:
            self.ease()
        while len(self) >= self.files_max and self._close_oldest():
            pass
        file = self.storage.open(segment.log_path)
        self._open[segment] = None
        return file

    def touch(self, segment: Owner) -> None:
        """Mark the file as most recently used."""
        if segment in self._open:
            del self._open[segment]
            self._open[segment] = None

    def forget(self, segment: Owner) -> None:
        """The segment closed its file."""
        self._open.pop(segment, None)
        self._held.pop(segment, None)
        self._last_held = None

    def may_hold(self, segment: Owner) -> bool:
        return segment in self._held or len(self._held) < self.held_max

    def is_held(self, segment: Owner) -> bool:
        return segment in self._held

    def hold(self, segment: Owner) -> None:
        """Mark an open file as having bytes that are not synced."""
        if segment is self._last_held:
            return
        self._open.pop(segment, None)
        self._held.pop(segment, None)
        self._held[segment] = None
        self._last_held = segment

    def release(self, segment: Owner) -> None:
        """Mark all bytes of the file as synced."""
        if segment in self._held:
            del self._held[segment]
            self._open[segment] = None
            self._last_held = None

    def oldest_held(self, count: int) -> list[Owner]:
        """Held segments, the least recently held first."""
        found: list[Owner] = []
        for segment in self._held:
            if len(found) == count:
                break
            found.append(segment)
        return found

    def _close_oldest(self) -> bool:
        if self._is_retired:
            return False
        failure: OSError | None = None
        for segment in self._open:
            try:
                segment.close()
            except OSError as error:
                if segment not in self._open:
                    raise
                # It could not be trimmed and stays open. Others may be closed.
                failure = error
            else:
                return True
        if failure is not None:
            raise failure
        return False

    # --- shortage

    def relieve(self) -> bool:
        """Handle a lack of descriptors: close half of the files that may be closed. Returns whether to try again.

        May run in any thread.
        """
        if threading.get_ident() != self._owner or self._is_retired:
            # Only the owning thread knows that no file is in use at this moment.
            self._is_short = True
            time.sleep(SHORTAGE_WAIT_S)
            return True
        before = len(self)
        try:
            for _ in range(max(len(self._open) // 2, 1)):
                self._close_oldest()
        except OSError:
            if len(self) == before:
                raise
        return len(self) < before

    def ease(self) -> None:
        """Close files if a thread found no free descriptor. The server calls this periodically."""
        if self._is_short:
            self._is_short = False
            self.relieve()

    def retire(self) -> None:
        """Close all files that are not held. From now on the limit closes nothing, and any thread may close logs."""
        while self._close_oldest():
            pass
        self._is_retired = True
