"""States of groups, coordinators and producers on demand, under real clients."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer

from kcoord.testing.fixture import KcoordServer

WAIT_S = 30.0


class Member:
    """A librdkafka consumer that polls on a thread of its own."""

    def __init__(self, kcoord: KcoordServer, **settings: object) -> None:
        self.consumer = Consumer(
            {"bootstrap.servers": kcoord.bootstrap, "group.id": "billing", "auto.offset.reset": "earliest", **settings}
        )
        self.assigned = 0
        self.lost = 0
        self._stop = threading.Event()
        self.consumer.subscribe(["orders"], on_assign=self._on_assign, on_lost=self._on_lost)
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _on_assign(self, *_: object) -> None:
        self.assigned += 1

    def _on_lost(self, *_: object) -> None:
        self.lost += 1

    def _poll(self) -> None:
        while not self._stop.is_set():
            self.consumer.poll(0.05)

    def wait_assigned(self, times: int) -> None:
        end = time.monotonic() + WAIT_S
        while self.assigned < times:
            assert time.monotonic() < end, f"assigned {self.assigned} times"
            time.sleep(0.01)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        self.consumer.close()


@pytest.fixture
def topic(kcoord: KcoordServer) -> None:
    producer = Producer({"bootstrap.servers": kcoord.bootstrap})
    producer.produce("orders", b"1")
    assert producer.flush(WAIT_S) == 0


@pytest.fixture(params=["classic", "consumer"])
def member(kcoord: KcoordServer, topic: None, request: pytest.FixtureRequest) -> Iterator[Member]:
    member = Member(kcoord, **{"group.protocol": request.param, "client.id": "first"})
    kcoord.wait_stable("billing", members=1)
    member.wait_assigned(1)
    yield member
    member.close()


def test_a_member_whose_session_ends_comes_back(kcoord: KcoordServer, member: Member) -> None:
    with kcoord.hold(group="billing"):  # it does not come back before the test has looked
        expired = kcoord.expire_member("billing", client_id="first")
        kcoord.wait_empty("billing")
    member.wait_assigned(2)
    kcoord.wait_stable("billing", members=1)
    errors = {error for one in kcoord.requests(group="billing") for error in one.errors}
    assert expired and "UNKNOWN_MEMBER_ID" in errors
    assert member.lost == 1


def test_a_member_that_is_removed_comes_back(kcoord: KcoordServer, member: Member) -> None:
    removed = kcoord.remove_member("billing")
    member.wait_assigned(2)
    kcoord.wait_stable("billing", members=1)
    assert removed
    assert kcoord.requests("LeaveGroup") == []  # the fixture's own request is not listed


def test_a_forced_rebalance(kcoord: KcoordServer, member: Member) -> None:
    kcoord.force_rebalance("billing")
    if kcoord.requests("JoinGroup"):
        member.wait_assigned(2)
    else:
        kcoord.wait_request("ConsumerGroupHeartbeat", count=len(kcoord.requests("ConsumerGroupHeartbeat")) + 2)
    kcoord.wait_stable("billing", members=1)


def test_who_is_meant_must_be_clear(kcoord: KcoordServer, member: Member) -> None:
    with pytest.raises(LookupError, match=r"0 members of the group 'billing' match, of: first \("):
        kcoord.expire_member("billing", client_id="second")
    with pytest.raises(LookupError, match="has no members"):
        kcoord.force_rebalance("shipping")


@pytest.fixture
async def aiokafka_member(kcoord: KcoordServer) -> AsyncIterator[AIOKafkaConsumer]:
    async with AIOKafkaProducer(bootstrap_servers=kcoord.bootstrap) as producer:
        await producer.send_and_wait("orders", b"1")
    async with AIOKafkaConsumer(
        "orders", bootstrap_servers=kcoord.bootstrap, group_id="billing", auto_offset_reset="earliest",
        enable_auto_commit=False, heartbeat_interval_ms=200,
    ) as consumer:  # fmt: skip
        await asyncio.wait_for(consumer.getone(), WAIT_S)
        yield consumer


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("coordinator_loading", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("coordinator_unavailable", "COORDINATOR_NOT_AVAILABLE"),
        ("coordinator_moved", "NOT_COORDINATOR"),
    ],
)
async def test_a_client_waits_for_its_coordinator(
    kcoord: KcoordServer, aiokafka_member: AIOKafkaConsumer, state: str, error: str
) -> None:
    with getattr(kcoord, state)("billing"):
        commit = asyncio.create_task(aiokafka_member.commit())
        refused = await asyncio.to_thread(kcoord.wait_request, "OffsetCommit", group="billing")
        assert refused.errors == [error]
        assert not commit.done()
    await asyncio.wait_for(commit, WAIT_S)
    assert kcoord.committed("billing") == {("orders", 0): 1}
    assert kcoord.faults() == []


async def test_heartbeats_are_good_while_the_coordinator_loads(
    kcoord: KcoordServer, aiokafka_member: AIOKafkaConsumer
) -> None:
    """As on a broker: clients do not expect COORDINATOR_LOAD_IN_PROGRESS there, and aiokafka would raise it."""
    with kcoord.coordinator_loading("billing"):
        count = len(kcoord.requests("Heartbeat", group="billing"))
        await asyncio.to_thread(kcoord.wait_request, "Heartbeat", count=count + 2, group="billing")
        assert all(one.errors == [] for one in kcoord.requests("Heartbeat", group="billing"))


def test_a_fenced_producer(kcoord: KcoordServer, topic: None) -> None:
    producer = Producer(
        {"bootstrap.servers": kcoord.bootstrap, "transactional.id": "one", "metadata.recovery.strategy": "none"}
    )
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("orders", b"2")
    producer.flush(WAIT_S)
    assert kcoord.fence_producer("one") > 0
    with pytest.raises(KafkaException) as failure:
        producer.commit_transaction(WAIT_S)
    assert failure.value.args[0].fatal()
