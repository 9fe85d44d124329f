"""Work for a process of its own: a line of JSON on its stdin, its answers line by line on its stdout.

Its stdin stays open until it has answered, so it can tell by it that its parent has ended, and end too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, final

from kcoord.log.parent import end_with_parent
from kcoord.log.storage import DiskFile, DiskStorage

Child = subprocess.Popen[str]


@final
class Leash:
    """For ending a process that a thread starts: at once, or as soon as it has begun.

    `kill` is called on the loop and `started` in the thread, in any order: a process that is begun when nobody wants
    it any more would go on beside the next server.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[Any] | None = None
        self._is_over = False

    @property
    def child(self) -> subprocess.Popen[Any] | None:
        """None before it has begun, and where the thread has said that it is gone."""
        return self._child

    @property
    def is_over(self) -> bool:
        return self._is_over

    def started(self, child: subprocess.Popen[Any] | None) -> None:
        self._child = child
        if child is not None and self._is_over:
            child.kill()

    def kill(self) -> None:
        self._is_over = True
        child = self._child
        if child is not None:
            child.kill()


def run_child(module: str, work: dict[str, Any], started: Callable[[Child | None], None]) -> list[str]:
    """Run a module of ours as a process and wait for it: to be called in a thread. What it printed.

    `started` is told of the process, for whoever wants to kill it, and with None that there is none any more. Raises
    OSError.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    assert child.stdin is not None and child.stdout is not None
    started(child)
    try:
        try:
            child.stdin.write(json.dumps(work) + "\n")
            child.stdin.flush()
        except BrokenPipeError:
            # What it printed says why it ended.
            pass
        return child.stdout.read().splitlines()
    finally:
        started(None)
        child.kill()
        child.wait()
        child.stdout.close()
        try:
            child.stdin.close()
        except OSError:
            pass  # what it did not read is nobody's


# ---- in the child


@final
class LogFiles(DiskStorage):
    """The server's directory as another process sees it: files that the server has removed stay removed.

    Only files that end in `made_suffix`, which the process writes itself, are made when they are not there.
    """

    def __init__(self, root: str, made_suffix: str) -> None:
        super().__init__(root)
        self._made_suffix = made_suffix

    def open(self, path: str) -> DiskFile:
        return DiskFile(self._path(path), create=path.endswith(self._made_suffix))


def begin_work() -> dict[str, Any]:
    """What is to be done. From now on the process is as nice as that says, and ends when its parent does."""
    work: dict[str, Any] = json.loads(sys.stdin.readline())
    os.nice(work["niceness"])
    end_with_parent()
    return work
