"""What can go wrong with a log. Each class is one thing that a person or the server can act on."""

from __future__ import annotations


class LogError(Exception):
    """Base of everything the log raises about its own state."""


class StorageError(LogError):
    """A data directory cannot be used at all, for a reason that a person has to see to."""


class DirectoryLocked(StorageError):
    """Another process has the data directory open."""


class DirectoryNotWritable(StorageError):
    """The data directory cannot be created or written."""


class ForeignDirectory(StorageError):
    """The data directory is not kcoord's: a Kafka broker's, for example."""


class WrongNode(StorageError):
    """The data directory belongs to another node or cluster."""


class UnknownFormat(StorageError):
    """The data directory was written by a newer kcoord."""


class LogDamaged(LogError):
    """Bytes that were durable are not valid any more. `offset` is the first offset that cannot be trusted."""

    def __init__(self, file: str, offset: int, position: int, reason: str) -> None:
        super().__init__(f"{file} is damaged at byte {position} (offset {offset}): {reason}")
        self.file = file
        self.offset = offset
        self.position = position
        self.reason = reason


class ImpossibleFiles(LogError):
    """Files that no crash of a broker leaves like this. `files` are the names of those that do not fit."""

    def __init__(self, directory: str, files: list[str], reason: str) -> None:
        names = ", ".join(files[:8]) + (f" and {len(files) - 8} more" if len(files) > 8 else "")
        super().__init__(f"{directory}: {names}: {reason}")
        self.directory = directory
        self.files = files
        self.reason = reason


class OffsetOutOfRange(LogError):
    """A read starts before the log's start or after its end."""


class JournalFailed(LogError):
    """The journal stopped: an earlier write or sync failed. Nothing is appended or acknowledged any more."""


class WriteFailed(JournalFailed):
    """Writing to a log file failed."""


class SyncFailed(JournalFailed):
    """Making written bytes durable failed; what the disk holds is unknown until the log is opened again."""
