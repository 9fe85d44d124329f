"""What a broker does to the files of a log while they are read, step by step and without a broker."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from kcoord.log.reader import StoredBatch, read_batches
from tests.unit.spark.log_rig import LogRig

Keeps = Callable[[int], bool]


def even(offset: int) -> bool:
    return offset % 2 == 0


class Exchange:
    """Puts one file in the place of some closed segments, as a broker's cleaner does: the first one's name is that of
    the new file, with the last one's time of modification. Of batches those stay whose base offsets are kept."""

    def __init__(self, log: LogRig, keeps: Keeps = even, first: int = 0, count: int = 1) -> None:
        self.old = sorted(log.path.glob("*.log"))[first : first + count]
        self.new = self.old[0]
        data = b"".join(
            item.data
            for path in self.old
            for item in read_batches(str(path))
            if isinstance(item, StoredBatch) and keeps(item.header.base_offset)
        )
        self.cleaned = self.with_suffix(self.new, ".cleaned")
        self.cleaned.write_bytes(data)
        modified = self.old[-1].stat().st_mtime_ns
        os.utime(self.cleaned, ns=(modified, modified))

    @staticmethod
    def with_suffix(path: Path, suffix: str) -> Path:
        return path.with_name(path.name + suffix)

    def steps(self) -> list[Callable[[], None]]:
        """The renames of an exchange, in a broker's order."""
        swap = self.with_suffix(self.new, ".swap")
        renames = [(self.cleaned, swap)]
        renames += [(path, self.with_suffix(path, ".deleted")) for path in self.old]
        renames.append((swap, self.new))
        return [_rename(*one) for one in renames]

    def run(self) -> None:
        for step in self.steps():
            step()


def _rename(before: Path, after: Path) -> Callable[[], None]:
    def rename() -> None:
        before.rename(after)

    return rename


def compact(log: LogRig, keeps: Keeps = even, first: int = 0, count: int = 1) -> None:
    Exchange(log, keeps, first, count).run()


def cut(log: LogRig, batches: int) -> None:
    """The last segment ends after so many batches."""
    size = 0
    for item in list(read_batches(str(log.file(".log"))))[:batches]:
        assert isinstance(item, StoredBatch)
        size = item.position + len(item.data)
    os.truncate(log.file(".log"), size)
