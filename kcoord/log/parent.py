"""The child's side of the protocol between a server and its child processes.

`kcoord.server.maintenance.child` is the server's side.

    to the child     one line of JSON: the work. Standard input stays open after it; end of file means that the server
                     has ended
    from the child   lines of JSON on standard output, objects with one of these fields:
                       answer     an object; one for each piece of work, in order
                       progress   a number that grows as the work proceeds, at most one line per BEAT_S

Everything else that the process prints goes to standard error. No child outlives its server, because the next server
works on the same files.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any, Final, NoReturn, final

from kcoord.log.storage import DiskFile, DiskStorage

BEAT_S: Final = 1.0


@final
class Parent:
    """The connection to the server that started this process. `work` is its request."""

    def __init__(self) -> None:
        # Output of libraries must not get between two answers, so standard output is redirected.
        self._out = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._lock = threading.Lock()
        self.work: dict[str, Any] = json.loads(sys.stdin.readline())
        self.meter = Meter()
        os.nice(self.work["niceness"])
        threading.Thread(target=_end_with_stdin, daemon=True).start()
        self._send({"progress": 0})
        threading.Thread(target=self._beat, daemon=True).start()

    def answer(self, fields: dict[str, Any]) -> None:
        self._send({"answer": fields})

    def end(self) -> NoReturn:
        """Exit after the last answer, without waiting for the threads."""
        os._exit(0)

    def _send(self, document: dict[str, Any]) -> None:
        data = memoryview(json.dumps(document).encode() + b"\n")
        with self._lock:
            while data:
                data = data[os.write(self._out, data) :]

    def _beat(self) -> None:
        """Report progress if there is any. A process that hangs in a system call therefore becomes silent."""
        reported = 0
        while True:
            time.sleep(BEAT_S)
            if self.meter.units != reported:
                reported = self.meter.units
                self._send({"progress": reported})


def _end_with_stdin() -> None:
    # Not through `sys.stdin`: this thread would hold its lock while the process tries to exit.
    while os.read(sys.stdin.fileno(), 4096):
        continue
    os._exit(1)


@final
class Meter:
    """Counts the work that a process did on files. The unit is arbitrary."""

    def __init__(self) -> None:
        self.units = 0


@final
class MeteredFile:
    """A file whose operations are counted by a `Meter`."""

    def __init__(self, file: DiskFile, meter: Meter) -> None:
        self._file = file
        self._meter = meter

    @property
    def size(self) -> int:
        return self._file.size

    def append(self, data: bytes) -> int:
        self._meter.units += 1
        return self._file.append(data)

    def read_at(self, position: int, size: int) -> bytes:
        self._meter.units += 1
        return self._file.read_at(position, size)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def preallocate(self, size_bytes: int) -> None:
        self._file.preallocate(size_bytes)

    def is_preallocated(self) -> bool:
        return self._file.is_preallocated()

    def trim(self) -> None:
        self._file.trim()

    def datasync(self) -> None:
        self._file.datasync()
        self._meter.units += 1

    def close(self) -> None:
        self._file.close()


@final
class LogFiles(DiskStorage):
    """The server's data directory for a child process, which must not recreate files that the server has removed.

    Only files with one of `made_suffixes`, which the process writes itself, are created if they do not exist.
    """

    def __init__(self, root: str, made_suffixes: tuple[str, ...], meter: Meter) -> None:
        super().__init__(root)
        self._made_suffixes = made_suffixes
        self._meter = meter

    def open(self, path: str) -> MeteredFile:  # type: ignore[override]
        return MeteredFile(DiskFile(self._path(path), create=path.endswith(self._made_suffixes)), self._meter)
