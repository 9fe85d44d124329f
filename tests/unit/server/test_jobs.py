"""Threads for jobs: deadlines, results that come too late, and an end that waits for nobody."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from kcoord.core.outcome import Job, StepJob
from kcoord.server import job_queue
from kcoord.server.jobs import JOBS_MAX, LATE_THREADS_MAX, STEP_PAUSE_EVERY_NS, JobThreads

LONG_MS = 600_000
# What has to happen happens long before: a machine may be busy with other things for seconds.
TEST_S = 110.0
STUCK_S = 300.0


class Work(Job):
    """Does what a test says."""

    def __init__(self, key: str, work: Callable[[], object], deadline_ms: int = LONG_MS) -> None:
        super().__init__(key, deadline_ms)
        self.work = work

    def run(self) -> object:
        return self.work()


class Steps(StepJob):
    """So many steps, each of which computes for so long; the last one opens a gate."""

    def __init__(self, key: str, count: int, deadline_ms: int = LONG_MS, step_ns: int = 0) -> None:
        super().__init__(key, deadline_ms)
        self.left = count
        self.step_ns = step_ns
        self.ended = threading.Event()

    def step(self) -> bool:
        end_ns = time.perf_counter_ns() + self.step_ns
        while time.perf_counter_ns() < end_ns:
            pass
        self.left -= 1
        if self.left == 0 or self.is_abandoned:
            self.ended.set()
        return self.left == 0


class Rig:
    def __init__(self) -> None:
        self.done: list[tuple[str, object | None, str | None]] = []
        self.threads = JobThreads(asyncio.get_running_loop(), self._done)
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)

    def _done(self, job: Job, result: object | None, error: str | None) -> None:
        self.done.append((job.key, result, error))

    def stick(self) -> str:
        """Work that lasts until the test opens the gate."""
        self.begun.release()
        assert self.gate.wait(STUCK_S)
        return "late"

    def start(self, key: str, work: Callable[[], object], deadline_ms: int = LONG_MS) -> Work:
        job = Work(key, work, deadline_ms)
        self.threads.start(job)
        return job

    async def until(self, count: int) -> None:
        """Wait for so many results."""
        while len(self.done) < count:
            await asyncio.sleep(0.002)


# Threads that were there before the test: servers of other tests may live as long as the whole run.
before: list[threading.Thread] = []


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    before[:] = threading.enumerate()
    rig = Rig()
    yield rig
    rig.gate.set()
    rig.threads.stop()


def live_threads() -> int:
    return sum(thread.name == "kcoord-job" and thread not in before for thread in threading.enumerate())


async def until_threads(count: int) -> None:
    while live_threads() != count:
        await asyncio.sleep(0.002)


async def test_results_and_errors_come_back_on_the_loop(rig: Rig) -> None:
    rig.start("seven", lambda: 7)
    rig.start("fault", lambda: 1 // 0)
    rig.start("exit", lambda: exit(3))
    rig.start("nothing", lambda: None)
    await rig.until(4)
    assert sorted(rig.done) == [
        ("exit", None, "SystemExit: 3"),
        ("fault", None, "ZeroDivisionError: integer division or modulo by zero"),
        ("nothing", None, None),
        ("seven", 7, None),
    ]


async def test_no_thread_without_a_job(rig: Rig) -> None:
    for index in range(20):
        rig.start(str(index), lambda: 7)
    await rig.until(20)
    assert live_threads() == JOBS_MAX
    rig.threads.stop()
    await until_threads(0)


async def test_a_late_result_is_dropped(rig: Rig) -> None:
    job = rig.start("late", rig.stick, 20)
    await rig.until(1)
    assert rig.done == [("late", None, "not done within 20 ms")]
    assert job.is_abandoned
    rig.gate.set()
    rig.start("next", lambda: 7)
    await rig.until(2)
    await asyncio.sleep(0.05)
    assert rig.done[1:] == [("next", 7, None)]


async def test_late_threads_are_replaced_and_go_when_they_come_back(rig: Rig) -> None:
    for index in range(4):
        rig.start(f"late-{index}", rig.stick, 20)
    await rig.until(4)
    rig.start("next", lambda: 7)
    await rig.until(5)
    assert rig.done[-1] == ("next", 7, None)
    assert live_threads() > JOBS_MAX
    rig.gate.set()
    await until_threads(JOBS_MAX)
    assert len(rig.done) == 5


async def test_threads_are_bounded(rig: Rig) -> None:
    for index in range(LATE_THREADS_MAX):
        rig.start(f"stuck-{index}", rig.stick, 300)
        assert await asyncio.to_thread(rig.begun.acquire, timeout=TEST_S)
        if (index + 1) % JOBS_MAX == 0:
            await rig.until(index + 1)
    assert live_threads() == LATE_THREADS_MAX
    rig.start("waits", lambda: 7, 20)
    await rig.until(LATE_THREADS_MAX + 1)
    assert rig.done[-1] == ("waits", None, "not done within 20 ms")
    rig.start("has time", lambda: 8)
    await asyncio.sleep(0.05)
    assert len(rig.done) == LATE_THREADS_MAX + 1
    rig.gate.set()
    await rig.until(LATE_THREADS_MAX + 2)
    assert rig.done[LATE_THREADS_MAX + 1] == ("has time", 8, None)


def of_client(job: Work, connection_id: int, outlives: bool = False) -> Work:
    job.client_host = "10.0.0.1"
    job.connection_id = connection_id
    job.outlives_connection = outlives
    return job


async def test_jobs_of_a_closed_connection_that_have_not_begun_are_dropped(rig: Rig) -> None:
    running = [of_client(Work(f"running-{number}", rig.stick), 1) for number in range(JOBS_MAX)]
    dropped = of_client(Work("dropped", lambda: 7), 1)
    needed = of_client(Work("needed", lambda: 7), 1, outlives=True)
    other = of_client(Work("other", lambda: 7), 2)
    for job in (*running, dropped, needed, other):
        rig.threads.start(job)
    for _ in running:
        assert await asyncio.to_thread(rig.begun.acquire, timeout=TEST_S)
    rig.threads.forget(1)
    rig.threads.forget(1)
    rig.threads.forget(3)
    assert rig.done == [("dropped", None, "its connection is closed")] and dropped.is_abandoned
    assert not any(job.is_abandoned for job in (*running, needed, other))
    rig.gate.set()
    await rig.until(5)
    assert sorted(rig.done[1:]) == [
        ("needed", 7, None), ("other", 7, None), ("running-0", "late", None), ("running-1", "late", None)
    ]  # fmt: skip
    assert not rig.threads.is_busy
    rig.threads.stop()
    rig.threads.forget(2)


async def test_a_dropped_job_misses_no_deadline(rig: Rig) -> None:
    for number in range(JOBS_MAX):
        rig.start(f"running-{number}", rig.stick)
    rig.threads.start(of_client(Work("dropped", lambda: 7, 20), 1))
    rig.threads.forget(1)
    await asyncio.sleep(0.05)
    assert [key for key, _, _ in rig.done] == ["dropped"]


async def test_a_long_job_leaves_a_thread_to_others(rig: Rig) -> None:
    """How long a job took is its CPU time, and it counts for the next job of its connection."""

    def work() -> None:
        until_ns = time.thread_time_ns() + (job_queue.LONG_MS + 20) * 1_000_000
        while time.thread_time_ns() < until_ns:
            pass

    rig.threads.start(of_client(Work("first-3", lambda: 7), 3))
    await rig.until(1)
    for number in (1, 2):
        rig.threads.start(of_client(Work(f"first-{number}", work), number))
    await rig.until(3)
    for number in (1, 2):
        rig.threads.start(of_client(Work(f"second-{number}", rig.stick), number))
    rig.threads.start(of_client(Work("second-3", lambda: 7), 3))
    await rig.until(4)
    assert rig.done[3] == ("second-3", 7, None)
    rig.gate.set()
    await rig.until(6)


async def test_stop_does_not_wait_and_reports_nothing_more(rig: Rig) -> None:
    stuck = [rig.start(f"stuck-{index}", rig.stick) for index in range(JOBS_MAX)]
    waiting = rig.start("waiting", lambda: 7)
    for _ in stuck:
        assert await asyncio.to_thread(rig.begun.acquire, timeout=TEST_S)
    rig.threads.stop()
    rig.threads.stop()
    # The gate is closed: they were not waited for.
    assert live_threads() == JOBS_MAX and not rig.gate.is_set()
    assert waiting.is_abandoned and all(job.is_abandoned for job in stuck)
    rig.start("after", lambda: 7)
    rig.gate.set()
    await until_threads(0)
    await asyncio.sleep(0.02)
    assert rig.done == []


def test_a_thread_that_outlives_the_loop() -> None:
    gate = threading.Event()
    faults: list[object] = []
    others = threading.enumerate()
    hook, threading.excepthook = threading.excepthook, lambda args: faults.append(args)
    try:

        async def main() -> None:
            threads = JobThreads(asyncio.get_running_loop(), lambda job, result, error: None)
            threads.start(Work("stuck", lambda: gate.wait(STUCK_S)))
            await asyncio.sleep(0.02)

        # Its own loop: the test is about what is left after the loop.
        asyncio.run(main())
        workers = [thread for thread in threading.enumerate() if thread.name == "kcoord-job" and thread not in others]
        assert all(thread.daemon for thread in workers)
        gate.set()
        for thread in workers:
            thread.join(TEST_S)
            assert not thread.is_alive()
    finally:
        with suppress(Exception):
            threading.excepthook = hook
    assert faults == []


async def test_a_job_in_steps_lets_the_loop_run_and_returns_once(rig: Rig) -> None:
    job = Steps("steps", 300, step_ns=STEP_PAUSE_EVERY_NS)
    rig.threads.start(job)
    seen = set()
    while not rig.done:
        seen.add(job.left)
        await asyncio.sleep(0)
    assert rig.done == [("steps", None, None)]
    assert job.left == 0 and len(seen) > 2


@pytest.mark.parametrize(("step_ns", "pauses_max"), [(0, 4_000), (STEP_PAUSE_EVERY_NS, 99)])
async def test_pauses_follow_the_time_and_not_the_steps(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, step_ns: int, pauses_max: int
) -> None:
    """Short steps share a pause: it takes longer than they do."""
    pauses: list[float] = []
    sleep = time.sleep

    def note(seconds: float) -> None:
        if threading.current_thread().name == "kcoord-job":
            pauses.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", note)
    rig.threads.start(Steps("steps", 100 if step_ns else 20_000, step_ns=step_ns))
    await rig.until(1)
    assert len(pauses) <= pauses_max
    assert not step_ns or len(pauses) == pauses_max


async def test_a_job_in_steps_ends_when_its_result_is_not_needed(rig: Rig) -> None:
    late = Steps("late", -1, 20)
    rig.threads.start(late)
    await rig.until(1)
    assert rig.done == [("late", None, "not done within 20 ms")]
    assert await asyncio.to_thread(late.ended.wait, TEST_S)
    stopped = Steps("stopped", -1)
    rig.threads.start(stopped)
    while stopped.left == -1:
        await asyncio.sleep(0.002)
    rig.threads.stop()
    assert await asyncio.to_thread(stopped.ended.wait, TEST_S)
    await until_threads(0)


def test_steps_without_threads() -> None:
    job = Steps("steps", 3)
    assert job.run() is None and job.left == 0
    job = Steps("steps", -1)
    job.is_abandoned = True
    assert job.run() is None
