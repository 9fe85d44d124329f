"""The server of the search: what it holds, what it logs, and how it is killed and paused."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Final

from tests.e2e.process import ServerProcess
from tests.stall.server_rig import memory_mb

STOP_S: Final = 15.0


class Server:
    """Started with the object."""

    def __init__(self, data: Path, listen: str, settings: list[str]) -> None:
        self.data = data
        self.listen = listen
        self.settings = settings
        self._lines_taken = 0
        # Of its lives before this one.
        self._earlier_lines: list[str] = []
        self.process = self._start()

    def _start(self) -> ServerProcess:
        self._lines_taken = 0
        return ServerProcess(self.data, *self.settings, listen=self.listen)

    @property
    def port(self) -> int:
        return self.process.port

    @property
    def pid(self) -> int:
        return self.process.process.pid

    def exit_code(self) -> int | None:
        return self.process.process.poll()

    def new_lines(self) -> list[tuple[str, dict[str, object] | None]]:
        """Lines of its log since the last call, and what they say."""
        lines = self.process.stderr[self._lines_taken :]
        self._lines_taken += len(lines)
        return [(line, fields_of(line)) for line in lines]

    def kill(self) -> None:
        """kill -9, and a start on the same data."""
        self.process.kill()
        self.close()
        self._earlier_lines += self.process.stderr
        self.process = self._start()

    def pause(self, seconds: float) -> None:
        self.process.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.process.process.send_signal(signal.SIGCONT)

    def stop(self) -> tuple[int, float]:
        """SIGTERM. Returns the exit code and the seconds that it took; -9 after STOP_S."""
        began = time.monotonic()
        killer = threading.Timer(STOP_S, self.process.process.kill)
        killer.start()
        code = self.process.stop()
        killer.cancel()
        return code, time.monotonic() - began

    def close(self) -> None:
        self.process.__exit__(None)

    def save_log(self, path: Path) -> None:
        path.write_text("".join([*self._earlier_lines, *self.process.stderr]))

    def memory_mb(self) -> float:
        return memory_mb(self.pid)

    def descriptors(self) -> tuple[int, int]:
        """Open files and sockets."""
        files = sockets = 0
        folder = f"/proc/{self.pid}/fd"
        for name in os.listdir(folder):
            try:
                target = os.readlink(f"{folder}/{name}")
            except OSError:
                continue
            if target.startswith("socket:"):
                sockets += 1
            else:
                files += 1
        return files, sockets


def fields_of(line: str) -> dict[str, object] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None
