"""Whose job is next, with threads and a clock that the test moves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kcoord.core.outcome import StepJob
from kcoord.server.job_queue import LONG, LONG_MS, NEW, REMEMBERED_MAX, SHORT, JobQueue, Task

CHECK, LOOKUP = "produce", "list-offsets"
FLOOD, OTHER, POLITE = "10.0.0.1", "10.0.0.2", "10.0.0.3"
SHORT_MS, BOMB_MS = 5, 2500


def task(address: str = FLOOD, connection_id: int = 1, kind: str = CHECK) -> Task:
    job = StepJob(f"{address}-{connection_id}-{kind}", 30_000)
    job.client_host, job.connection_id, job.kind = address, connection_id, kind
    return Task(job)


def taken(queue: JobQueue) -> list[str]:
    """The addresses and connections of all tasks, in their order. Each ends before the next one is taken."""
    found = []
    while (next_one := queue.take()) is not None:
        found.append(next_one.job.key)
        queue.ended(next_one, SHORT_MS)
    assert not queue and queue.waiting() == []
    return found


def keys(*tasks: Task) -> list[str]:
    return [one.job.key for one in tasks]


def filled(*tasks: Task) -> JobQueue:
    queue = JobQueue()
    for one in tasks:
        queue.add(one)
    return queue


def test_addresses_take_turns() -> None:
    flood = [task(FLOOD, number) for number in range(1, 5)]
    other = [task(OTHER, number) for number in range(11, 13)]
    polite = task(POLITE, 21)
    assert taken(filled(*flood, *other, polite)) == keys(
        flood[0], other[0], polite, flood[1], other[1], flood[2], flood[3]
    )


def test_an_address_that_comes_back_goes_to_the_end() -> None:
    queue = filled(task(POLITE, 1), task(FLOOD, 2), task(FLOOD, 3), task(OTHER, 4))
    first = queue.take()
    assert first is not None and first.job.client_host == POLITE
    queue.ended(first, SHORT_MS)
    queue.add(task(POLITE, 1))
    assert taken(queue) == keys(task(FLOOD, 2), task(OTHER, 4), task(POLITE, 1), task(FLOOD, 3))


def test_kinds_take_turns() -> None:
    checks = [task(FLOOD, number) for number in range(1, 5)]
    lookups = [task(FLOOD, number, LOOKUP) for number in range(11, 13)]
    assert taken(filled(*checks, *lookups)) == keys(checks[0], lookups[0], checks[1], lookups[1], *checks[2:])


def make_known(queue: JobQueue, cpu_ms: int, *tasks: Task) -> None:
    """Let the connections of the tasks have a job."""
    for one in tasks:
        queue.add(one)
        assert queue.take() is one
        queue.ended(one, cpu_ms)


def add(queue: JobQueue, *tasks: Task) -> tuple[Task, ...]:
    for one in tasks:
        queue.add(one)
    return tasks


def test_long_jobs_of_an_address_run_one_at_a_time() -> None:
    queue = JobQueue()
    make_known(queue, SHORT_MS, task(FLOOD, 4))
    make_known(queue, LONG_MS + 1, task(FLOOD, 1), task(FLOOD, 2), task(OTHER, 3))
    first, _, second = add(queue, task(FLOOD, 1), task(FLOOD, 4), task(FLOOD, 2, LOOKUP))
    assert queue.take() is first
    # Not short ones, nor those of another address.
    (other,) = add(queue, task(OTHER, 3))
    found = [queue.take(), queue.take()]
    assert {one.job.connection_id for one in found if one is not None} == {3, 4} and other in found
    assert queue.take() is None and queue
    queue.ended(first, SHORT_MS)
    assert queue.take() is second
    # A short job makes a connection one with short jobs.
    (again,) = add(queue, task(FLOOD, 1))
    assert queue.take() is again


def test_new_connections_are_tried_one_at_a_time_after_a_long_job() -> None:
    queue = JobQueue()
    first, second, third, fourth = add(queue, *[task(FLOOD, number) for number in range(1, 5)])
    assert queue.take() is first and queue.take() is second
    queue.ended(first, LONG_MS + 1)
    assert queue.take() is None
    queue.ended(second, SHORT_MS)
    assert queue.take() is third and queue.take() is fourth
    queue.ended(third, LONG_MS + 1)
    queue.ended(fourth, LONG_MS + 1)
    assert queue.take() is None and not queue


def test_lanes_take_turns() -> None:
    queue = JobQueue()
    make_known(queue, SHORT_MS, task(FLOOD, 11), task(FLOOD, 12))
    make_known(queue, LONG_MS + 1, *[task(FLOOD, number) for number in range(1, 4)])
    long = add(queue, *[task(FLOOD, number) for number in range(1, 4)])
    short = add(queue, task(FLOOD, 11), task(FLOOD, 12))
    new = add(queue, task(FLOOD, 21))
    assert taken(queue) == keys(long[0], short[0], new[0], long[1], short[1], long[2])


def test_jobs_of_no_client_are_never_long() -> None:
    queue = JobQueue()
    make_known(queue, LONG_MS + 1, task("", 0, ""))
    add(queue, task("", 0, ""), task("", 0, ""))
    assert queue.take() is not None and queue.take() is not None


def test_what_is_known_is_bounded() -> None:
    queue = JobQueue()
    make_known(queue, LONG_MS + 1, *[task(f"host-{number}", number) for number in range(1, REMEMBERED_MAX + 2)])
    forgotten, known = add(queue, task("host-1", 1), task("host-2", 2))
    assert (forgotten.lane[1], known.lane[1]) == (NEW, LONG)
    # That address is no suspect any more either.
    add(queue, task("host-1", 20_001), task("host-1", 20_002))
    assert taken(queue)[:1] == keys(forgotten)
    (short,) = add(queue, task("host-1", 1))
    assert short.lane[1] == SHORT


def test_waiting_tasks_can_be_removed() -> None:
    first, second, third = task(FLOOD, 1), task(FLOOD, 1, LOOKUP), task(FLOOD, 2)
    queue = filled(first, second, third)
    assert queue.of_connection(1) == [first, second] and queue.of_connection(3) == []
    queue.remove(first)
    queue.remove(second)
    assert queue.of_connection(1) == [] and queue.waiting() == [third]
    assert taken(queue) == keys(third)


@given(st.data())
def test_a_lone_task_waits_for_one_of_each_other_address(data: st.DataObject) -> None:
    """Whatever comes, ends and is removed meanwhile; and every task is taken once."""
    queue = JobQueue()
    lone = task(POLITE, 1000)
    running: list[Task] = []
    waiting: list[Task] = []
    before: list[str] = []
    numbers = iter(range(1, 1000))
    is_added = False
    for _ in range(data.draw(st.integers(0, 60))):
        step = data.draw(st.sampled_from(["add", "add", "take", "end", "remove", "lone"]))
        if step == "add":
            address = data.draw(st.sampled_from([FLOOD, OTHER, "10.0.0.4"]))
            # Some connections come again, so that they have long jobs.
            connection_id = data.draw(st.integers(1, 4)) if data.draw(st.booleans()) else next(numbers) + 10
            waiting.append(task(address, connection_id, data.draw(st.sampled_from([CHECK, LOOKUP]))))
            queue.add(waiting[-1])
        elif step == "lone" and not is_added:
            is_added = True
            queue.add(lone)
        elif step == "end" and running:
            queue.ended(running.pop(data.draw(st.integers(0, len(running) - 1))), data.draw(st.sampled_from([1, 1000])))
        elif step == "remove" and waiting:
            queue.remove(waiting.pop(data.draw(st.integers(0, len(waiting) - 1))))
        elif step == "take" and lone not in running:
            found = queue.take()
            if found is None:
                assert not is_added
            elif found is lone:
                break
            else:
                waiting.remove(found)
                running.append(found)
                if is_added:
                    before.append(found.job.client_host)
    assert len(before) == len(set(before))
    for one in running:
        queue.ended(one, 1)
    left = [*waiting, *([lone] if lone in queue.waiting() else [])]
    assert sorted(taken(queue)) == sorted(keys(*left))


class Clients:
    """Two threads, and clients that send a job `pause_ms` after the end of the one before."""

    def __init__(self) -> None:
        self.queue = JobQueue()
        self.now_ms = 0
        # (when, number, what, task): what arrives or ends.
        self.events: list[tuple[int, int, str, Task]] = []
        self.costs: dict[int, tuple[int, int]] = {}
        self.arrived: dict[Task, int] = {}
        self.waits: dict[int, list[int]] = {}
        self.free = 2

    def begin(self, one: Task, cost_ms: int, pause_ms: int, at_ms: int = 0) -> None:
        self.costs[one.job.connection_id] = (cost_ms, pause_ms)
        self._at(at_ms, "arrives", one)

    def _at(self, when: int, what: str, one: Task) -> None:
        self.events.append((when, len(self.arrived), what, one))
        self.events.sort(key=lambda event: event[:2])

    def run(self, until_ms: int) -> None:
        while self.events and self.events[0][0] <= until_ms:
            self.now_ms, _, what, one = self.events.pop(0)
            cost_ms, pause_ms = self.costs[one.job.connection_id]
            if what == "arrives":
                self.arrived[one] = self.now_ms
                self.queue.add(one)
            else:
                self.free += 1
                self.queue.ended(one, cost_ms)
                self._at(self.now_ms + pause_ms, "arrives", Task(one.job))
            while self.free and (begun := self.queue.take()) is not None:
                self.free -= 1
                self.waits.setdefault(begun.job.connection_id, []).append(self.now_ms - self.arrived[begun])
                self._at(self.now_ms + self.costs[begun.job.connection_id][0], "ends", begun)


def test_a_flood_of_bombs_beside_a_polite_client() -> None:
    """From another address, the polite client waits for one job at most; once the flood is known, for none."""
    clients = Clients()
    for number in range(1, 61):
        clients.begin(task(FLOOD, number), BOMB_MS, 0)
    clients.begin(task(POLITE, 100), SHORT_MS, 50, at_ms=10)
    clients.run(600_000)
    waits = clients.waits[100]
    assert len(waits) > 8000 and waits[0] <= BOMB_MS and max(waits[1:]) == 0
    # None of the flood starves, while others of it are new or not.
    counts = [len(clients.waits[number]) for number in range(1, 61)]
    assert min(counts) > 1


def test_a_flood_from_the_same_address() -> None:
    """A new connection waits for those that are new as well and came before it. Then it has a thread for itself."""
    clients = Clients()
    for number in range(1, 61):
        clients.begin(task(FLOOD, number, LOOKUP if number % 2 else CHECK), BOMB_MS, 0)
    clients.begin(task(FLOOD, 100), SHORT_MS, 50, at_ms=10)
    clients.begin(task(FLOOD, 101), SHORT_MS, 50, at_ms=500_000)
    clients.run(600_000)
    for number in (100, 101):
        assert max(clients.waits[number][1:]) <= SHORT_MS
    # Whoever comes when the flood is known waits for a long job of each kind, and for the one that runs.
    assert clients.waits[101][0] <= 3 * BOMB_MS
