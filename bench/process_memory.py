"""Memory of a Spark application in this process: the driver's Python, the JVM and the Python workers (Linux).

A thread samples all processes a few times a second. Workers are forks of one daemon and share its memory, so each
worker counts with its proportional share (PSS); the JVM and the driver count as a whole (RSS).
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

EVERY_S: Final = 0.25
MIB: Final = 1024.0


class Sampler:
    """Samples memory inside a with statement, in the driver's process. `peaks()` then has the maxima in MiB."""

    def __init__(self) -> None:
        self.jvm = self.workers = self.worker = self.driver = 0.0
        self._cpu_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._cpu_s = -cpu_seconds()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._look()
        self._cpu_s += cpu_seconds()

    def peaks(self) -> dict[str, float]:
        """`worker_mb` is the largest worker, `workers_mb` the sum of all workers at one time. `cpu_s` is not a peak but
        the CPU time of all processes, which depends less on other work on the machine than the elapsed time."""
        return {
            "cpu_s": self._cpu_s, "jvm_mb": self.jvm, "workers_mb": self.workers, "worker_mb": self.worker,
            "driver_mb": self.driver,
        }  # fmt: skip

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            self._look()

    def _look(self) -> None:
        self.driver = max(self.driver, _mib(Path("/proc/self/status"), "VmRSS:"))
        workers = [0.0]
        for pid, name in descendants(os.getpid()):
            if name == "java":
                self.jvm = max(self.jvm, _mib(Path(f"/proc/{pid}/status"), "VmRSS:"))
            elif name.startswith("python"):
                workers.append(_mib(Path(f"/proc/{pid}/smaps_rollup"), "Pss:"))
        self.worker = max(self.worker, *workers)
        self.workers = max(self.workers, sum(workers))


def cpu_seconds() -> float:
    """CPU time of this process and its descendants; the parent that waited for an ended process includes its time."""
    ticks = 0
    for pid in [os.getpid(), *(pid for pid, _ in descendants(os.getpid()))]:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        # After the name, state is the first field; utime, stime, cutime and cstime are the 12th to the 15th.
        ticks += sum(map(int, stat[stat.rindex(")") + 2 :].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def descendants(root: int) -> list[tuple[int, str]]:
    """Return (pid, name) of all descendants of the process `root`."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path(f"/proc/{entry}/stat").read_text()
        except OSError:
            continue
        # A name may contain any character, including spaces and brackets.
        name = stat[stat.index("(") + 1 : stat.rindex(")")]
        parent = int(stat[stat.rindex(")") + 2 :].split()[1])
        children.setdefault(parent, []).append((int(entry), name))
    found: list[tuple[int, str]] = []
    waiting = [root]
    while waiting:
        for pid, name in children.get(waiting.pop(), []):
            found.append((pid, name))
            waiting.append(pid)
    return found


def _mib(file: Path, field: str) -> float:
    """The sum of the field in MiB; 0 if the process has ended."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0.0
    return sum(float(line.split()[1]) for line in lines if line.startswith(field)) / MIB
