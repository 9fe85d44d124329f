"""Runs the core's jobs in a few threads and reports the results to the event loop.

Jobs of clients wait in the order of job_queue.py. When a connection is closed, those of its jobs that nobody needs any
more are dropped.

A job that misses its deadline is abandoned: the loop gets an error, and a late result is dropped. A thread cannot be
stopped, so another thread replaces the late one until it returns, up to a limit. The threads are daemons, because the
interpreter waits for the threads of an executor at exit: a job that never ends (in a plug-in) must not prevent the
server from stopping.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, final

from kcoord.core.outcome import Job, StepJob
from kcoord.server.job_queue import JobQueue, Task

# The number of concurrent jobs. More would only compete with the event loop.
JOBS_MAX: Final = 2
# Abandoned threads that are still busy. At this number no job starts until one of them returns.
LATE_THREADS_MAX: Final = 8
# A thread sleeps between two steps of a job if the last sleep was so long ago. Releasing the GIL alone is not enough:
# the thread would take it again before another one wakes up.
STEP_PAUSE_S: Final = 0.0001
STEP_PAUSE_EVERY_NS: Final = 500_000

# The job, its result, and the error if there is no result.
Done = Callable[[Job, object | None, str | None], None]


def _run(job: Job) -> object:
    if not isinstance(job, StepJob):
        return job.run()
    resumed_ns = time.perf_counter_ns()
    while not job.step():
        if job.is_abandoned:
            break
        # Some steps take a tenth of others.
        if time.perf_counter_ns() - resumed_ns >= STEP_PAUSE_EVERY_NS:
            time.sleep(STEP_PAUSE_S)
            resumed_ns = time.perf_counter_ns()
    return None


@final
class JobThreads:
    """`done` is called on the loop, once for each job, until `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, done: Done) -> None:
        self.loop = loop
        self.done = done
        self._queue: SimpleQueue[Task | None] = SimpleQueue()
        self._waiting = JobQueue()
        # The jobs that run within their deadline, and the abandoned ones. (Dicts serve as ordered sets.)
        self._running: dict[Task, bool] = {}
        self._late: dict[Task, bool] = {}
        self._threads = 0
        self._is_stopped = False

    def start(self, job: Job) -> None:
        """Run the job in a thread as soon as one is free. Does nothing after `stop`."""
        if self._is_stopped:
            return
        task = Task(job)
        task.deadline = self.loop.call_later(job.deadline_ms / 1000, self._give_up, task)
        self._waiting.add(task)
        self._begin()

    @property
    def is_busy(self) -> bool:
        """Whether jobs run or wait for a thread."""
        return bool(self._waiting or self._running)

    def forget(self, connection_id: int) -> None:
        """The connection is closed: drop its jobs that have not begun, except those that outlive it."""
        for task in self._waiting.of_connection(connection_id):
            if task.job.outlives_connection:
                continue
            self._waiting.remove(task)
            task.job.is_abandoned = True
            if task.deadline is not None:
                task.deadline.cancel()
            self.done(task.job, None, "its connection is closed")

    def stop(self) -> None:
        """Start and report no more jobs. The threads end after their current job."""
        if self._is_stopped:
            return
        self._is_stopped = True
        for task in [*self._waiting.waiting(), *self._running]:
            task.job.is_abandoned = True
            if task.deadline is not None:
                task.deadline.cancel()
        self._waiting = JobQueue()
        for _ in range(self._threads):
            self._queue.put(None)

    def _begin(self) -> None:
        while len(self._running) < JOBS_MAX and len(self._late) < LATE_THREADS_MAX:
            task = self._waiting.take()
            if task is None:
                break
            task.has_begun = True
            self._running[task] = True
            if self._threads < len(self._running) + len(self._late):
                self._threads += 1
                threading.Thread(target=self._work, name="kcoord-job", daemon=True).start()
            self._queue.put(task)

    def _give_up(self, task: Task) -> None:
        """Abandon a job that missed its deadline."""
        task.job.is_abandoned = True
        task.is_late = True
        if task.has_begun:
            del self._running[task]
            self._late[task] = True
        else:
            self._waiting.remove(task)
        self._begin()
        self.done(task.job, None, f"not done within {task.job.deadline_ms} ms")

    def _ended(self, task: Task, result: object | None, error: str | None, cpu_ms: float) -> None:
        if self._is_stopped:
            return
        self._waiting.ended(task, cpu_ms)
        if task.is_late:
            del self._late[task]
            if self._threads > JOBS_MAX + len(self._late):
                self._threads -= 1
                self._queue.put(None)
            self._begin()
            return
        del self._running[task]
        if task.deadline is not None:
            task.deadline.cancel()
        self._begin()
        self.done(task.job, result, error)

    def _work(self) -> None:
        while True:
            task = self._queue.get()
            if task is None:
                return
            result: object | None = None
            error: str | None = None
            start_ns = time.thread_time_ns()
            try:
                result = _run(task.job)
            except BaseException as failure:  # every exception is reported: a job may run a plug-in
                error = f"{type(failure).__name__}: {failure}"
            cpu_ms = (time.thread_time_ns() - start_ns) / 1_000_000
            try:
                self.loop.call_soon_threadsafe(self._ended, task, result, error, cpu_ms)
            except RuntimeError:
                return  # the loop is closed: the server has stopped
