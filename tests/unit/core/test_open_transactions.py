"""The open transactions of a partition, against a model that looks at all of them."""

from __future__ import annotations

import random

import pytest

from kcoord.core.open_transactions import OpenTransactions


class Model:
    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        # (marker offset, first offset)
        self.ended: list[tuple[int, int]] = []

    def unstable(self, durable_end: int) -> int:
        undecided = [*self.open.values(), *(first for end, first in self.ended if end >= durable_end)]
        return min(undecided, default=-1)


@pytest.mark.parametrize("seed", range(20))
def test_the_first_unstable_offset(seed: int) -> None:
    rng = random.Random(seed)
    found, model = OpenTransactions(), Model()
    durable_end = 0
    for offset in range(400):
        producer_id = rng.randint(1, 6)
        kind = rng.random()
        if kind < 0.4 and producer_id not in model.open:
            found.begin(producer_id, offset)
            model.open[producer_id] = offset
        elif kind < 0.8:
            ended = found.end(producer_id, offset, False)
            first = model.open.pop(producer_id, -1)
            if first < 0:
                assert ended is None
            else:
                assert ended is not None
                model.ended.append((offset, first))
                stable = min(model.open.values(), default=offset + 1)
                assert (ended.producer_id, ended.first_offset, ended.last_offset) == (producer_id, first, offset)
                assert ended.stable_offset == stable
        else:
            durable_end = rng.randint(durable_end, offset)
        if rng.random() < 0.7:
            assert found.unstable_offset(durable_end) == model.unstable(durable_end)
        assert found.first_open == min(model.open.values(), default=-1)
        assert list(found.open.values()) == sorted(model.open.values())


def test_what_a_snapshot_has() -> None:
    found = OpenTransactions()
    found.begin(1, 5)
    found.end(1, 6, False)
    found.restore([(9, 4), (3, 8)])
    assert (found.open, found.first_open, found.unstable_offset(0)) == ({8: 3, 4: 9}, 3, 3)
    found.restore([])
    assert found.unstable_offset(0) == -1


def test_a_marker_in_a_log_that_was_opened_is_durable() -> None:
    found = OpenTransactions()
    found.begin(1, 5)
    assert found.end(1, 6, True) is not None
    assert found.unstable_offset(0) == -1
