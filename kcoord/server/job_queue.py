"""The order in which jobs get a thread. Pure: no threads, no clock.

The addresses of clients take turns, and a turn is one job. So a job waits for at most one job of each other address,
however many jobs that address has. An address has lanes, which take turns as well: for each kind of job one for
connections whose last job was short, one for new connections and one for those whose last job was long. So a flood of
one kind does not stop the other, and a flood of long jobs stops no client that is known for short ones. Within a lane
the order is that of arrival. This gives each connection its turn, because a connection has only one request with a job
at a time.

Only one job of connections with long jobs runs at a time for an address, so they leave a thread to all others, however
many they are. If the last job of an address outside of its short lanes was long, the same holds for its new
connections: a client could open one for each long job.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar, final

from kcoord.core.outcome import Job

# A job that takes more CPU time is long. Compiled, a usual batch of 1 MB takes less than half of that.
LONG_MS: Final = 30
# How many connections, and how many addresses, the queue remembers. Those it forgets count as new.
REMEMBERED_MAX: Final = 10_000
# What is known about a connection: whether its last job was long.
SHORT: Final = 0
NEW: Final = 1
LONG: Final = 2

K = TypeVar("K")
# The kind of the jobs, and what is known about their connections.
Lane = tuple[str, int]


@final
class Task:
    """A job that waits or runs."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.lane: Lane = ("", SHORT)
        self.has_begun = False
        self.is_late = False
        self.deadline: asyncio.TimerHandle | None = None


@final
class JobQueue:
    """A task is added, and then either removed while it waits, or taken and, once it does not run any more, ended.

    Its dicts serve as queues from which anything can be removed: the first one is the next.
    """

    def __init__(self) -> None:
        # The waiting tasks by address and lane. There are no empty lanes, and no addresses without lanes.
        self._addresses: dict[str, dict[Lane, dict[Task, bool]]] = {}
        # The same tasks by connection.
        self._of_connection: dict[int, dict[Task, bool]] = {}
        # How many running tasks out of new and long lanes an address has, if any.
        self._trying: dict[str, int] = {}
        # Connections, and whether the last job of each was long. Addresses, and whether their last job out of a new or
        # long lane was. The one that had its job first comes first.
        self._connections: dict[int, bool] = {}
        self._suspects: dict[str, bool] = {}

    def add(self, task: Task) -> None:
        job = task.job
        task.lane = (job.kind, self._standing(job.connection_id))
        self._addresses.setdefault(job.client_host, {}).setdefault(task.lane, {})[task] = True
        self._of_connection.setdefault(job.connection_id, {})[task] = True

    def _standing(self, connection_id: int) -> int:
        if not connection_id:
            return SHORT
        was_long = self._connections.get(connection_id)
        if was_long is None:
            return NEW
        return LONG if was_long else SHORT

    def _must_wait(self, address: str, standing: int) -> bool:
        if standing == SHORT or not self._trying.get(address):
            return False
        return standing == LONG or self._suspects.get(address, False)

    def take(self) -> Task | None:
        """The next task, which runs from now on. None if there is none that may run now."""
        for address, lanes in self._addresses.items():
            for lane, tasks in lanes.items():
                if self._must_wait(address, lane[1]):
                    continue
                task = next(iter(tasks))
                if lane[1] != SHORT:
                    self._trying[address] = self._trying.get(address, 0) + 1
                self.remove(task)
                # Others have the next turn. This ends both loops, because it changes what they go over.
                if lane in lanes:
                    lanes[lane] = lanes.pop(lane)
                if lanes:
                    self._addresses[address] = self._addresses.pop(address)
                return task
        return None

    def remove(self, task: Task) -> None:
        """Take a waiting task out."""
        job = task.job
        lanes = self._addresses[job.client_host]
        _discard(lanes, task.lane, task)
        if not lanes:
            del self._addresses[job.client_host]
        _discard(self._of_connection, job.connection_id, task)

    def ended(self, task: Task, cpu_ms: float) -> None:
        """A task that was taken has ended after so much CPU time."""
        job = task.job
        address = job.client_host
        is_long = cpu_ms > LONG_MS
        if task.lane[1] != SHORT:
            self._trying[address] -= 1
            if not self._trying[address]:
                del self._trying[address]
            _remember(self._suspects, address, is_long)
        if job.connection_id:
            _remember(self._connections, job.connection_id, is_long)

    def of_connection(self, connection_id: int) -> list[Task]:
        """The waiting tasks of a connection."""
        return list(self._of_connection.get(connection_id, ()))

    def waiting(self) -> list[Task]:
        """All waiting tasks."""
        return [task for tasks in self._of_connection.values() for task in tasks]

    def __bool__(self) -> bool:
        """Whether tasks wait."""
        return bool(self._addresses)


def _discard(groups: dict[K, dict[Task, bool]], key: K, task: Task) -> None:
    """Remove the task from its group, and the group if it was the last one."""
    tasks = groups[key]
    del tasks[task]
    if not tasks:
        del groups[key]


def _remember(known: dict[K, bool], key: K, is_long: bool) -> None:
    known.pop(key, None)
    known[key] = is_long
    if len(known) > REMEMBERED_MAX:
        del known[next(iter(known))]
