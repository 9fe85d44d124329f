"""A short search finds nothing, and one in which something goes wrong finds that."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from kcoord.protocol.offset_commit import OffsetCommitResponse
from kcoord.server.probe import Probe
from tests.strangers import requests
from tests.strangers.__main__ import figures, table
from tests.strangers.newcomers import TOPIC, group_of, visit
from tests.strangers.search import Search


@pytest.mark.nightly
def test_polite_clients_do_not_suffer(tmp_path: Path) -> None:
    search = Search(tmp_path, seed=4, seconds=30)
    assert search.run() == []
    found = figures(search)
    assert found["newcomers"] > 30
    assert found["commits"] > 100
    assert sum(found["made"].values()) > 100
    assert "broken" not in table(found)


class Sabotaged(Search):
    """Somebody kills the server."""

    def _run_faults(self, ends_at: float) -> None:
        super()._run_faults(ends_at)
        self.server.process.process.kill()
        self.server.process.process.wait()
        self._look()


@pytest.mark.slow
def test_a_server_that_ends_is_noticed(tmp_path: Path) -> None:
    search = Sabotaged(tmp_path, seed=1, seconds=0.5, actions=["noise"])
    (violation,) = search.run()
    assert violation.startswith("the server ended by itself with code -9")


class Forgetting(Search):
    """What a newcomer committed is lost: somebody else has committed an older offset."""

    def _check_newcomers(self) -> None:
        with Probe(self.listen) as probe:
            api_key, version, message = requests.commit(group_of(2), TOPIC, 1)
            answer = probe.ask(api_key, version, message, OffsetCommitResponse)
            assert answer.topics[0].partitions[0].error_code == 0
        super()._check_newcomers()


@pytest.mark.nightly
def test_a_lost_commit_is_noticed(tmp_path: Path) -> None:
    search = Forgetting(tmp_path, seed=1, seconds=4, actions=["noise"], kill_every_s=float("inf"))
    assert search.run() == ["newcomer 2 committed 3, and {0: 1} is stored"]


class Frozen(Search):
    """Members hear nothing of the server, nor it of them, for longer than their sessions last."""

    def _run_faults(self, ends_at: float) -> None:
        members = [child for child in self.children if child.name.startswith("members aiokafka")]
        members[0].process.send_signal(signal.SIGSTOP)
        try:
            super()._run_faults(ends_at)
        finally:
            members[0].process.send_signal(signal.SIGCONT)


@pytest.mark.nightly
def test_a_lost_membership_is_noticed(tmp_path: Path) -> None:
    search = Frozen(tmp_path, seed=1, seconds=40, actions=["noise"], kill_every_s=float("inf"))
    (violation, *_) = search.run()
    assert "polite-aiokafka-classic: members" in violation
    assert "lost their membership" in violation


async def test_a_newcomer_to_a_port_without_a_server_is_refused() -> None:
    began = time.monotonic()
    one = await visit(1, 3, random.Random(1))
    assert (one.number, one.step, one.committed) == (3, "connect", False)
    assert one.error.startswith("ConnectionRefusedError")
    assert one.began >= began
