"""Reads the history of short logs while Spark starts, which mostly means waiting for its JVM."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    import pyarrow as pa

LOOK_S: Final = 0.02
# Of a JVM that starts, and of reading the headers of what counts as a short log.
DEADLINE_S: Final = 60.0


@final
class HistoryAhead:
    """The table `_history` of the logs in `path`, read in a thread."""

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        # Not in the thread: two threads would import the module.
        from kcoord.spark.planned import read_history_here

        self._read = read_history_here
        self._path = path
        self._options = options
        self._table: pa.Table | None = None
        self._is_wanted = False
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="kcoord-history", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # Whoever wants the table then meets the same error, and reports it.
        with suppress(Exception):
            if self._may_read():
                self._table = self._read(self._path, self._options)

    def _may_read(self) -> bool:
        """Wait until PySpark has started the JVM: it forks this process, which should have no busy threads then."""
        from pyspark import SparkContext

        deadline = time.monotonic() + DEADLINE_S
        while getattr(SparkContext, "_gateway", None) is None and not self._is_wanted:
            if self._is_over or time.monotonic() > deadline:
                return False
            time.sleep(LOOK_S)
        return not self._is_over

    def table(self) -> pa.Table | None:
        """Call it with a session. None if it could not be read, or takes Spark to be read."""
        self._is_wanted = True
        self._thread.join(DEADLINE_S)
        return self._table

    def stop(self) -> None:
        self._is_over = True
