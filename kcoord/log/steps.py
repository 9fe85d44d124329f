"""How far long work has come, for whoever watches, and copies of files that tell it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Protocol, final

if TYPE_CHECKING:
    from kcoord.log.reader import StoredBatch

COPY_BYTES: Final = 1 << 20
SYNC_BYTES: Final = 64 << 20

Step = Callable[[int], None]


class Steps(Protocol):
    """Told once how much there is to do, in bytes, and then of every piece that is done."""

    def begin(self, label: str, total_bytes: int) -> None: ...
    def step(self, done_bytes: int) -> None: ...


@final
class Unwatched:
    """Nobody watches."""

    def begin(self, label: str, total_bytes: int) -> None:
        return

    def step(self, done_bytes: int) -> None:
        return


def ignore_step(_done_bytes: int) -> None:
    return


def watched(batches: Iterable[StoredBatch], step: Step) -> Iterator[StoredBatch]:
    """The batches as they are; `step` is told of each once it was dealt with."""
    for batch in batches:
        yield batch
        step(batch.header.size)


def copy_file(source: str, target: str, step: Step) -> None:
    """A copy that is on the disk when this returns; its name is not yet. Raises OSError."""
    with open(source, "rb") as file:
        copy_open_file(file.fileno(), target, os.fstat(file.fileno()).st_size, step)


def copy_open_file(fd: int, target: str, size: int, step: Step) -> None:
    """The first `size` bytes of an open file, or as many as there are. Raises OSError."""
    position = 0
    with open(target, "wb") as file:
        while position < size:
            data = os.pread(fd, min(COPY_BYTES, size - position), position)
            if not data:
                break
            file.write(data)
            position += len(data)
            if position % SYNC_BYTES == 0:
                # Else all of the time goes into one sync at the end, which nobody can watch.
                file.flush()
                os.fsync(file.fileno())
            step(len(data))
        file.flush()
        os.fsync(file.fileno())
