"""Histories of real clients: a short one with kills that has to be good, and how dead clients are recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.jepsen import anomalies
from tests.jepsen.checker import check, describe, errors
from tests.jepsen.history import Kind, Name, Operation, Send, encode
from tests.jepsen.recorder import Collector
from tests.jepsen.workload import CLIENTS, ZOMBIES, Fault, Workload, random_faults

SENDS = (Send("topic-0", 1), Send("topic-0", 2))


def test_clients_under_kills_see_everything_once(tmp_path: Path) -> None:
    workload = Workload(tmp_path / "data", seed=1)
    history = workload.run([Fault(0.3, "server"), Fault(0.3, "owner-0")])
    found = errors(check(history))
    assert found == [], describe(found)
    done = {one.process.split(".")[0] for one in history if one.kind == "ok" and one.steps}
    assert done == {*CLIENTS, "last"}
    assert any(one.group for one in history)


@pytest.mark.nightly
def test_clients_under_random_faults_see_everything_once(tmp_path: Path) -> None:
    workload = Workload(tmp_path / "data", seed=2, zombies=ZOMBIES)
    found = errors(check(workload.run(random_faults(2, 60))))
    assert found == [], describe(found)


@pytest.mark.nightly
def test_readers_of_everything_are_noticed(tmp_path: Path) -> None:
    workload = Workload(tmp_path / "data", seed=3, isolation="read_uncommitted")
    kinds = {one.kind for one in check(workload.run(random_faults(3, 5)))}
    assert kinds >= {anomalies.ABORTED_READ, anomalies.PRECOMMITTED_READ}


def line(word: str, kind: Kind, name: Name = "txn") -> str:
    return f"{word} {encode(Operation(0, 'p.0', kind, name, SENDS))}\n"


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ([line("invoke", "invoke")], "fail"),
        ([line("invoke", "invoke"), line("commit", "ok")], "info"),
        # A line that was cut off does not count.
        ([line("invoke", "invoke"), line("commit", "ok")[:-1]], "fail"),
        ([line("invoke", "invoke"), line("commit", "ok"), line("done", "ok")], "ok"),
        ([line("invoke", "invoke", "send")], "info"),
    ],
)
def test_what_a_dead_client_had_begun(lines: list[str], kind: Kind) -> None:
    collector = Collector()
    for one in lines:
        collector.take(one)
    collector.end("p.0")
    invoked, done = collector.history()
    assert (invoked.kind, done.kind, done.steps) == ("invoke", kind, SENDS)


def test_a_dead_client_that_had_begun_nothing() -> None:
    collector = Collector()
    collector.take("invoke {\n"[:-1])
    collector.end("p.0")
    assert collector.history() == []


def test_the_order_is_that_of_time() -> None:
    collector = Collector()
    first = Operation(0, "p.0", "invoke", "txn", time_ns=5)
    for one in (first, replace(first, process="q.0", time_ns=3)):
        collector.take(f"invoke {encode(one)}\n")
    assert [(one.index, one.process) for one in collector.history()] == [(0, "q.0"), (1, "p.0")]
