"""Freed memory stays with the process: measured in a process of its own, because the setting is for a whole process."""

from __future__ import annotations

import subprocess
import sys

# The page faults of ten megabytes that are taken and freed a hundred times.
COUNT = """
import ctypes, resource
from kcoord.server.memory import keep_freed_memory
known = keep_freed_memory()
has_mallopt = hasattr(ctypes.CDLL(None), "mallopt")
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        blocks = [b"x" * (1 << 20) for _ in range(10)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(known, has_mallopt, faults())
"""


def test_freed_memory_is_used_again() -> None:
    command = [sys.executable, "-c", COUNT]
    known, has_mallopt, faults = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert known == has_mallopt
    # Without the setting, 256 pages for each megabyte.
    assert known == "False" or int(faults) < 10_000
