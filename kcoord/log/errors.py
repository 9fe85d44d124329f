"""The errors of the log. Each class is one condition that a user or the server can act on."""

from __future__ import annotations

import os


class LogError(Exception):
    """The base of all errors about the state of the log."""


class StorageError(LogError):
    """A data directory cannot be used, for a reason that a user must fix."""


class DirectoryMissing(StorageError):
    """There is no such data directory."""


def missing_directory(path: str) -> DirectoryMissing:
    """The error for a path that is no directory."""
    if os.path.exists(path):
        return DirectoryMissing(f"{path} is not a directory")
    return DirectoryMissing(f"there is no directory {path}")


class InvalidName(StorageError):
    """A name that a user gave is not valid, or is taken."""


class DirectoryLocked(StorageError):
    """Another process has the data directory open."""


class DirectoryNotWritable(StorageError):
    """The data directory cannot be created or written."""


class ForeignDirectory(StorageError):
    """The data directory does not belong to kcoord but, for example, to a Kafka broker."""


class WrongNode(StorageError):
    """The data directory belongs to another node or cluster."""


class UnknownFormat(StorageError):
    """The data directory was written by a newer kcoord."""


class InvalidIndex(LogError):
    """An index file is not valid. It can be built again from its segment."""


class LogDamaged(LogError):
    """Durable bytes are no longer valid. `offset` is the first offset that cannot be trusted."""

    def __init__(self, file: str, offset: int, position: int, reason: str) -> None:
        super().__init__(f"{file} is damaged at byte {position} (offset {offset}): {reason}")
        self.file = file
        self.offset = offset
        self.position = position
        self.reason = reason


class ImpossibleFiles(LogError):
    """A set of files that no crash of a broker can leave. `files` are the names that do not fit."""

    def __init__(self, directory: str, files: list[str], reason: str) -> None:
        names = ", ".join(files[:8]) + (f" and {len(files) - 8} more" if len(files) > 8 else "")
        super().__init__(f"{directory}: {names}: {reason}")
        self.directory = directory
        self.files = files
        self.reason = reason


class OffsetOutOfRange(LogError):
    """A read starts before the log's start or after its end."""


class JournalFailed(LogError):
    """The journal stopped because an earlier write or sync failed. Nothing more is appended or acknowledged."""


class WriteFailed(JournalFailed):
    """Writing to a log file failed."""


class SyncFailed(JournalFailed):
    """A sync failed. The contents of the disk are unknown until the log is opened again."""
