"""A few of the faults that `make io-faults` covers, and the engine's refusal after one."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from kcoord.log.errors import JournalFailed
from tests.crash.io_faults import Tally, list_cases, try_case
from tests.crash.states import BUSY, KINDS, TRANSACTIONS
from tests.crash.workload import Reference
from tests.harness.faulty_storage import Fault, FaultyStorage


@pytest.mark.parametrize("workload", KINDS)
def test_some_faults_of_a_workload(workload: str) -> None:
    cases = list_cases(1, workload)
    kinds = {kind for _number, kind, _name in cases}
    # The topics of transactions are not deleted.
    removed = set() if workload == TRANSACTIONS else {"rmdir"}
    assert kinds == {"open", "create", "write", "sync", "rename", "truncate", "unlink", "mkdir"} | removed
    tally = Tally()
    rng = random.Random(4)
    for wanted in sorted(kinds):
        number, kind, name = rng.choice([case for case in cases if case[1] == wanted])
        try_case(1, workload, number, kind, name, tally)
    assert tally.problems == []
    assert tally.ended > 0


def test_a_short_write_that_is_no_error_makes_no_difference() -> None:
    tally = Tally()
    writes = [number for number, kind, name in list_cases(1, BUSY) if kind == "write" and name == "EIO"]
    for number in random.Random(1).sample(writes, 5):
        try_case(1, BUSY, number, "write", "short write", tally)
    assert tally.problems == [] and tally.ended == 0


@pytest.mark.parametrize("kind", ["write", "sync", "mkdir", "unlink"])
def test_an_engine_that_failed_refuses_everything(kind: str) -> None:
    storage = FaultyStorage()
    workload = Reference(storage)
    workload.start()
    workload.create("a")
    workload.drain()
    storage.choose_fault = lambda done, path: Fault(errno.EIO) if done == kind else None
    with pytest.raises((OSError, JournalFailed)):
        workload.create("b")
        workload.produce(workload.clients[0], "a", 0)
        workload.drain()
        workload.delete("a")
        workload.drain()
    storage.choose_fault = None
    engine = workload.engine
    attempts: tuple[Callable[[], object], ...] = (
        lambda: workload.commit(workload.clients[0], "group-0"),
        lambda: engine.end_turn(workload.now()),
        lambda: engine.fire_timers(workload.now()),
    )
    for attempt in attempts:
        with pytest.raises(JournalFailed):
            attempt()
