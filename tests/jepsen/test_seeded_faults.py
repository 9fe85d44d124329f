"""The checker on histories of a simulated cluster: silent on good ones, and every seeded fault is found."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.jepsen import anomalies
from tests.jepsen.checker import check, describe, errors
from tests.jepsen.history import History
from tests.jepsen.simulation import FAULTS, Simulation

# What each fault of the server causes, in every history in which it struck.
ALWAYS = {
    "lose": {anomalies.LOST_WRITE, anomalies.POLL_SKIP, anomalies.INT_POLL_SKIP, anomalies.UNSEEN},
    "tear": {anomalies.LOST_WRITE, anomalies.UNSEEN},
    "append-twice": {anomalies.DUPLICATE},
    "show-aborted": {anomalies.ABORTED_READ},
    "show-open": {anomalies.PRECOMMITTED_READ},
    "skip": {anomalies.POLL_SKIP, anomalies.INT_POLL_SKIP},
    "rewind": {anomalies.NONMONOTONIC_POLL},
    "reuse-offset": {anomalies.INCONSISTENT_OFFSETS, anomalies.LOST_WRITE},
    "swap": {anomalies.INT_NONMONOTONIC_SEND, anomalies.INT_NONMONOTONIC_POLL},
    "fill-gap": {anomalies.NONMONOTONIC_SEND, anomalies.REALTIME_ORDER},
    "invent": {anomalies.UNWRITTEN_READ},
}
# What a fault causes only if the group is rebalanced at that moment, if a client dies, or if there was a last write.
SOMETIMES = {
    "no-fences": {anomalies.CONSUMED_TWICE},
    "commit-aborted-offsets": {anomalies.CONSUMED_NEVER, anomalies.POLL_SKIP},
    "hold-back": {anomalies.UNSEEN},
    "show-open": {anomalies.READ_CYCLE, anomalies.ABORTED_READ},
}
SEEDS = range(6)
MANY_SEEDS = range(30)


def kinds(history: History) -> set[str]:
    return {one.kind for one in check(history)}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 25), st.integers(1, 4), st.booleans())
def test_good_histories_pass(seed: int, rounds: int, keys: int, has_times: bool) -> None:
    found = errors(check(Simulation(seed, rounds=rounds, keys=keys, has_times=has_times).run()))
    assert found == [], f"seed {seed}:\n{describe(found)}"


def test_good_histories_have_everything_in_them() -> None:
    history = Simulation(1).run()
    seen = {(one.name, one.kind) for one in history}
    assert seen >= {("txn", "ok"), ("txn", "fail"), ("txn", "info"), ("send", "info"), ("poll", "ok")}
    assert any(one.rebalanced for one in history)
    assert kinds(history) == anomalies.ALLOWED


@pytest.mark.parametrize("fault", ALWAYS)
def test_a_fault_is_found_wherever_it_struck(fault: str) -> None:
    struck = 0
    for seed in SEEDS:
        simulation = Simulation(seed, fault)
        found = kinds(simulation.run())
        if simulation.cluster.struck:
            struck += 1
            assert found >= ALWAYS[fault], f"seed {seed}: {found}"
    assert struck >= len(SEEDS) // 2


@pytest.mark.parametrize("fault", SOMETIMES)
def test_a_fault_is_found_where_it_shows(fault: str) -> None:
    found: set[str] = set()
    for seed in MANY_SEEDS:
        found |= kinds(Simulation(seed, fault).run())
        if found >= SOMETIMES[fault]:
            return
    raise AssertionError(f"{SOMETIMES[fault] - found} not found")


def test_every_fault_and_every_kind_of_anomaly_is_tried() -> None:
    assert ALWAYS.keys() | SOMETIMES.keys() == set(FAULTS)
    tried = set().union(*ALWAYS.values(), *SOMETIMES.values())
    assert tried | anomalies.ALLOWED == set(anomalies.MEANINGS)
