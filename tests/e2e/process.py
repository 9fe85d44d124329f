"""`kcoord serve` as a process of its own, and what tests do to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

# What has to happen happens long before: a machine may be busy with other things for seconds.
READY_SECONDS = 60.0
END_SECONDS = 60.0


def kcoord_command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "kcoord.cli.main", *arguments]


def foreground_command(*arguments: str) -> list[str]:
    """The same for a command that Ctrl-C is to end: without this, tests that run in the background ignore it."""
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from kcoord.cli.main import main; main()"
    )
    return [sys.executable, "-P", "-c", code, *arguments]


def clean_environment() -> dict[str, str]:
    """Ours without settings that somebody exported."""
    return {name: text for name, text in os.environ.items() if not name.startswith("KCOORD_")}


class ServerProcess:
    """Started with the object; `stop`, `kill` and `wait` end it. Use it in a with statement."""

    def __init__(self, data: Path | None, *arguments: str, listen: str = "127.0.0.1:0") -> None:
        where = ["--data", str(data)] if data is not None else ["--set", "log.sync=memory"]
        self.process = subprocess.Popen(
            kcoord_command("serve", "--listen", listen, *where, *arguments),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(),
        )  # fmt: skip
        self.stderr: list[str] = []
        self._reader = threading.Thread(target=self._read_stderr, daemon=True)
        self._reader.start()
        self.bootstrap = self._wait_ready()
        self.port = int(self.bootstrap.rpartition(":")[2])

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.stderr.append(line)

    def _wait_ready(self) -> str:
        assert self.process.stdout is not None
        watchdog = threading.Timer(READY_SECONDS, self.process.kill)
        watchdog.start()
        line = self.process.stdout.readline()
        watchdog.cancel()
        if not line.startswith("kcoord ready "):
            self.process.kill()
            self.process.wait()
            self._reader.join(END_SECONDS)
            raise AssertionError(f"the server did not start: {line!r}\n{''.join(self.stderr)}")
        return line.split()[2]

    def lines(self, event: str = "") -> list[dict[str, object]]:
        """The lines of the server's log so far, or those of one event."""
        found = [json.loads(line) for line in self.stderr if line.startswith("{")]
        return [line for line in found if not event or line["event"] == event]

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.wait()

    def wait(self, seconds: float = END_SECONDS) -> int:
        code = self.process.wait(seconds)
        self._reader.join(END_SECONDS)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        if kind is not None:
            print("".join(self.stderr[-40:]), file=sys.stderr)


def run_to_end(
    *arguments: str, seconds: float = END_SECONDS, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command that is expected to end by itself. `environment` is added to ours."""
    variables = clean_environment() | dict(environment or {})
    return subprocess.run(kcoord_command(*arguments), capture_output=True, text=True, timeout=seconds, env=variables)
