"""The search for differences itself: it finds one, shrinks it, and every sequence can be played in part."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.differential import known
from tests.differential.__main__ import KINDS, SETTINGS, USUAL, Search, servers
from tests.differential.finding import PATIENCE, Pair, confirmed, finding, shrink, shrunk, told
from tests.differential.sequence import Kind, Step
from tests.harness.compare import Difference
from tests.harness.kcoord_server import KcoordServer

NIGHTLY_S = 600
SAMPLES = 1


@pytest.fixture(scope="module")
def ours() -> Iterator[KcoordServer]:
    with KcoordServer(SETTINGS) as running:
        yield running


@pytest.mark.parametrize("name", KINDS)
def test_a_seed_makes_the_same_steps_again(name: str) -> None:
    steps = [KINDS[name].sequence(random.Random("seed")) for _ in range(2)]
    assert steps[0] == steps[1]
    assert len({str(KINDS[name].sequence(random.Random(number))) for number in range(20)}) == 20


@pytest.mark.slow
@pytest.mark.parametrize("name", USUAL)
def test_two_servers_of_ours_answer_alike(name: str, ours: KcoordServer) -> None:
    """Nothing that a server makes up is compared, and a sequence can be played in part."""
    with KcoordServer(SETTINGS) as other:
        pair = Pair(ours.port, other.port)
        for number in range(SAMPLES):
            steps = KINDS[name].sequence(random.Random(number))
            for part in (steps, steps[1::2]):
                found = finding(KINDS[name], part, pair.play(KINDS[name], part))
                # On a busy machine, one of them may have been later than a sequence waits.
                again = None if found is None else confirmed(pair, KINDS[name], found)
                assert again is None, told(again)


@pytest.mark.slow
def test_a_difference_is_found_and_shrunk(ours: KcoordServer) -> None:
    """Against a server with another setting: transactions of more than 65 s are refused there."""
    with KcoordServer({**SETTINGS, "transaction.max.timeout.ms": "65000"}) as other:
        pair = Pair(ours.port, other.port)
        kind = KINDS["transactions"]
        steps = [Step("look", {"isolation": 0}), *kind.sequence(random.Random(1)), Step("look", {"isolation": 1})]
        # On a busy machine, another difference would be that one of them is late.
        found = finding(kind, steps, pair.play(kind, steps, PATIENCE[-1]))
        assert found is not None
        small = shrink(pair, kind, found, 20)
    assert [step.action for step in small.steps] == ["init"]
    assert small.difference.expected == 0
    assert small.difference.actual == 50
    assert "the broker says 0, kcoord says 50" in told(small)


def test_shrinking_keeps_what_is_needed() -> None:
    steps = [Step("look", {"number": number}) for number in range(40)]

    def differs(part: list[Step]) -> bool:
        numbers = {step.args["number"] for step in part}
        return {3, 17, 31} <= numbers

    small = shrunk(steps, differs, time.monotonic() + 10)
    assert [step.args["number"] for step in small] == [3, 17, 31]


def test_known_differences_are_narrow() -> None:
    """An entry covers its own difference, and not the same field with other values."""
    for one in known.KNOWN:
        assert one.where
        assert one.reason
        assert (one.api, one.path) != (".*", ".*")
    difference = Difference("", 0, "", "InitProducerId", 5, "response.errorCode", 51, 90)
    assert known.known("transactions", difference) is not None
    assert known.known("transactions", replace(difference, actual=0)) is None
    path = "response.responses[0].partitionResponses[0].errorCode"
    produced = Difference("", 0, "", "Produce", 12, path, 0, 45)
    assert known.known("transactions", produced) is not None
    assert known.known("transactions", replace(produced, version=11)) is None
    assert known.known("transactions", replace(produced, actual=47)) is None


@pytest.mark.nightly
@pytest.mark.parametrize("name", USUAL)
def test_a_broker_answers_alike(name: str) -> None:
    kind: Kind = KINDS[name]
    with servers(0) as pair:
        search = Search(pair, int(time.time()))
        end, number = time.monotonic() + NIGHTLY_S / len(USUAL), 0
        while time.monotonic() < end:
            search.one(kind, number)
            number += 1
    assert not search.found, "\n\n".join(told(found) for found in search.found.values())
