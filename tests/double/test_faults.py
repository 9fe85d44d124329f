"""Rules of the test double, through real clients: what a rule does to them, and what the server has done."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, KafkaConnectionError, RequestTimedOutError
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaError, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from kcoord.testing.fixture import KcoordServer, WaitTimeout

WAIT_S = 30.0


@pytest.fixture
async def producer(kcoord: KcoordServer) -> AsyncIterator[AIOKafkaProducer]:
    async with AIOKafkaProducer(bootstrap_servers=kcoord.bootstrap, request_timeout_ms=2000) as producer:
        yield producer


@pytest.fixture
async def member(kcoord: KcoordServer, producer: AIOKafkaProducer) -> AsyncIterator[AIOKafkaConsumer]:
    """A member of the group billing that has its partition and a record."""
    await producer.send_and_wait("orders", b"1", partition=0)
    async with AIOKafkaConsumer(
        "orders", bootstrap_servers=kcoord.bootstrap, group_id="billing", auto_offset_reset="earliest",
        enable_auto_commit=False, request_timeout_ms=2000, client_id="member",
    ) as consumer:  # fmt: skip
        assert (await asyncio.wait_for(consumer.getone(), WAIT_S)).value == b"1"
        yield consumer


@pytest.mark.parametrize(
    "error",
    ["NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"],
)
async def test_a_client_repeats_a_commit_that_was_refused(
    kcoord: KcoordServer, member: AIOKafkaConsumer, error: str
) -> None:
    fault = kcoord.fail("OffsetCommit", error=error, times=2, group="billing")
    await asyncio.wait_for(member.commit(), WAIT_S)
    assert fault.hits == 2
    assert kcoord.committed("billing") == {("orders", 0): 1}
    commits = kcoord.requests("OffsetCommit", group="billing")
    assert [one.errors for one in commits] == [[error], [error], []]
    assert [one.is_handled for one in commits] == [False, False, True]


async def test_an_ambiguous_commit_was_stored(kcoord: KcoordServer, member: AIOKafkaConsumer) -> None:
    """The server has stored the offset, and the client never learned it: it repeats the commit on a new connection."""
    kcoord.drop_answer("OffsetCommit")
    await asyncio.wait_for(member.commit(), WAIT_S)
    first, second = kcoord.requests("OffsetCommit")
    assert first.is_handled and not first.is_sent
    assert first.errors == []
    assert second.is_sent and second.connection != first.connection


async def test_an_error_after_the_commit_was_stored(kcoord: KcoordServer, member: AIOKafkaConsumer) -> None:
    kcoord.fail("OffsetCommit", error="GROUP_AUTHORIZATION_FAILED", handled=True)
    with pytest.raises(GroupAuthorizationFailedError):
        await asyncio.wait_for(member.commit(), WAIT_S)
    assert kcoord.committed("billing") == {("orders", 0): 1}


@pytest.mark.parametrize("at", ["before", "after", "middle"])
async def test_a_connection_that_is_cut(kcoord: KcoordServer, producer: AIOKafkaProducer, at: str) -> None:
    """A producer without idempotence repeats what may have been stored: cut after the write, it is there twice."""
    await producer.send_and_wait("orders", b"0", partition=0)
    kcoord.cut("Produce", at=at)
    await asyncio.wait_for(producer.send_and_wait("orders", b"1", partition=0), WAIT_S)
    async with AIOKafkaConsumer(bootstrap_servers=kcoord.bootstrap) as reader:
        partition = TopicPartition("orders", 0)
        reader.assign([partition])
        assert (await reader.end_offsets([partition]))[partition] == (2 if at == "before" else 3)


async def test_the_same_cut_with_an_idempotent_producer_leaves_one_copy(kcoord: KcoordServer) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=kcoord.bootstrap, enable_idempotence=True, request_timeout_ms=2000
    ) as producer:
        await producer.send_and_wait("orders", b"0", partition=0)
        kcoord.cut("Produce", at="after")
        written = await asyncio.wait_for(producer.send_and_wait("orders", b"1", partition=0), WAIT_S)
        assert written.offset == 1
        assert (await producer.send_and_wait("orders", b"2", partition=0)).offset == 2


async def test_a_held_request_keeps_back_its_connection_only(kcoord: KcoordServer, member: AIOKafkaConsumer) -> None:
    hold = kcoord.hold("OffsetCommit")
    commit = asyncio.create_task(member.commit())
    await asyncio.to_thread(hold.wait)
    assert kcoord.committed("billing") == {}
    assert not commit.done()
    hold.release()
    await asyncio.wait_for(commit, WAIT_S)
    assert kcoord.committed("billing") == {("orders", 0): 1}


async def test_a_delay(kcoord: KcoordServer, producer: AIOKafkaProducer) -> None:
    await producer.send_and_wait("orders", b"0")
    with kcoord.delay("Produce", seconds=0.3):
        began = time.monotonic()
        await producer.send_and_wait("orders", b"1")
        assert time.monotonic() - began >= 0.3
    latency_ms = kcoord.requests("Produce")[-1].latency_ms
    assert latency_ms is not None and latency_ms >= 300


async def test_a_lost_request_is_not_handled(kcoord: KcoordServer, producer: AIOKafkaProducer) -> None:
    await producer.send_and_wait("orders", b"0", partition=0)
    kcoord.drop("Produce")
    with pytest.raises(RequestTimedOutError):
        await asyncio.wait_for(producer.send_and_wait("orders", b"1", partition=0), WAIT_S)
    written = await asyncio.wait_for(producer.send_and_wait("orders", b"2", partition=0), WAIT_S)
    assert written.offset == 1
    assert [one.is_handled for one in kcoord.requests("Produce")] == [True, False, True]


def test_librdkafka_obeys_the_throttle_time(kcoord: KcoordServer) -> None:
    kcoord.throttle("Produce", ms=123)
    throttled: list[int] = []
    producer = Producer(
        {
            "bootstrap.servers": kcoord.bootstrap,
            "throttle_cb": lambda event: throttled.append(int(event.throttle_time * 1000)),
        }
    )
    producer.produce("orders", b"1")
    assert producer.flush(WAIT_S) == 0
    deadline = time.monotonic() + WAIT_S
    while not throttled and time.monotonic() < deadline:
        producer.poll(0.1)
    assert throttled[:1] == [123]


def test_librdkafka_gives_up_where_an_error_is_final(kcoord: KcoordServer) -> None:
    consumer = ConfluentConsumer({"bootstrap.servers": kcoord.bootstrap, "group.id": "billing"})
    with kcoord.fail("FindCoordinator", error="GROUP_AUTHORIZATION_FAILED", times=None, group="billing"):
        consumer.subscribe(["orders"])
        deadline = time.monotonic() + WAIT_S
        message = None
        while message is None and time.monotonic() < deadline:
            message = consumer.poll(1)
    assert message is not None
    error = message.error()
    assert error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    consumer.close()


async def test_refused_connections(kcoord: KcoordServer) -> None:
    with kcoord.refuse_connections(), pytest.raises(KafkaConnectionError):
        await AIOKafkaProducer(bootstrap_servers=kcoord.bootstrap).start()
    async with AIOKafkaProducer(bootstrap_servers=kcoord.bootstrap) as producer:
        await producer.send_and_wait("orders", b"1")


def test_rules_by_client_and_topic(kcoord: KcoordServer) -> None:
    """A rule leaves other clients and other topics alone."""
    fault = kcoord.fail("Produce", error="TOPIC_AUTHORIZATION_FAILED", times=None, topic="secret", client_id="one")
    results: dict[str, KafkaError | None] = {}
    for client in ("one", "two"):
        producer = Producer({"bootstrap.servers": kcoord.bootstrap, "client.id": client})
        for topic in ("secret", "orders"):

            def delivered(error: KafkaError | None, _: object, key: str = f"{client}/{topic}") -> None:
                results[key] = error

            producer.produce(topic, b"1", on_delivery=delivered)
            producer.flush(WAIT_S)
    refused = results.pop("one/secret")
    assert isinstance(refused, KafkaError) and refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert results == {"one/orders": None, "two/secret": None, "two/orders": None}
    assert fault.hits == 1


def test_the_same_seed_makes_the_same_choices(kcoord: KcoordServer) -> None:
    chosen = []
    for _ in range(2):
        kcoord.reset()
        kcoord.fail("Metadata", error="LEADER_NOT_AVAILABLE", times=None, probability=0.5, seed=7, client_id="raw")
        for _ in range(20):
            with socket.create_connection((kcoord.host, kcoord.port), timeout=WAIT_S) as raw:
                raw.sendall(bytes.fromhex("000000110003000100000001000372617700000000"))
                assert len(raw.recv(4)) == 4
        chosen.append([one.rule is not None for one in kcoord.requests("Metadata")])
    assert chosen[0] == chosen[1]
    assert 0 < sum(chosen[0]) < 20


async def test_skip(kcoord: KcoordServer, producer: AIOKafkaProducer) -> None:
    fault = kcoord.fail("Produce", error="NOT_LEADER_OR_FOLLOWER", skip=2)
    for value in (b"1", b"2", b"3"):
        await asyncio.wait_for(producer.send_and_wait("orders", value, partition=0), WAIT_S)
    assert fault.hits == 1
    assert [one.errors for one in kcoord.requests("Produce")] == [[], [], ["NOT_LEADER_OR_FOLLOWER"], []]


async def test_a_client_commits_before_it_leaves(kcoord: KcoordServer, producer: AIOKafkaProducer) -> None:
    """What tests want to know about a client: the order of its requests."""
    await producer.send_and_wait("orders", b"1")
    consumer = AIOKafkaConsumer(
        "orders", bootstrap_servers=kcoord.bootstrap, group_id="billing", auto_offset_reset="earliest"
    )
    await consumer.start()
    await asyncio.wait_for(consumer.getone(), WAIT_S)
    await consumer.stop()
    left = await asyncio.to_thread(kcoord.wait_request, "LeaveGroup", group="billing")
    order = [one.api for one in kcoord.requests(group="billing") if one.api in ("OffsetCommit", "LeaveGroup")]
    assert order == ["OffsetCommit", "LeaveGroup"]
    assert left.errors == []
    assert left.body is not None and left.answer is not None


def test_a_failed_wait_shows_what_was_seen(kcoord: KcoordServer) -> None:
    kcoord.fail("Heartbeat", error="REBALANCE_IN_PROGRESS")
    Producer({"bootstrap.servers": kcoord.bootstrap}).list_topics(timeout=WAIT_S)
    with pytest.raises(WaitTimeout) as failure:
        kcoord.wait_request("OffsetCommit", timeout=0.05)
    text = str(failure.value)
    assert "waited 0.05 s for request 1 of OffsetCommit" in text
    assert "fail REBALANCE_IN_PROGRESS: Heartbeat (0 of 1 hit)" in text
    assert "rdkafka Metadata v" in text


async def test_answers_of_one_s_own(kcoord: KcoordServer) -> None:
    kcoord.produce("orders", ["1", "2"])
    kcoord.commit("billing", {("orders", 0): 2})

    def pretend(request: Any, answer: Any) -> None:
        for topic in answer.topics:
            assert topic.name == request.topics[0].name
            topic.partitions[0].offset = 77

    kcoord.answer(
        "OffsetFetch", {"groups.topics.partitions.committed_offset": 1, "throttle_time_ms": 5}, group="billing"
    )
    changed = kcoord.answer("ListOffsets", pretend, topic="orders")
    orders = TopicPartition("orders", 0)
    async with AIOKafkaConsumer(bootstrap_servers=kcoord.bootstrap) as reader:
        assert await reader.end_offsets([orders]) == {orders: 77}
        assert await reader.end_offsets([orders]) == {orders: 2}
    assert changed.hits == 1
    consumer = ConfluentConsumer({"bootstrap.servers": kcoord.bootstrap, "group.id": "billing"})
    asked = [ConfluentPartition("orders", 0)]
    assert [consumer.committed(asked, WAIT_S)[0].offset for _ in range(2)] == [1, 2]
    consumer.close()


def test_a_change_that_fails(kcoord: KcoordServer) -> None:
    """The client gets the answer as it was, and the test gets the error."""
    client = Producer({"bootstrap.servers": kcoord.bootstrap})
    for change, error in (
        (lambda _, answer: answer.nothing, AttributeError),
        ({"brokers.rack.name": 1}, AttributeError),
        ({"controller_id": "one"}, Exception),
    ):
        fault = kcoord.answer("Metadata", change)
        assert client.list_topics(timeout=WAIT_S).brokers
        with pytest.raises(error):
            fault.wait()
        assert "; failed: " in str(fault)
    with pytest.raises(ValueError, match="answers of Metadata have no field 'controller'; they have throttle_time_ms"):
        kcoord.answer("Metadata", {"controller": 1})


def test_mistakes_are_told(kcoord: KcoordServer) -> None:
    with pytest.raises(ValueError, match="did you mean OffsetCommit"):
        kcoord.fail("offsetcommit", error="NOT_COORDINATOR")
    with pytest.raises(ValueError, match="there is no error 'NOT_A_COORDINATOR'"):
        kcoord.fail("OffsetCommit", error="NOT_A_COORDINATOR")
    with pytest.raises(ValueError, match="times is 1 or more"):
        kcoord.fail("OffsetCommit", error="NOT_COORDINATOR", times=0)
    with pytest.raises(ValueError, match="at is one of before, after, middle"):
        kcoord.cut("OffsetCommit", at="end")


def test_reset_leaves_nothing_of_a_test(kcoord: KcoordServer) -> None:
    consumer = ConfluentConsumer(
        {"bootstrap.servers": kcoord.bootstrap, "group.id": "billing", "socket.timeout.ms": 10000}
    )
    hold = kcoord.hold("FindCoordinator")
    consumer.subscribe(["orders"])
    consumer.poll(0.1)
    hold.wait()
    kcoord.reset()
    assert kcoord.faults() == []
    assert kcoord.requests("FindCoordinator", client_id="held") == []
    consumer.close()
