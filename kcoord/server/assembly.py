"""Puts storage, directory, journal and engine together as configured."""

from __future__ import annotations

import base64
import os
import sys
import time
from typing import Final, final

from kcoord.engine.engine import Engine
from kcoord.log.directory import COMMIT_BYTES_MAX, LogDirectory, open_directory
from kcoord.log.journal import Journal
from kcoord.log.partition_log import LogConfig
from kcoord.log.storage import DiskStorage, MemoryStorage, Storage
from kcoord.server.assignors import load_assignors
from kcoord.server.listen.descriptors import descriptors_now
from kcoord.server.listen.limits import frame_limits
from kcoord.server.logs import ServerLog
from kcoord.server.settings.load import Config
from kcoord.server.settings.table import SYNC_ALWAYS, SYNC_MEMORY

# A start or a stop that takes longer says how far it is, so often.
PROGRESS_EVERY_S: Final = 5.0


@final
class ProgressLog:
    """Logs how far opening or closing a directory with many logs is. Quick ones leave no line."""

    def __init__(self, log: ServerLog) -> None:
        self.log = log
        self._what = ""
        self._last_s = 0.0

    def __call__(self, what: str, done: int, of: int) -> None:
        now_s = time.monotonic()
        if what != self._what:
            # Between a start and a stop much time passes; each phase counts for itself.
            self._what, self._last_s = what, now_s
        elif now_s - self._last_s >= PROGRESS_EVERY_S:
            self._last_s = now_s
            # While a server starts, lines are kept back until it is ready: not these.
            self.log.open()
            self.log.info("logs_" + what, done=done, of=of)


def new_id() -> str:
    """A random id as Kafka spells them: 16 bytes in URL-safe base64."""
    return base64.urlsafe_b64encode(os.urandom(16)).decode("ascii").rstrip("=")


@final
class Assembly:
    """An engine and what it stands on. Ends with `close` or `abandon`."""

    def __init__(self, engine: Engine, directory: LogDirectory, journal: Journal, in_memory: bool) -> None:
        self.engine = engine
        self.directory = directory
        self.journal = journal
        self.in_memory = in_memory

    def free_bytes(self) -> int:
        """Free space for the log; -1 where that means nothing."""
        return -1 if self.in_memory else self.directory.storage.free_bytes()

    def close(self) -> None:
        """Leave a clean log. Raises LogError and OSError."""
        self.engine.stop()

    def abandon(self) -> None:
        """After a failure: let go of the files as they are."""
        try:
            self.journal.close(clean=False)
        except Exception:
            # The failure that led here is the one to tell; the lock goes with the process at the latest.
            return


def open_assembly(config: Config, storage: Storage | None = None, log: ServerLog | None = None) -> Assembly:
    """Lock, open and recover the data directory and make an engine for it. Raises ConfigError, LogError and OSError.

    `storage`, if given, stands in for the data directory. `log` gets lines about how far a slow start or stop is.
    """
    server = config.server
    # Before any file is touched: a plug-in may be missing.
    assignors = load_assignors(config.core.group_consumer_assignors)
    in_memory = server.log_sync == SYNC_MEMORY
    if storage is None:
        storage = MemoryStorage() if in_memory else DiskStorage(server.data_dir)
    directory = open_directory(
        storage,
        config.core.node_id,
        config.core.cluster_id or new_id(),
        new_id(),
        config=LogConfig(segment_bytes=config.core.log_segment_bytes),
        # Unsynced bytes of any age may be lost where nothing is synced.
        commit_bytes_max=COMMIT_BYTES_MAX if server.log_sync == SYNC_ALWAYS else None,
        open_files_max=sys.maxsize if in_memory else descriptors_now(server.max_connections, False).log_files,
        progress=ProgressLog(log) if log is not None else None,
    )
    try:
        config.core.cluster_id = directory.meta.cluster_id
        journal = Journal(directory, server.log_sync)
        engine = Engine(config.core, directory, journal, os.urandom, frame_limits(server), assignors)
    except BaseException:
        directory.close(False)
        raise
    return Assembly(engine, directory, journal, in_memory)
