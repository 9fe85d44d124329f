"""Progress reports of long work, and file copies that report progress."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from kcoord.log.reader import StoredBatch

COPY_BYTES: Final = 1 << 20
SYNC_BYTES: Final = 64 << 20

Step = Callable[[int], None]


class Steps(Protocol):
    """Receives the total work in bytes, and then every completed piece."""

    def begin(self, label: str, total_bytes: int) -> None: ...
    def step(self, done_bytes: int) -> None: ...


def ignore_step(_done_bytes: int) -> None:
    return


def watched(batches: Iterable[StoredBatch], step: Step) -> Iterator[StoredBatch]:
    """Pass the batches through and report each to `step` after it was processed."""
    for batch in batches:
        yield batch
        step(batch.header.size)


def copy_file(source: str, target: str, step: Step) -> None:
    """Copy a file and sync its contents, but not its name. Raises OSError."""
    with open(source, "rb") as file:
        copy_open_file(file.fileno(), target, os.fstat(file.fileno()).st_size, step)


def copy_open_file(fd: int, target: str, size: int, step: Step) -> None:
    """Copy the first `size` bytes of an open file, or as many as it has. Raises OSError."""
    position = 0
    with open(target, "wb") as file:
        while position < size:
            data = os.pread(fd, min(COPY_BYTES, size - position), position)
            if not data:
                break
            file.write(data)
            position += len(data)
            if position % SYNC_BYTES == 0:
                # Sync in steps: a single sync at the end would take most of the time without progress.
                file.flush()
                os.fsync(file.fileno())
            step(len(data))
        file.flush()
        os.fsync(file.fileno())
