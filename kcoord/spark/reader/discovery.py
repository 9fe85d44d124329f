"""The logs below a path: of a data directory, of a directory of many, or of a single partition's directory."""

from __future__ import annotations

import os
import posixpath
import re
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from kcoord.log.directory import META_PROPERTIES
from kcoord.log.errors import ImpossibleFiles
from kcoord.log.reader import PARTITION_DIRECTORY, RELATIVE_OFFSET_MAX, Window, next_offset_in
from kcoord.log.record_format import is_own_format
from kcoord.log.recovery import SEGMENT_LOG, SWAP_SUFFIX, is_temporary, recover_files
from kcoord.log.segment import INDEX_BYTES_MAX
from kcoord.spark.reader.filesystem import FileBytes, FileTooLarge, forget_listings, read_file
from kcoord.spark.reader.segments import UnsettledFiles
from kcoord.spark.reader.slices import INT64_MAX, LogPartition, SegmentFile, Slice

# Copies of a data directory inside itself; they are loaded by their own path only.
SNAPSHOTS = "snapshots"
CHECKPOINT_BYTES_MAX = 64 << 20
# meta.properties has a few lines.
PROPERTIES_BYTES_MAX = 1 << 20
SELF = "."
# Kafka's partition numbers have 31 bits.
PARTITION_MAX = 0x7FFFFFFF
# A segment whose name has a larger offset cannot hold a valid batch: all of it is damage.
BASE_OFFSET_MAX = INT64_MAX - 1 - RELATIVE_OFFSET_MAX
# How a broker names files that it is adding or removing. A listing with such files may have missed a file that was
# renamed meanwhile, so it is valid only if the next one is the same. A replacement takes a broker milliseconds; after
# this many listings, about two seconds, something else is wrong.
OF_SEGMENT = re.compile(r"\d{20}\.")
LISTINGS_MAX = 40
LISTING_PAUSE_S = 0.05


class NothingToRead(ValueError):
    """There is no log below the path; the message names what was looked for."""


class BadFiles(ValueError):
    """Files of a partition in a state that no crash of a broker leaves; the message names them."""


def discover(filesystem: Any, root: str) -> list[LogPartition]:
    """All partitions below `root`, by data directory, topic and number. Raises OSError and BadFiles.

    Directories whose names begin with a dot are skipped: their content is being made or replaced.
    """
    found = []
    for directory, listed in _by_directory(_files_below(filesystem, root)).items():
        below = posixpath.relpath(directory, root)
        # The last part may begin with a dot, since a topic's name may.
        above = below.split("/")[:-1]
        if SNAPSHOTS in above or any(folder.startswith(".") for folder in above):
            continue
        parent, _, name = directory.rpartition("/")
        match = PARTITION_DIRECTORY.fullmatch(name)
        if match is None or not match.group(2).isascii() or int(match.group(2)) > PARTITION_MAX:
            continue
        log = SELF if below == SELF else posixpath.relpath(parent, root)
        like = LogPartition(log, match.group(1), int(match.group(2)), directory, ())
        try:
            partition = _recovered(filesystem, like, listed)
        except FileNotFoundError:
            # Its topic was deleted meanwhile.
            continue
        if partition is not None:
            found.append(partition)
    found.sort(key=lambda one: (one.log, one.topic, one.partition))
    return found


@dataclass(frozen=True)
class _File:
    """A file in a listing. `path` is absolute."""

    path: str
    size: int
    modified_ns: int
    inode: int = 0


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
    """All files below a local directory, each directory once: links may form cycles, or lead to one place many times.

    Real directories come first, then links.
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


def _files_in(filesystem: Any, directory: str) -> list[_File]:
    """The files of one directory, read anew. Raises OSError."""
    import pyarrow.fs

    if filesystem.type_name != "local":
        forget_listings(filesystem)
        return list(_files(filesystem.get_file_info(pyarrow.fs.FileSelector(directory))))
    with os.scandir(directory) as entries:
        return [file for entry in entries if not entry.is_dir() for file in _local_file(entry)]


def _settle(filesystem: Any, directory: str, listed: list[_File]) -> list[_File]:
    """A listing of the directory while no file is being replaced. Raises UnsettledFiles and OSError."""
    for tries in range(LISTINGS_MAX):
        if not any(is_temporary(posixpath.basename(file.path)) for file in listed):
            return listed
        if tries > 1:
            time.sleep(LISTING_PAUSE_S)
        again = _files_in(filesystem, directory)
        if _names(again) == _names(listed):
            return again
        listed = again
    raise _unsettled(directory)


def _unsettled(directory: str) -> UnsettledFiles:
    return UnsettledFiles(
        f"{directory}: {LISTINGS_MAX} listings in a row differ, since files are exchanged all the time. Read a copy "
        "or a snapshot of it"
    )


def _names(files: list[_File]) -> set[tuple[str, int]]:
    """The files that belong to segments. Sizes are not compared: the log may grow."""
    found = {(file.path, file.inode) for file in files}
    return {one for one in found if OF_SEGMENT.match(posixpath.basename(one[0]))}


def _local_file(entry: os.DirEntry[str]) -> Iterator[_File]:
    """Nothing if it went meanwhile, or is none: a pipe would be waited for. Raises OSError for what leads nowhere."""
    try:
        status = entry.stat()
    except FileNotFoundError:
        if entry.is_symlink() and SEGMENT_LOG.fullmatch(entry.name):
            raise FileNotFoundError(f"{entry.path} is a link that leads to nothing") from None
        return
    if stat.S_ISREG(status.st_mode):
        try:
            entry.path.encode()
        except UnicodeEncodeError:
            if not SEGMENT_LOG.fullmatch(entry.name):
                return
            raise OSError(f"{os.fsencode(entry.path)!r} has a name that is not UTF-8; give it another one") from None
        yield _File(entry.path, status.st_size, status.st_mtime_ns, status.st_ino)


def list_partition(filesystem: Any, directory: str, like: Slice | LogPartition) -> LogPartition | None:
    """The current state of a partition's directory; None if it is gone, or empty. Raises OSError and BadFiles."""
    now = LogPartition(like.log, like.topic, like.partition, directory, ())
    try:
        return _recovered(filesystem, now, _files_in(filesystem, directory))
    except FileNotFoundError:
        return None


def _by_directory(files: Iterable[_File]) -> dict[str, list[_File]]:
    """The files by directory."""
    found: dict[str, list[_File]] = {}
    for file in files:
        found.setdefault(posixpath.dirname(file.path), []).append(file)
    return found


def _recovered(filesystem: Any, like: LogPartition, files: list[_File]) -> LogPartition | None:
    """A partition's files by the rules of a broker's recovery; None without a segment.

    The rules also hold for a running broker, if no file was being renamed during the listing. Raises BadFiles,
    UnsettledFiles and OSError, FileNotFoundError if the directory is gone.
    """
    for _ in range(LISTINGS_MAX):
        files = _settle(filesystem, like.path, files)
        try:
            return _as_partition(filesystem, like, {posixpath.basename(file.path): file for file in files})
        except (ImpossibleFiles, FileNotFoundError) as error:
            again = _files_in(filesystem, like.path)
            if _names(again) == _names(files):
                raise BadFiles(str(error)) from None
            files = again
    raise _unsettled(like.path)


def _as_partition(filesystem: Any, like: LogPartition, listed: dict[str, _File]) -> LogPartition | None:
    def next_offset_of(name: str) -> int:
        return _next_offset_of(filesystem, like.path, name)

    is_own = any(map(is_temporary, listed)) and is_own_format(
        read_file(filesystem, f"{data_directory(like)}/{META_PROPERTIES}", PROPERTIES_BYTES_MAX)
    )
    sizes = {name: file.size for name, file in listed.items()}
    recovered = recover_files(like.path, sizes, next_offset_of, is_own)
    if not recovered.segments:
        return None
    logs = {name for _, name in recovered.segments}
    segments = [_segment(base, listed[name]) for base, name in recovered.segments]
    segments[-1] = replace(segments[-1], is_last=True)
    renamed = {name: now for name, now in recovered.names.items() if now not in logs}
    others = tuple(sorted({*recovered.others, *renamed} - logs))
    return replace(like, segments=tuple(segments), files=others, renamed=tuple(sorted(renamed.items())))


def _segment(base_offset: int, file: _File) -> SegmentFile:
    return SegmentFile(file.path, min(base_offset, BASE_OFFSET_MAX), file.size, file.modified_ns, file.inode)


def _next_offset_of(filesystem: Any, directory: str, name: str) -> int:
    """The offset after the last batch of a segment. Raises UnknownEnd and OSError."""
    stem, _, kind = name.partition(".")
    suffix = SWAP_SUFFIX if kind.endswith(SWAP_SUFFIX) else ""
    try:
        index = read_file(filesystem, f"{directory}/{stem}.index{suffix}", INDEX_BYTES_MAX)
    except FileTooLarge:
        index = b""
    with FileBytes(filesystem, f"{directory}/{name}") as file:
        return next_offset_in(Window(file.pread, file.size), int(stem), index)


def read_checkpoint(filesystem: Any, log_directory: str, name: str) -> dict[tuple[str, int], int] | None:
    """One of Kafka's checkpoint files: (topic, partition) to offset; None if the file does not exist."""
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
