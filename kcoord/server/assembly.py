"""Builds storage, directory, journal and engine from the configuration."""

from __future__ import annotations

import base64
import os
import sys
import time
from typing import final

from kcoord.engine.engine import Engine
from kcoord.log.directory import COMMIT_BYTES_MAX, LogDirectory, open_directory
from kcoord.log.journal import Journal
from kcoord.log.log_config import LogConfig
from kcoord.log.storage import DiskStorage, MemoryStorage, Storage
from kcoord.server.assignors import load_assignors
from kcoord.server.listen.descriptors import descriptors_now
from kcoord.server.listen.limits import frame_limits
from kcoord.server.logs import ServerLog
from kcoord.server.settings.load import Config
from kcoord.server.settings.table import SYNC_ALWAYS, SYNC_MEMORY


@final
class ProgressLog:
    """Logs the progress of opening or closing a directory with many logs, unless it is quick."""

    def __init__(self, log: ServerLog, every_ms: int) -> None:
        self.log = log
        self.every_s = every_ms / 1000
        self._what = ""
        self._last_s = 0.0

    def __call__(self, what: str, done: int, of: int) -> None:
        now_s = time.monotonic()
        if what != self._what:
            # A new phase: much time may have passed since the last one, so the interval starts again.
            self._what, self._last_s = what, now_s
        elif self.every_s and now_s - self._last_s >= self.every_s:
            self._last_s = now_s
            # Print now: while a server starts, other lines are buffered until it is ready.
            self.log.open()
            self.log.info("logs_" + what, done=done, of=of)


def new_id() -> str:
    """A random id in Kafka's form: 16 bytes in URL-safe base64."""
    return base64.urlsafe_b64encode(os.urandom(16)).decode("ascii").rstrip("=")


@final
class Assembly:
    """An engine with its directory and journal. Ends with `close` or `abandon`."""

    def __init__(
        self, engine: Engine, directory: LogDirectory, journal: Journal, in_memory: bool, data_dir: str
    ) -> None:
        self.engine = engine
        self.directory = directory
        self.journal = journal
        self.in_memory = in_memory
        self.path = os.path.abspath(data_dir)

    def free_bytes(self) -> int:
        """Free space for the log; -1 if the log is in memory."""
        return -1 if self.in_memory else self.directory.storage.free_bytes()

    def measure_volume(self) -> None:
        """Let clients see how large the volume is and what is left of it (DescribeLogDirs)."""
        if not self.in_memory:
            storage = self.directory.storage
            self.engine.data_plane.volume.measured(self.path, storage.total_bytes(), storage.free_bytes())

    def close(self) -> None:
        """Close the log cleanly. Raises LogError and OSError."""
        self.engine.stop()

    def abandon(self) -> None:
        """Close the files after a failure without writing anything."""
        try:
            self.journal.close(clean=False)
        except Exception:
            # The original failure is the one to report. The lock is released with the process at the latest.
            return


def open_assembly(config: Config, storage: Storage | None = None, log: ServerLog | None = None) -> Assembly:
    """Lock, open and recover the data directory and create an engine. Raises ConfigError, LogError and OSError.

    `storage`, if given, replaces the data directory. `log` receives the progress of a slow start or stop.
    """
    server = config.server
    # Load assignors before any file is opened: a plug-in may be missing.
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
        # If commits are not synced, a power cut may tear any number of bytes.
        commit_bytes_max=COMMIT_BYTES_MAX if server.log_sync == SYNC_ALWAYS else None,
        open_files_max=sys.maxsize if in_memory else descriptors_now(server.max_connections, False).log_files,
        progress=ProgressLog(log, server.progress_log_ms) if log is not None else None,
    )
    try:
        config.core.cluster_id = directory.meta.cluster_id
        journal = Journal(directory, server.log_sync)
        engine = Engine(config.core, directory, journal, os.urandom, frame_limits(server), assignors)
        assembly = Assembly(engine, directory, journal, in_memory, server.data_dir)
        assembly.measure_volume()
    except BaseException:
        directory.close(False)
        raise
    return assembly
