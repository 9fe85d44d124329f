"""A cluster that one server plays, under real clients: failovers, moved leaders and coordinators, and answers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kcoord.client import Admin
from kcoord.client import Consumer as OwnConsumer
from kcoord.client import Producer as OwnProducer
from kcoord.testing.fixture import KcoordServer

WAIT_S = 60.0
PARTITIONS = 6


@pytest.fixture(scope="module")
def shared() -> Iterator[KcoordServer]:
    with KcoordServer(brokers=3) as server:
        yield server


@pytest.fixture
def cluster(shared: KcoordServer) -> KcoordServer:
    shared.reset()
    admin = AdminClient({"bootstrap.servers": shared.bootstrap})
    admin.create_topics([NewTopic("orders", PARTITIONS, 3)])["orders"].result(WAIT_S)
    return shared


def test_what_clients_see_of_the_cluster(cluster: KcoordServer) -> None:
    metadata = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=WAIT_S)
    assert sorted(metadata.brokers) == [1, 2, 3]
    assert len({broker.port for broker in metadata.brokers.values()}) == 3
    partitions = metadata.topics["orders"].partitions
    assert {one.leader for one in partitions.values()} == {1, 2, 3}
    assert all(sorted(one.replicas) == sorted(one.isrs) == [1, 2, 3] for one in partitions.values())
    assert {number: one.leader for number, one in partitions.items()} == {
        number: cluster.leader("orders", number) for number in range(PARTITIONS)
    }


async def test_replication_factors(cluster: KcoordServer) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("two", 1, 2)])["two"].result(WAIT_S)
    with pytest.raises(Exception, match="[Rr]eplication"):
        admin.create_topics([NewTopic("four", 1, 4)])["four"].result(WAIT_S)
    admin.create_topics([NewTopic("one", 1, 1)])["one"].result(WAIT_S)
    assert len(admin.list_topics(timeout=WAIT_S).topics["two"].partitions[0].replicas) == 2
    leader = cluster.leader("one", 0)
    cluster.stop_broker(leader)
    assert cluster.leader("one", 0) == -1
    assert cluster.leader("two", 0) != leader
    with pytest.raises(ValueError, match="has no replica of one-0"):
        cluster.move_leader("one", 0, next(each for each in cluster.brokers() if each != leader))


class Work:
    """A librdkafka producer and a consumer in a group, each on a thread of its own."""

    def __init__(self, cluster: KcoordServer, protocol: str) -> None:
        self.written = 0
        self.failed: list[KafkaError] = []
        self.values: list[bytes] = []
        self._stop = threading.Event()
        # `metadata.recovery.strategy`: see librdkafka's issue 5511.
        common: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap, "metadata.recovery.strategy": "none"}
        self._producer = Producer({**common, "enable.idempotence": True})
        self._consumer = Consumer(
            {**common, "group.id": "billing", "auto.offset.reset": "earliest", "group.protocol": protocol}
        )
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._produce, self._consume)]
        for thread in self._threads:
            thread.start()

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.written += 1
        else:
            self.failed.append(error)

    def _produce(self) -> None:
        number = 0
        while not self._stop.is_set():
            value = str(number).encode()
            self._producer.produce("orders", value, partition=number % PARTITIONS, on_delivery=self._delivered)
            self._producer.poll(0.01)
            number += 1
        assert self._producer.flush(WAIT_S) == 0

    def _consume(self) -> None:
        self._consumer.subscribe(["orders"])
        end = time.monotonic() + 2 * WAIT_S
        # The producer may be writing after the stop.
        while self._threads[0].is_alive() or (len(set(self.values)) < self.written and time.monotonic() < end):
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.values.append(message.value() or b"")
        self._consumer.close()

    def wait_more(self, count: int = 50) -> None:
        """Wait until so many more records were written and read."""
        wanted = (self.written + count, len(self.values) + count)
        end = time.monotonic() + WAIT_S
        while (self.written, len(self.values)) < wanted or len(self.values) < wanted[1]:
            assert time.monotonic() < end, f"{self.written} written, {len(self.values)} read, {wanted} wanted"
            time.sleep(0.02)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(3 * WAIT_S)
            assert not thread.is_alive()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_failover(cluster: KcoordServer, protocol: str) -> None:
    """The coordinator of the group stops, which leads partitions as well; later it is back, and all of them move."""
    work = Work(cluster, protocol)
    work.wait_more()
    stopped = cluster.coordinator("billing")
    cluster.stop_broker(stopped)
    assert stopped not in cluster.brokers()
    assert cluster.coordinator("billing") != stopped
    work.wait_more()
    cluster.start_broker(stopped)
    for partition in range(PARTITIONS):
        cluster.move_leader("orders", partition, stopped)
    cluster.move_coordinator("billing", stopped)
    work.wait_more()
    work.stop()
    assert work.failed == []
    assert sorted(set(work.values), key=int) == [str(number).encode() for number in range(work.written)]
    errors = {error for one in cluster.requests() for error in one.errors}
    assert "NOT_COORDINATOR" in errors
    # A Fetch with the old leader's epoch is fenced, as by a broker, before anybody looks who the leader is.
    assert errors & {"NOT_LEADER_OR_FOLLOWER", "FENCED_LEADER_EPOCH"}


@pytest.fixture
async def producer(cluster: KcoordServer) -> AsyncIterator[AIOKafkaProducer]:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, enable_idempotence=True) as producer:
        yield producer


async def test_a_produce_to_the_old_leader_names_the_new_one(cluster: KcoordServer) -> None:
    """KIP-951, with the project's client, which uses the newest versions."""
    async with OwnProducer(bootstrap_servers=cluster.bootstrap) as producer:
        await producer.send("orders", b"1", partition=0)
        target = next(each for each in cluster.brokers() if each != cluster.leader("orders", 0))
        cluster.move_leader("orders", 0, target)
        await asyncio.wait_for(producer.send("orders", b"2", partition=0), WAIT_S)
    refused, repeated = cluster.requests("Produce", topic="orders")[-2:]
    assert refused.errors == ["NOT_LEADER_OR_FOLLOWER"] and repeated.errors == []
    answer: Any = refused.answer
    hint = answer.responses[-1].partition_responses[0].current_leader
    assert (hint.leader_id, hint.leader_epoch) == (target, 1)
    assert [one.node_id for one in answer.node_endpoints] == [target]


async def test_aiokafka_follows_a_group_to_its_coordinator(cluster: KcoordServer, producer: AIOKafkaProducer) -> None:
    await producer.send_and_wait("orders", b"1", partition=1)
    async with AIOKafkaConsumer(
        "orders", bootstrap_servers=cluster.bootstrap, group_id="billing", auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:  # fmt: skip
        assert (await asyncio.wait_for(consumer.getone(), WAIT_S)).value == b"1"
        present = cluster.coordinator("billing")
        cluster.move_coordinator("billing", next(each for each in cluster.brokers() if each != present))
        await asyncio.wait_for(consumer.commit(), WAIT_S)
    assert cluster.committed("billing")["orders", 1] == 1
    assert "NOT_COORDINATOR" in {error for one in cluster.requests("OffsetCommit") for error in one.errors}


async def test_the_project_s_consumer_survives_all_of_it(cluster: KcoordServer, producer: AIOKafkaProducer) -> None:
    async with OwnConsumer(
        "orders", bootstrap_servers=cluster.bootstrap, group_id="billing", auto_offset_reset="earliest"
    ) as consumer:
        for node_id in (1, 2, 3):
            cluster.stop_broker(node_id)
            value = str(node_id).encode()
            await asyncio.wait_for(producer.send_and_wait("orders", value, partition=node_id), WAIT_S)
            assert (await asyncio.wait_for(consumer.getone(), WAIT_S)).value == value
            cluster.start_broker(node_id)


async def test_groups_are_listed_once(cluster: KcoordServer, producer: AIOKafkaProducer) -> None:
    """Admin clients ask every broker, and each lists its own groups."""
    names = [f"group-{number}" for number in range(9)]
    for name in names:
        async with AIOKafkaConsumer(
            "orders", bootstrap_servers=cluster.bootstrap, group_id=name, auto_offset_reset="earliest"
        ):
            pass
    assert len({cluster.coordinator(name) for name in names}) == 3
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert sorted(one.group_id for one in await admin.list_groups()) == names


def test_the_default_replication_factor_of_the_settings() -> None:
    with KcoordServer({"default.replication.factor": 2}, brokers=3) as cluster:
        cluster.create_topic("by-the-control")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("by-a-client", 1)])["by-a-client"].result(WAIT_S)
        topics = admin.list_topics(timeout=WAIT_S).topics
        assert [len(topics[name].partitions[0].replicas) for name in ("by-the-control", "by-a-client")] == [2, 2]
    with pytest.raises(ValueError, match=r"default.replication.factor is 4, there are 3 brokers"):
        KcoordServer({"default.replication.factor": 4}, brokers=3)


def test_mistakes(cluster: KcoordServer, kcoord: KcoordServer) -> None:
    with pytest.raises(LookupError, match="there is no broker 4; there are 1, 2, 3"):
        cluster.stop_broker(4)
    cluster.stop_broker(2)
    with pytest.raises(ValueError, match="broker 2 is stopped"):
        cluster.move_leader("orders", 0, 2)
    with pytest.raises(RuntimeError, match="create it with brokers=3"):
        kcoord.stop_broker(1)
    with pytest.raises(ValueError, match="0 brokers need as many listeners"):
        KcoordServer(brokers=0)


def test_a_broker_that_is_added() -> None:
    with KcoordServer(brokers=2) as cluster:
        cluster.create_topic("orders", PARTITIONS)
        cluster.produce("orders", "1", partition=0)
        spread = [cluster.leader("orders", number) for number in range(PARTITIONS)]
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap, "group.id": "billing", "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 200, "metadata.recovery.strategy": "none",
            }
        )  # fmt: skip
        assert cluster.add_broker() == 3
        assert cluster.brokers() == [1, 2, 3] and cluster.bootstrap.count(",") == 2
        assert [cluster.leader("orders", number) for number in range(PARTITIONS)] == spread
        for number in range(PARTITIONS):
            cluster.move_leader("orders", number, 3)
        cluster.move_coordinator("billing", 3)
        consumer.subscribe(["orders"])
        message = consumer.poll(WAIT_S)
        assert message is not None and message.value() == b"1"
        consumer.commit(message=message, asynchronous=False)
        metadata = consumer.list_topics("orders", WAIT_S)
        assert {one.leader for one in metadata.topics["orders"].partitions.values()} == {3}
        assert 3 in metadata.topics["orders"].partitions[0].replicas
        consumer.close()
        cluster.stop_broker(3)
        assert cluster.leader("orders", 0) in (1, 2)
        cluster.restart()
        assert cluster.brokers() == [1, 2, 3]
    with KcoordServer() as alone, pytest.raises(RuntimeError, match="brokers=3"):
        alone.add_broker()


async def test_racks(cluster: KcoordServer) -> None:
    cluster.set_rack(2, "cellar")
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        racks = {node.node_id: node.rack for node in (await admin.describe_cluster()).nodes}
    assert racks == {1: "rack-1", 2: "cellar", 3: "rack-3"}


def test_reset_starts_all_brokers(cluster: KcoordServer) -> None:
    cluster.stop_broker(2)
    cluster.set_rack(2, "cellar")
    cluster.reset()
    assert cluster.brokers() == [1, 2, 3]
    metadata = AdminClient({"bootstrap.servers": cluster.bootstrap})
    assert metadata.describe_cluster().result(WAIT_S).nodes[1].rack == "rack-2"
