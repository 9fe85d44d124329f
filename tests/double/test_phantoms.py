"""Phantom members beside real ones, in both protocols."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from kcoord.client.errors import FencedInstanceId
from kcoord.testing.fixture import KcoordServer, WaitTimeout

WAIT_S = 30.0
PROTOCOLS = ["classic", "consumer"]


@pytest.fixture(params=PROTOCOLS)
def protocol(kcoord: KcoordServer, request: pytest.FixtureRequest) -> str:
    kcoord.create_topic("orders", 2)
    assert isinstance(request.param, str)
    return request.param


class Real:
    """A librdkafka consumer that polls on a thread of its own."""

    def __init__(self, kcoord: KcoordServer, protocol: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": kcoord.bootstrap, "group.id": "billing", "client.id": "real",
                "group.protocol": protocol, "enable.auto.commit": False,
                **({"heartbeat.interval.ms": 100} if protocol == "classic" else {}),
            }
        )  # fmt: skip
        self._changed = threading.Condition()
        self._owned: set[int] = set()
        self._is_over = threading.Event()
        self._consumer.subscribe(["orders"], on_assign=self._take, on_revoke=self._give_up, on_lost=self._give_up)
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _take(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        with self._changed:
            self._owned.update(one.partition for one in partitions)
            self._changed.notify_all()

    def _give_up(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        with self._changed:
            self._owned.difference_update(one.partition for one in partitions)
            self._changed.notify_all()

    def _poll(self) -> None:
        while not self._is_over.is_set():
            self._consumer.poll(0.05)

    def owned(self) -> set[int]:
        with self._changed:
            return set(self._owned)

    def wait_owned(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._owned) == count, WAIT_S), self._owned

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(WAIT_S)
        self._consumer.close()


@pytest.fixture
def member(kcoord: KcoordServer, protocol: str) -> Iterator[Real]:
    """It owns both partitions."""
    member = Real(kcoord, protocol)
    member.wait_owned(2)
    kcoord.wait_stable("billing", members=1)
    yield member
    member.close()


def test_a_phantom_takes_partitions_and_gives_them_back(kcoord: KcoordServer, member: Real, protocol: str) -> None:
    phantom = kcoord.phantom("billing", ["orders"], protocol=protocol)
    assert len(phantom.wait_assigned(1, WAIT_S)) == 1
    member.wait_owned(1)
    kcoord.wait_stable("billing", members=2)
    assert phantom.member_id and phantom.epoch > 0
    assert {one.client_id for one in kcoord.requests(group="billing")} == {"real", phantom.client_id}
    phantom.leave()
    assert phantom.is_over and phantom.failure is None and phantom.assignment() == []
    member.wait_owned(2)
    kcoord.wait_stable("billing", members=1)


def test_a_silent_member_loses_its_partitions_and_comes_back(kcoord: KcoordServer, member: Real, protocol: str) -> None:
    phantom = kcoord.phantom("billing", ["orders"], protocol=protocol)
    phantom.wait_assigned(1, WAIT_S)
    member.wait_owned(1)
    phantom.go_silent()
    sent = len(kcoord.requests(client_id=phantom.client_id))
    kcoord.expire_member("billing", client_id=phantom.client_id)
    member.wait_owned(2)
    assert len(kcoord.requests(client_id=phantom.client_id)) == sent
    assert len(phantom.assignment()) == 1  # it does not know
    phantom.resume()
    kcoord.wait_members("billing", 2)
    member.wait_owned(1)
    phantom.wait_assigned(1, WAIT_S)


def test_a_busy_member_keeps_its_partitions(kcoord: KcoordServer, protocol: str) -> None:
    """It heartbeats, and does not join or revoke: a new member has to wait for it."""
    phantom = kcoord.phantom("billing", ["orders"], protocol=protocol)
    phantom.wait_assigned(2, WAIT_S)
    phantom.stop_polling()
    newcomer = Real(kcoord, protocol)
    try:
        kcoord.wait_members("billing", 2)
        beats = "Heartbeat" if protocol == "classic" else "ConsumerGroupHeartbeat"
        kcoord.wait_request(beats, client_id=phantom.client_id, count=len(kcoord.requests(beats)) + 2, timeout=WAIT_S)
        assert newcomer.owned() == set()
        assert kcoord.state("billing") in ("PreparingRebalance", "Reconciling")
        phantom.resume()
        newcomer.wait_owned(1)
    finally:
        newcomer.close()


def test_a_killed_member_stays_until_its_session_ends(kcoord: KcoordServer, member: Real, protocol: str) -> None:
    phantom = kcoord.phantom("billing", ["orders"], protocol=protocol)
    phantom.wait_assigned(1, WAIT_S)
    phantom.kill()
    assert phantom.is_over
    kcoord.wait_members("billing", 2)
    kcoord.expire_member("billing", client_id=phantom.client_id)
    member.wait_owned(2)


def test_a_member_that_never_syncs_blocks_the_group(kcoord: KcoordServer) -> None:
    kcoord.create_topic("orders", 2)
    phantom = kcoord.phantom("billing", ["orders"], never_sync=True)
    kcoord.wait_request("SyncGroup", client_id=phantom.client_id, answered=False)
    assert kcoord.state("billing") == "CompletingRebalance"
    newcomer = Real(kcoord, "classic")
    try:
        kcoord.wait_members("billing", 2)
        assert kcoord.state("billing") == "PreparingRebalance"
        assert newcomer.owned() == set() and phantom.assignment() == []
        phantom.leave()
        newcomer.wait_owned(2)
        assert kcoord.faults() == []
    finally:
        newcomer.close()


def test_two_members_with_one_instance_id(kcoord: KcoordServer) -> None:
    kcoord.create_topic("orders", 2)
    first = kcoord.phantom("billing", ["orders"], instance_id="one")
    first.wait_assigned(2, WAIT_S)
    second = kcoord.phantom("billing", ["orders"], instance_id="one")
    second.wait_assigned(2, WAIT_S)
    assert isinstance(first.wait_over(WAIT_S), FencedInstanceId)
    with pytest.raises(FencedInstanceId):
        first.wait_assigned(1)


def test_reset_ends_phantoms(kcoord: KcoordServer) -> None:
    kcoord.create_topic("orders", 2)
    phantoms = [kcoord.phantom("billing", ["orders"]) for _ in range(3)]
    phantoms[0].go_silent()
    kcoord.reset()
    assert all(phantom.is_over for phantom in phantoms)
    assert kcoord.topics() == {}
    assert kcoord.state("billing") == "Dead"


def test_mistakes_are_reported(kcoord: KcoordServer) -> None:
    with pytest.raises(ValueError, match="protocol is one of"):
        kcoord.phantom("billing", ["orders"], protocol="eager")
    with pytest.raises(ValueError, match="never_sync needs"):
        kcoord.phantom("billing", ["orders"], protocol="consumer", never_sync=True)
    with pytest.raises(ValueError, match="'best' is not one of"):
        kcoord.phantom("billing", ["orders"], assignor="best")
    with kcoord.phantom("billing", ["orders"]) as phantom, pytest.raises(WaitTimeout, match="to own 1 partitions"):
        phantom.wait_assigned(1, timeout=0.05)
