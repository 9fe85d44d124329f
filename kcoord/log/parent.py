"""For processes that a server starts: none outlives it, since the next server works on the same files."""

from __future__ import annotations

import os
import sys
import threading


def end_with_parent() -> None:
    """From now on this process ends when the other end of its standard input is closed, whatever it is doing."""
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    # Not through `sys.stdin`: its lock would be held when the process is done and wants to end.
    while os.read(sys.stdin.fileno(), 4096):
        continue
    os._exit(1)
