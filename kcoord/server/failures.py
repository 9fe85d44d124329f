"""The ways in which a server ends, each with its exit code. `docs/configuration.md` lists them."""

from __future__ import annotations

import errno
from typing import Final, final

from kcoord.log.errors import (
    DirectoryLocked,
    DirectoryMissing,
    DirectoryNotWritable,
    ForeignDirectory,
    ImpossibleFiles,
    InvalidName,
    JournalFailed,
    LogDamaged,
    LogError,
    UnknownFormat,
    WrongNode,
)
from kcoord.server.settings.load import ConfigError

EXIT_OK: Final = 0
EXIT_INTERNAL: Final = 1
EXIT_CONFIG: Final = 2
EXIT_LISTEN: Final = 3
EXIT_NOT_WRITABLE: Final = 4
EXIT_FOREIGN: Final = 5
EXIT_LOCKED: Final = 6
EXIT_DAMAGED: Final = 7
EXIT_DISK_FULL: Final = 8
EXIT_STORAGE: Final = 9

EXIT_CODES: Final[dict[int, str]] = {
    EXIT_OK: "stopped cleanly on SIGTERM, SIGINT or SIGHUP",
    EXIT_INTERNAL: "a bug in kcoord; please report the message",
    EXIT_CONFIG: "a setting or a flag is invalid",
    EXIT_LISTEN: "the server cannot listen on an address: it is in use, not an address of this machine, or not allowed",
    EXIT_NOT_WRITABLE: "the data directory cannot be created or written",
    EXIT_FOREIGN: "the data directory belongs to another program or node, or a newer version wrote it",
    EXIT_LOCKED: "another process has the data directory open",
    EXIT_DAMAGED: "the log is damaged; the message names file and offset",
    EXIT_DISK_FULL: "the disk is full",
    EXIT_STORAGE: "a write or sync failed while the server was running; no affected request was acknowledged",
}

REPAIR_ADVICE: Final = "`kcoord log repair DIR` lists what it would change, and changes it with --execute"

FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@final
class ServerError(Exception):
    """The reason why the server could not start or had to stop, with an exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def classify(error: BaseException) -> ServerError:
    """The ServerError that explains `error` to the operator."""
    if isinstance(error, ServerError):
        return error
    if isinstance(error, ConfigError):
        return ServerError(EXIT_CONFIG, str(error))
    if isinstance(error, DirectoryLocked):
        return ServerError(EXIT_LOCKED, str(error))
    if isinstance(error, InvalidName):
        return ServerError(EXIT_CONFIG, str(error))
    if isinstance(error, DirectoryNotWritable | DirectoryMissing):
        return ServerError(EXIT_NOT_WRITABLE, str(error))
    if isinstance(error, ForeignDirectory | WrongNode | UnknownFormat):
        return ServerError(EXIT_FOREIGN, str(error))
    if isinstance(error, LogDamaged | ImpossibleFiles):
        return ServerError(EXIT_DAMAGED, f"{error}. {REPAIR_ADVICE}")
    if isinstance(error, JournalFailed):
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in FULL:
            return ServerError(EXIT_DISK_FULL, f"the disk is full and the server stops: {error}")
        detail = f": {cause}" if cause is not None and str(cause) not in str(error) else ""
        return ServerError(EXIT_STORAGE, f"the log failed and the server stops: {error}{detail}")
    if isinstance(error, LogError):
        return ServerError(EXIT_STORAGE, str(error))
    if isinstance(error, OSError):
        if error.errno in FULL:
            return ServerError(EXIT_DISK_FULL, f"the disk is full: {error.strerror}")
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            return ServerError(EXIT_NOT_WRITABLE, f"the data directory cannot be read or written: {error}")
        return ServerError(EXIT_STORAGE, f"the data directory failed: {error}")
    return ServerError(EXIT_INTERNAL, f"internal error: {type(error).__name__}: {error}")
