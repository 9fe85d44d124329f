"""Which logs there are below a path: in a data directory, in a directory of many, or in a partition's own."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from typing import Any

from kcoord.log.reader import PARTITION_DIRECTORY, SEGMENT_FILE
from kcoord.spark.filesystem import read_file
from kcoord.spark.plan import LogPartition, SegmentFile, Slice

# Copies of a whole data directory, inside of it: they are loaded by their own path.
SNAPSHOTS = "snapshots"
CHECKPOINT_BYTES_MAX = 64 << 20
SELF = "."


class NothingToRead(ValueError):
    """There is no log below the path; the message says what was looked for."""


def discover(filesystem: Any, root: str) -> list[LogPartition]:
    """All partitions below `root`, by data directory, topic and number. Raises OSError.

    Directories whose names begin with a dot do not count: what is in them is being made or replaced.
    """
    import pyarrow.fs

    selector = pyarrow.fs.FileSelector(root, recursive=True)
    found = []
    for directory, files in _by_directory(filesystem.get_file_info(selector)).items():
        below = posixpath.relpath(directory, root)
        # The last name may begin with a dot: topics' may.
        above = below.split("/")[:-1]
        if SNAPSHOTS in above or any(folder.startswith(".") for folder in above):
            continue
        parent, _, name = directory.rpartition("/")
        match = PARTITION_DIRECTORY.fullmatch(name)
        if match is None:
            continue
        log = SELF if below == SELF else posixpath.relpath(parent, root)
        found.append(LogPartition(log, match.group(1), int(match.group(2)), directory, *files))
    found.sort(key=lambda one: (one.log, one.topic, one.partition))
    return found


def list_partition(filesystem: Any, directory: str, like: Slice) -> LogPartition | None:
    """A partition's directory as it is now; None if it is gone, or empty. Raises OSError."""
    import pyarrow.fs

    try:
        infos = filesystem.get_file_info(pyarrow.fs.FileSelector(directory))
    except FileNotFoundError:
        return None
    files = _by_directory(infos).get(directory)
    return None if files is None else LogPartition(like.log, like.topic, like.partition, directory, *files)


def _by_directory(infos: Iterable[Any]) -> dict[str, tuple[tuple[SegmentFile, ...], tuple[str, ...]]]:
    """Segments in the order of their offsets, and names of the other files, of each directory that has segments."""
    import pyarrow.fs

    segments: dict[str, list[SegmentFile]] = {}
    others: dict[str, list[str]] = {}
    for info in infos:
        if info.type != pyarrow.fs.FileType.File:
            continue
        directory, _, name = info.path.rpartition("/")
        if match := SEGMENT_FILE.fullmatch(name):
            segments.setdefault(directory, []).append(SegmentFile(info.path, int(match.group(1)), info.size))
        else:
            others.setdefault(directory, []).append(name)
    return {
        directory: (
            tuple(sorted(files, key=lambda file: file.base_offset)),
            tuple(sorted(others.get(directory, ()))),
        )
        for directory, files in segments.items()
    }


def read_checkpoint(filesystem: Any, log_directory: str, name: str) -> dict[tuple[str, int], int] | None:
    """One of Kafka's checkpoint files: (topic, partition) to offset; None where there is none."""
    data = read_file(filesystem, posixpath.join(log_directory, name), CHECKPOINT_BYTES_MAX)
    if not data:
        return None
    found: dict[tuple[str, int], int] = {}
    for line in data.decode("utf-8", "replace").splitlines()[2:]:
        match = re.fullmatch(r"(\S+) (\d{1,10}) (\d{1,19})", line.strip())
        if match:
            found[(match.group(1), int(match.group(2)))] = int(match.group(3))
    return found


def data_directory(partition: LogPartition) -> str:
    return partition.path.rpartition("/")[0]
