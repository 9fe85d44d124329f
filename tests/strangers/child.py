"""Processes of the search: each writes lines of JSON, lists whose first element names what the rest is, and ends its
work when its standard input ends."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable

from tests.e2e.process import clean_environment
from tests.harness.present import present

END_S = 60.0
# Of what a process writes to standard error, so much is kept.
LAST_LINES = 20

_lock = threading.Lock()


def report(*words: object) -> None:
    """In the child: one line, from any thread."""
    with _lock:
        print(json.dumps(words), flush=True)


def until_end() -> asyncio.Future[None]:
    """In the child: done once the parent wants it to end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not future.done():
            future.set_result(None)

    def wait() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(finish)

    threading.Thread(target=wait, daemon=True).start()
    return future


class Child:
    """In the parent. `take` gets every line, on a thread of the child's own."""

    def __init__(self, module: str, arguments: list[str], take: Callable[[str, list[object]], None]) -> None:
        self.name = " ".join([module.rpartition(".")[2], *arguments[:1]])
        self.errors: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(),
        )  # fmt: skip
        self._threads = [
            threading.Thread(target=self._read, args=(take,), daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, take: Callable[[str, list[object]], None]) -> None:
        for line in present(self.process.stdout):
            kind, *rest = json.loads(line)
            take(kind, rest)

    def _read_errors(self) -> None:
        for line in present(self.process.stderr):
            self.errors = [*self.errors[-LAST_LINES:], line]

    def problem(self) -> str:
        """Why it ended by itself; empty while it lives."""
        code = self.process.poll()
        return "" if code is None else f"{self.name} ended with {code}: {''.join(self.errors)}"

    def ask_to_end(self) -> None:
        if not present(self.process.stdin).closed:
            present(self.process.stdin).close()

    def end(self, seconds: float = END_S) -> str:
        """Let it finish; why it did not, if so."""
        self.ask_to_end()
        try:
            code = self.process.wait(seconds)
            problem = f"{self.name} ended with {code}: {''.join(self.errors)}" if code else ""
        except subprocess.TimeoutExpired:
            problem = f"{self.name} did not end within {seconds:.0f} s"
        self.stop()
        return problem

    def stop(self) -> None:
        """At once."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for thread in self._threads:
            thread.join(END_S)
        self.ask_to_end()
        present(self.process.stdout).close()
        present(self.process.stderr).close()
