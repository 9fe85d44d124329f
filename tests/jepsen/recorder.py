"""How a client process reports its operations: one line each on standard output, at once.

    invoke OPERATION     before it begins
    commit OPERATION     right before the commit is sent, with everything that was sent and polled
    done OPERATION       its completion

A process may die at any line. A transaction without a `commit` line never happens; with one, and without `done`, its
result is unknown. `Collector` turns the lines of all processes into a history.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import replace

from tests.jepsen.history import History, Kind, Name, Operation, Send, Step, decode, encode, renumber


class Recorder:
    """One process's operations. Times are of the clock that all processes of a machine share."""

    def __init__(self, process: str) -> None:
        self.process = process

    def write(self, word: str, one: Operation) -> None:
        sys.stdout.write(f"{word} {encode(one)}\n")
        sys.stdout.flush()

    def invoke(self, name: Name, steps: Iterable[Step] = (), keys: tuple[str, ...] = ()) -> None:
        self.write("invoke", self.operation("invoke", name, steps, keys=keys))

    def begin_commit(self, steps: Iterable[Step], rebalanced: Iterable[str], group: str) -> Operation:
        """Right before the commit is sent; the result is what to report if it succeeds."""
        one = self.operation("ok", "txn", steps, rebalanced=rebalanced, group=group)
        one = replace(one, commit_ns=one.time_ns)
        self.write("commit", one)
        return one

    def done(self, one: Operation) -> None:
        self.write("done", replace(one, time_ns=time.monotonic_ns()))

    def operation(
        self, kind: Kind, name: Name, steps: Iterable[Step] = (), keys: tuple[str, ...] = (),
        rebalanced: Iterable[str] = (), group: str = "",
    ) -> Operation:  # fmt: skip
        now = time.monotonic_ns()
        return Operation(0, self.process, kind, name, tuple(steps), keys, frozenset(rebalanced), group, 0, now)


class Collector:
    """The lines of all processes, and what they amount to."""

    def __init__(self) -> None:
        self._operations: list[Operation] = []
        self._invoked: dict[str, Operation] = {}
        self._committing: dict[str, Operation] = {}
        self._lock = threading.Lock()

    def take(self, line: str) -> None:
        """A line that may be incomplete, as the last one of a killed process."""
        word, _, rest = line.partition(" ")
        if not line.endswith("\n") or word not in ("invoke", "commit", "done"):
            return
        one = decode(rest)
        with self._lock:
            if word == "commit":
                self._committing[one.process] = one
                return
            self._operations.append(one)
            if word == "invoke":
                self._invoked[one.process] = one
            else:
                self._invoked.pop(one.process, None)
                self._committing.pop(one.process, None)

    def end(self, process: str) -> None:
        """The process is dead: completes what it had begun."""
        with self._lock:
            invoked = self._invoked.pop(process, None)
            committing = self._committing.pop(process, None)
            if committing is not None:
                self._operations.append(replace(committing, kind="info", time_ns=time.monotonic_ns()))
            elif invoked is not None:
                kind: Kind = "fail" if invoked.name == "txn" else "info"
                sends = tuple(step for step in invoked.steps if isinstance(step, Send))
                self._operations.append(replace(invoked, kind=kind, steps=sends, time_ns=time.monotonic_ns()))

    def history(self) -> History:
        with self._lock:
            return renumber(sorted(self._operations, key=lambda one: one.time_ns))

    def count(self, role: str) -> int:
        """Successful operations of the processes whose name begins so."""
        with self._lock:
            return sum(
                one.kind == "ok" and bool(one.steps) and one.process.startswith(role) for one in self._operations
            )
