"""A killed process leaves the page cache, the next one shows what it finds there, and then the power goes.

What was shown to anybody must be there after that, and the marks of the second life must not claim what was lost.
"""

from __future__ import annotations

import random

import pytest

from tests.crash.promises import Promises, Recovered
from tests.crash.states import LATER
from tests.crash.workload import Reference, open_small
from tests.harness.faulty_storage import FaultyStorage
from tests.harness.log import checkpoint


class Killed(Exception):
    pass


def run_until(operation: int, seed: int, busy: bool) -> tuple[FaultyStorage, Promises]:
    """The workload, killed before that operation; the storage as the next process finds it."""
    storage = FaultyStorage()
    workload = Reference(storage, seed, busy)

    def kill(kind: str, path: str) -> None:
        if storage.operations + 1 >= operation:
            raise Killed

    storage.on_operation = kill
    try:
        workload.run()
    except Killed:
        storage.on_operation = None
    storage.unlock()
    return storage, Promises(workload.events, len(workload.events))


@pytest.mark.parametrize("busy", [False, True])
def test_what_a_start_found_in_the_page_cache_survives_a_power_cut(busy: bool) -> None:
    for operation in range(20, 1000, 23):
        storage, promises = run_until(operation, 3, busy)
        engine = open_small(storage, LATER, random.Random(1))
        shown = Recovered(engine, LATER)
        assert promises.broken_by(shown) == [], f"after the kill before operation {operation}"
        checkpoint(engine.journal, LATER.mono_ms)
        after = Recovered(open_small(storage.crash(), LATER, random.Random(1)), LATER)
        assert promises.broken_by(after) == [], f"after the cut behind operation {operation}"
        assert after.content() == shown.content(), f"after the cut behind operation {operation}"
