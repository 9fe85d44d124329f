"""Runs work that waits for the disk in several threads, while a data directory is opened or closed.

A file system combines concurrent syncs into one commit of its journal. So many small syncs in parallel take little
longer than one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from kcoord.log.storage import DiskStorage, Storage

# More threads gain little, as measured with 10,000 files on one disk.
THREADS_MAX: Final = 16
PROGRESS_EVERY_S: Final = 1.0


def threads_for(storage: Storage) -> int:
    """How many threads may use a storage at once. In memory more threads are slower, and tests need a fixed order."""
    return THREADS_MAX if isinstance(storage, DiskStorage) else 1


class _Work:
    def __init__(self, work: Sequence[Callable[[], None]]) -> None:
        self.work = work
        self.taken = 0
        self.done = 0
        self.error: BaseException | None = None
        self.lock = threading.Lock()

    def take(self) -> Callable[[], None] | None:
        with self.lock:
            if self.error is not None or self.taken == len(self.work):
                return None
            self.taken += 1
            return self.work[self.taken - 1]

    def run(self) -> None:
        while (work := self.take()) is not None:
            try:
                work()
            except BaseException as error:  # run_parallel raises it again
                with self.lock:
                    self.error = self.error or error
            with self.lock:
                self.done += 1


def run_parallel(
    work: Sequence[Callable[[], None]], threads: int, progress: Callable[[int], None] | None = None
) -> None:
    """Run all of `work` and return when it is done. After an error no more work is started, and the error is raised.

    `progress` is called periodically, in the caller's thread, with the number of completed items.
    """
    shared = _Work(work)
    count = min(threads, len(work))
    if count <= 1:
        for number, item in enumerate(work):
            item()
            if progress is not None:
                progress(number + 1)
        return
    running = [
        threading.Thread(target=shared.run, name=f"kcoord-files-{number}", daemon=True) for number in range(count)
    ]
    for thread in running:
        thread.start()
    for thread in running:
        while thread.is_alive():
            thread.join(PROGRESS_EVERY_S)
            if progress is not None and thread.is_alive():
                progress(shared.done)
    if progress is not None:
        progress(shared.done)
    if shared.error is not None:
        raise shared.error
