"""Work for a process of its own: a line of JSON on its stdin, its answers line by line on its stdout.

Its stdin stays open until it has answered, so it can tell by it that its parent has ended, and end too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

Child = subprocess.Popen[str]


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
        child.stdin.write(json.dumps(work) + "\n")
        child.stdin.flush()
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


def end_with_parent() -> None:
    """In a thread of the child: wait until the other end of its stdin is closed."""
    sys.stdin.read()
    os._exit(1)
