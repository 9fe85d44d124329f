"""A kcoord server in a process of its own, as a user starts it.

with KcoordServer() as server:
    server.bootstrap   # "127.0.0.1:PORT"
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 60.0


class KcoordServer:
    """Starts on entering, stops on leaving; removes its directory unless `data` was given."""

    def __init__(self, settings: Mapping[str, str] | None = None, data: Path | None = None) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="kcoord-server-"))
        self.data = data or self._home / "data"
        self.log = self._home / "server.log"
        self.port = 0
        # A broker, beside which most tests put it, has no such topic.
        self._settings = {"group.events.enable": "false", **(settings or {})}
        self._process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        command = [sys.executable, "-m", "kcoord.cli.main", "serve", "--data", str(self.data)]
        command += ["--listen", f"127.0.0.1:{self.port}"]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("KCOORD_")}
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=clean)
        self.port = self._ready_port()

    def _ready_port(self) -> int:
        assert self._process is not None and self._process.stdout is not None
        deadline = time.monotonic() + START_DEADLINE_S
        readable, _, _ = select.select([self._process.stdout], [], [], max(deadline - time.monotonic(), 0))
        line = self._process.stdout.readline() if readable else ""
        if not line.startswith("kcoord ready "):
            raise RuntimeError(f"kcoord did not get ready; it said {line!r}\n{self.log_tail()}")
        return int(line.rsplit(":", 1)[1])

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def stop(self, kill: bool = False) -> None:
        """Ends the process; the data directory stays."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                self._process.wait(timeout=STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)
