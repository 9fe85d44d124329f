"""Which logs there are below a path: in a data directory, in a directory of many, or in a partition's own."""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kcoord.log.reader import PARTITION_DIRECTORY, RELATIVE_OFFSET_MAX, SEGMENT_FILE
from kcoord.spark.filesystem import read_file
from kcoord.spark.plan import INT64_MAX, LogPartition, SegmentFile, Slice

# Copies of a whole data directory, inside of it: they are loaded by their own path.
SNAPSHOTS = "snapshots"
CHECKPOINT_BYTES_MAX = 64 << 20
SELF = "."
# Kafka's partition numbers have 31 bits.
PARTITION_MAX = 0x7FFFFFFF
# A file whose name says more than this holds no batch that could be its own: all of it is damage.
BASE_OFFSET_MAX = INT64_MAX - 1 - RELATIVE_OFFSET_MAX


class NothingToRead(ValueError):
    """There is no log below the path; the message says what was looked for."""


def discover(filesystem: Any, root: str) -> list[LogPartition]:
    """All partitions below `root`, by data directory, topic and number. Raises OSError.

    Directories whose names begin with a dot do not count: what is in them is being made or replaced.
    """
    found = []
    for directory, files in _by_directory(_files_below(filesystem, root)).items():
        below = posixpath.relpath(directory, root)
        # The last name may begin with a dot: topics' may.
        above = below.split("/")[:-1]
        if SNAPSHOTS in above or any(folder.startswith(".") for folder in above):
            continue
        parent, _, name = directory.rpartition("/")
        match = PARTITION_DIRECTORY.fullmatch(name)
        if match is None or not match.group(2).isascii() or int(match.group(2)) > PARTITION_MAX:
            continue
        log = SELF if below == SELF else posixpath.relpath(parent, root)
        found.append(LogPartition(log, match.group(1), int(match.group(2)), directory, *files))
    found.sort(key=lambda one: (one.log, one.topic, one.partition))
    return found


@dataclass(frozen=True)
class _File:
    """What is listed of a file. `path` is absolute."""

    path: str
    size: int
    modified_ns: int


def _files_below(filesystem: Any, root: str) -> Iterable[_File]:
    """All files below `root`."""
    import pyarrow.fs

    if filesystem.type_name == "local":
        return _local_files(root)
    return _files(filesystem.get_file_info(pyarrow.fs.FileSelector(root, recursive=True)))


def _files(infos: Iterable[Any]) -> Iterator[_File]:
    import pyarrow.fs

    for info in infos:
        if info.type == pyarrow.fs.FileType.File:
            yield _File(info.path, info.size, info.mtime_ns or 0)


def _local_files(root: str) -> Iterator[_File]:
    """All files below a local directory, each directory once: links may lead in circles, or many ways to one place.

    What lies where it is comes first, then what links lead to.
    """
    seen: set[tuple[int, int]] = set()
    links = [root]
    while links:
        directories = [links.pop(0)]
        while directories:
            directory = directories.pop()
            try:
                status = os.stat(directory)
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                with os.scandir(directory) as entries:
                    inside = sorted(entries, key=lambda entry: entry.name)
            except FileNotFoundError:
                if directory == root:
                    raise
                # A topic may be deleted meanwhile.
                continue
            for entry in inside:
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.path)
                elif entry.is_dir():
                    links.append(entry.path)
                else:
                    yield from _local_file(entry)


def _local_file(entry: os.DirEntry[str]) -> Iterator[_File]:
    """Nothing if it went meanwhile, or is none: a pipe would be waited for. Raises OSError for what leads nowhere."""
    try:
        status = entry.stat()
    except FileNotFoundError:
        if entry.is_symlink() and SEGMENT_FILE.fullmatch(entry.name):
            raise FileNotFoundError(f"{entry.path} is a link that leads to nothing") from None
        return
    if stat.S_ISREG(status.st_mode):
        try:
            entry.path.encode()
        except UnicodeEncodeError:
            if not SEGMENT_FILE.fullmatch(entry.name):
                return
            raise OSError(
                f"{os.fsencode(entry.path)!r} has a name that is not UTF-8; give it another one"
            ) from None
        yield _File(entry.path, status.st_size, status.st_mtime_ns)


def list_partition(filesystem: Any, directory: str, like: Slice) -> LogPartition | None:
    """A partition's directory as it is now; None if it is gone, or empty. Raises OSError."""
    import pyarrow.fs

    try:
        infos = filesystem.get_file_info(pyarrow.fs.FileSelector(directory))
    except FileNotFoundError:
        return None
    files = _by_directory(_files(infos)).get(directory)
    return None if files is None else LogPartition(like.log, like.topic, like.partition, directory, *files)


def _by_directory(files: Iterable[_File]) -> dict[str, tuple[tuple[SegmentFile, ...], tuple[str, ...]]]:
    """Segments in the order of their offsets, and names of the other files, of each directory that has segments."""
    segments: dict[str, list[SegmentFile]] = {}
    others: dict[str, list[str]] = {}
    for file in files:
        directory, _, name = file.path.rpartition("/")
        match = SEGMENT_FILE.fullmatch(name)
        if match is not None and name.isascii():
            base_offset = min(int(match.group(1)), BASE_OFFSET_MAX)
            segments.setdefault(directory, []).append(
                SegmentFile(file.path, base_offset, file.size, file.modified_ns)
            )
        else:
            others.setdefault(directory, []).append(name)
    return {
        directory: (
            tuple(sorted(found, key=lambda file: file.base_offset)),
            tuple(sorted(others.get(directory, ()))),
        )
        for directory, found in segments.items()
    }


def read_checkpoint(filesystem: Any, log_directory: str, name: str) -> dict[tuple[str, int], int] | None:
    """One of Kafka's checkpoint files: (topic, partition) to offset; None where there is none."""
    data = read_file(filesystem, posixpath.join(log_directory, name), CHECKPOINT_BYTES_MAX)
    if not data:
        return None
    found: dict[tuple[str, int], int] = {}
    for line in data.decode("utf-8", "replace").splitlines()[2:]:
        match = re.fullmatch(r"(\S+) (\d{1,10}) (\d{1,19})", line.strip())
        if match and int(match.group(3)) <= INT64_MAX:
            found[(match.group(1), int(match.group(2)))] = int(match.group(3))
    return found


def data_directory(partition: LogPartition) -> str:
    return partition.path.rpartition("/")[0]
