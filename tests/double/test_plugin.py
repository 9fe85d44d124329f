"""The marker, the fixtures with wider scopes, unittest and xdist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import IsolatedAsyncioTestCase, TestCase

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka.admin import AdminClient

from kcoord.testing.cases import KcoordTestCase
from kcoord.testing.fixture import KcoordServer

WAIT_S = 30.0
HERE = Path(__file__).parent

pytestmark = pytest.mark.kcoord(topics={"of_the_module": 2})


# --- the marker


def test_the_marker_of_the_module(kcoord: KcoordServer, kcoord_server: KcoordServer) -> None:
    assert kcoord is kcoord_server
    assert kcoord.topics() == {"of_the_module": 2}
    kcoord.create_topic("of_another_test")


@pytest.mark.kcoord(topics={"orders": {"partitions": 3, "records": ["1"]}}, seed="../../examples/seed.json")
@pytest.mark.kcoord(seed={"groups": {"billing": {"of_the_module": {0: 5}}}})
def test_markers_add_up(kcoord: KcoordServer) -> None:
    assert kcoord.topics() == {"of_the_module": 2, "orders": 3, "payments": 1}
    assert [record.text for record in kcoord.records("orders")] == ["1"]
    assert kcoord.committed("billing") == {("of_the_module", 0): 5}


@pytest.mark.kcoord(settings={"num.partitions": 4, "auto.create.topics.enable": True})
class TestSettings:
    @pytest.mark.kcoord(settings={"num.partitions": 5})
    def test_the_closest_marker_wins(self, kcoord: KcoordServer, kcoord_server: KcoordServer) -> None:
        """And a server with settings is the test's own."""
        assert kcoord is not kcoord_server
        kcoord.produce("orders", b"1")
        assert kcoord.topics() == {"of_the_module": 2, "orders": 5}
        assert kcoord_server.bootstrap != kcoord.bootstrap

    def test_the_marker_of_a_class(self, kcoord: KcoordServer) -> None:
        kcoord.produce("orders", b"1")
        assert kcoord.topics() == {"of_the_module": 2, "orders": 4}


@pytest.mark.kcoord(memory_disk=True)
def test_a_disk_in_memory(kcoord: KcoordServer) -> None:
    kcoord.kill(power_cut=True)
    kcoord.start()
    assert kcoord.topics() == {"of_the_module": 2}


@pytest.mark.kcoord(clock="virtual")
def test_a_clock_that_the_test_moves(kcoord: KcoordServer) -> None:
    kcoord.commit("billing", {("of_the_module", 0): 1})
    kcoord.advance(8 * 24 * 3600)
    assert kcoord.committed("billing") == {}


@pytest.mark.kcoord(brokers=3)
def test_several_brokers(kcoord: KcoordServer) -> None:
    """State is prepared whichever broker leads."""
    kcoord.stop_broker(kcoord.leader("of_the_module", 0))
    assert kcoord.produce("of_the_module", ["1", "2"]) == [(0, 0), (1, 0)]
    assert [record.text for record in kcoord.records("of_the_module")] == ["1", "2"]
    snapshot = kcoord.snapshot()
    kcoord.restart()
    kcoord.restore(snapshot)
    assert kcoord.topics() == {"of_the_module": 2} and len(kcoord.brokers()) == 3


# --- wider scopes


@pytest.mark.parametrize("number", range(2))
def test_a_module_s_server_keeps_its_state(kcoord_module: KcoordServer, kcoord: KcoordServer, number: int) -> None:
    """Whatever other tests do with theirs."""
    assert kcoord_module is not kcoord
    kcoord_module.produce("orders", str(number))
    kcoord.produce("orders", "other")
    assert [record.text for record in kcoord_module.records("orders")] == ["0", "1"][: number + 1]
    assert kcoord_module.topics() == {"of_the_module": 2, "orders": 1}


# --- unittest


class TestPrepared(KcoordTestCase):
    kcoord_settings = {"num.partitions": 3}
    kcoord_seed = {"topics": {"orders": {"records": ["1", "2", "3"]}}}

    def test_a_seed(self) -> None:
        assert self.kcoord.topics() == {"orders": 3}
        self.kcoord.delete_topic("orders")
        self.kcoord.kill()

    def test_each_test_has_it(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.kcoord.bootstrap})
        assert len(admin.list_topics("orders", WAIT_S).topics["orders"].partitions) == 3


class TestCoroutines(KcoordTestCase, IsolatedAsyncioTestCase):
    async def test_a_client_on_the_loop(self) -> None:
        self.kcoord.produce("orders", b"1")
        async with AIOKafkaConsumer(bootstrap_servers=self.kcoord.bootstrap) as consumer:
            consumer.assign([TopicPartition("orders", 0)])
            await consumer.seek_to_beginning()
            assert (await consumer.getone()).value == b"1"


class TestWithPytest(TestCase):
    kcoord: KcoordServer

    @pytest.fixture(autouse=True)
    def _take(self, kcoord: KcoordServer) -> None:
        self.kcoord = kcoord

    @pytest.mark.kcoord(topics={"orders": 3})
    def test_the_fixture(self) -> None:
        assert self.kcoord.topics() == {"of_the_module": 2, "orders": 3}


def test_unittest_s_own_runner(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(
        "from kcoord.testing.cases import KcoordTestCase\n\n"
        "class Orders(KcoordTestCase):\n"
        "    def test_it(self):\n"
        "        self.assertEqual(self.kcoord.produce('orders', b'1'), [(0, 0)])\n"
    )
    command = [sys.executable, "-m", "unittest", "-v", "test_suite"]
    environment = {**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{tmp_path}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0 and "Ran 1 test" in done.stderr, done.stderr


# --- suites of their own

SUITE = """
import pytest

@pytest.mark.kcoord(topics={"orders": 3})
@pytest.mark.parametrize("number", range(4))
def test_topics(kcoord, number):
    assert kcoord.topics() == {"orders": 3}
    kcoord.produce("orders", [b"1"] * 3)

@pytest.mark.kcoord(settings={"num.partitions": "3"})
def test_settings(kcoord):
    kcoord.produce("orders", b"1")
    assert kcoord.topics() == {"orders": 3}

def test_nothing(kcoord, kcoord_module):
    assert kcoord.topics() == kcoord_module.topics() == {}
"""

MISTAKES = """
import pytest

@pytest.mark.kcoord(topic={"orders": 3})
def test_name(kcoord): pass

@pytest.mark.kcoord({"orders": 3})
def test_position(kcoord): pass

@pytest.mark.kcoord(topics={"orders": "3"})
def test_topics(kcoord): pass

@pytest.mark.kcoord(seed="none.json")
def test_seed(kcoord): pass

@pytest.mark.kcoord(settings={"num.partition": "3"})
def test_settings(kcoord): pass

@pytest.mark.kcoord(clock="fast")
def test_clock(kcoord): pass

@pytest.mark.kcoord(topics={"no name": 3})
def test_refused(kcoord): pass
"""


def run_suite(folder: Path, suite: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_suite.py").write_text(suite)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--strict-markers", *arguments], cwd=folder, capture_output=True,
        text=True, timeout=110, env={**os.environ, "PYTHONSAFEPATH": "1"},
    )  # fmt: skip


def test_with_xdist(tmp_path: Path) -> None:
    done = run_suite(tmp_path, SUITE, "-n", "2")
    assert done.returncode == 0 and "6 passed" in done.stdout, done.stdout


def test_mistakes_are_errors_of_one_line(tmp_path: Path) -> None:
    done = run_suite(tmp_path, MISTAKES, "-n", "0")
    assert "7 errors" in done.stdout
    for problem in (
        "the marker kcoord has no argument 'topic'; there are topics, settings, seed, clock, brokers, memory_disk",
        "the marker kcoord takes topics, settings, seed, clock, brokers, memory_disk by name",
        "the marker kcoord: topics.orders: a topic has the fields partitions, configs and records",
        "none.json cannot be read: No such file or directory",
        "num.partition",
        "the marker kcoord: clock is real or virtual, not 'fast'",
        "the marker kcoord: topics.no name: topic 'no name': INVALID_TOPIC_EXCEPTION",
    ):
        assert problem in done.stdout
    assert "Traceback" not in done.stdout and "raise " not in done.stdout
