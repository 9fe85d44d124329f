"""Controls that no other file of this folder uses through a real client; see test_controls_page.py."""

from __future__ import annotations

import asyncio
import time

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kcoord.client import Admin
from kcoord.testing.fixture import KcoordServer

WAIT_S = 30.0


def write(kcoord: KcoordServer, *values: bytes, partition: int = 0, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": kcoord.bootstrap, **settings})
    for value in values:
        producer.produce("orders", value, partition=partition)
    assert producer.flush(WAIT_S) == 0


def member(kcoord: KcoordServer) -> Consumer:
    consumer = Consumer(
        {"bootstrap.servers": kcoord.bootstrap, "group.id": "billing", "auto.offset.reset": "earliest",
         "enable.auto.commit": False}
    )  # fmt: skip
    consumer.subscribe(["orders"])
    return consumer


def read(consumer: Consumer) -> Message:
    """The next record, whatever errors come before it."""
    end = time.monotonic() + WAIT_S
    while True:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            return message
        assert time.monotonic() < end, "no record"


async def test_each_broker_has_a_rack() -> None:
    with KcoordServer(brokers=3) as cluster:
        async with Admin(cluster.bootstrap) as admin:
            described = await admin.describe_cluster()
        assert {node.node_id: node.rack for node in described.nodes} == {1: "rack-1", 2: "rack-2", 3: "rack-3"}


def test_settings() -> None:
    with KcoordServer(settings={"num.partitions": 5}) as server:
        write(server, b"1")
        topics = AdminClient({"bootstrap.servers": server.bootstrap}).list_topics(timeout=WAIT_S).topics
        assert len(topics["orders"].partitions) == 5


def test_rules_by_version_and_partition(kcoord: KcoordServer) -> None:
    kcoord.create_topic("orders", partitions=2)
    write(kcoord, b"1")
    version = kcoord.requests("Produce")[0].version
    other = kcoord.fail("Produce", error="NOT_LEADER_OR_FOLLOWER", version=version + 1)
    same = kcoord.fail("Produce", error="NOT_LEADER_OR_FOLLOWER", version=version, partition=1)
    write(kcoord, b"2", partition=0)
    assert (other.hits, same.hits) == (0, 0)
    write(kcoord, b"3", partition=1)
    assert (other.hits, same.hits) == (0, 1)
    assert [record.value for record in kcoord.records("orders")] == [b"1", b"2", b"3"]


def test_rules_by_connection(kcoord: KcoordServer) -> None:
    kcoord.create_topic("orders")
    first, second = (Producer({"bootstrap.servers": kcoord.bootstrap, "client.id": name}) for name in ("a", "b"))
    for producer in (first, second):
        producer.produce("orders", b"1")
        assert producer.flush(WAIT_S) == 0
    connection = kcoord.requests("Produce", client_id="a")[-1].connection
    fault = kcoord.fail("Produce", error="NOT_LEADER_OR_FOLLOWER", connection=connection)
    for producer in (second, first):
        assert fault.hits == 0
        producer.produce("orders", b"2")
        assert producer.flush(WAIT_S) == 0
    assert fault.hits == 1


def test_rules_by_transactional_id(kcoord: KcoordServer) -> None:
    fault = kcoord.fail("InitProducerId", error="TRANSACTIONAL_ID_AUTHORIZATION_FAILED", transactional_id="one")
    for name in ("two", "one"):
        producer = Producer({"bootstrap.servers": kcoord.bootstrap, "transactional.id": name})
        if name == "two":
            producer.init_transactions(WAIT_S)
            assert fault.hits == 0
        else:
            with pytest.raises(KafkaException, match="[Aa]uthorization"):
                producer.init_transactions(WAIT_S)
    assert fault.hits == 1


def test_a_rule_is_listed_and_ended(kcoord: KcoordServer) -> None:
    kcoord.create_topic("orders")
    fault = kcoord.fail("Produce", error="NOT_LEADER_OR_FOLLOWER", times=None)
    producer = Producer({"bootstrap.servers": kcoord.bootstrap, "retry.backoff.ms": 10})
    producer.produce("orders", b"1")
    producer.poll(0)
    fault.wait(hits=2)
    assert fault.hits >= 2 and kcoord.faults() == [str(fault)]
    assert kcoord.records("orders") == []
    fault.remove()
    assert producer.flush(WAIT_S) == 0
    with kcoord.fail("Produce", error="NOT_LEADER_OR_FOLLOWER", times=None) as fault:
        producer.produce("orders", b"2")
        fault.wait()
    assert producer.flush(WAIT_S) == 0
    kcoord.fail("Produce", error="NOT_LEADER_OR_FOLLOWER", times=None)
    kcoord.clear_faults()  # closes the connections that its rules have disturbed: none
    producer.produce("orders", b"3")
    assert producer.flush(WAIT_S) == 0
    assert kcoord.faults() == [] and len(kcoord.records("orders")) == 3


def test_connections_are_cut_and_clients_come_back(kcoord: KcoordServer) -> None:
    producer = Producer(
        {"bootstrap.servers": kcoord.bootstrap, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50}
    )
    for value in (b"1", b"2"):
        producer.produce("orders", value)
        assert producer.flush(WAIT_S) == 0
        assert kcoord.cut_connections() >= 1
    first, second = kcoord.requests("Produce")
    assert first.connection != second.connection


def test_a_wait_for_a_commit(kcoord: KcoordServer) -> None:
    kcoord.produce("orders", ["1", "2"])
    consumer = member(kcoord)
    consumer.commit(message=read(consumer))  # asynchronous
    kcoord.wait_committed("billing", "orders", 0, 1)
    assert kcoord.committed("billing") == {("orders", 0): 1}
    consumer.close()


def test_a_topic_is_deleted_under_a_client(kcoord: KcoordServer) -> None:
    kcoord.create_topic("orders")
    write(kcoord, b"1")
    kcoord.delete_topic("orders")
    client = AdminClient({"bootstrap.servers": kcoord.bootstrap})
    assert "orders" not in client.list_topics(timeout=WAIT_S).topics and kcoord.topics() == {}


def test_clients_stay_connected_over_a_reset(kcoord: KcoordServer) -> None:
    kcoord.produce("orders", "before")
    consumer = Consumer({"bootstrap.servers": kcoord.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("orders", 0)])
    assert read(consumer).value() == b"before"
    kcoord.reset()
    assert kcoord.topics() == {}
    kcoord.produce("orders", "after")
    consumer.assign([TopicPartition("orders", 0, 0)])
    assert read(consumer).value() == b"after"
    consumer.close()


async def test_a_client_lives_through_a_stop() -> None:
    server = KcoordServer()
    server.start()
    address = server.bootstrap
    producer = Producer({"bootstrap.servers": address, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50})
    producer.produce("orders", b"1")
    assert await asyncio.to_thread(producer.flush, WAIT_S) == 0
    server.stop()
    producer.produce("orders", b"2")
    assert await asyncio.to_thread(producer.flush, 0.1) == 1
    server.start()
    assert server.bootstrap == address
    assert await asyncio.to_thread(producer.flush, WAIT_S) == 0
    # Without a data directory it begins with an empty log.
    assert [record.value for record in server.records("orders")] == [b"2"]
    server.stop()


def test_a_consumer_sees_the_end_of_a_wait_for_lag(kcoord: KcoordServer) -> None:
    kcoord.produce("orders", ["1", "2"])
    consumer = member(kcoord)
    consumer.commit(message=read(consumer), asynchronous=False)
    kcoord.wait_members("billing", 1)
    kcoord.wait_lag("billing", 1)
    assert read(consumer).value() == b"2"
    consumer.commit(asynchronous=False)
    kcoord.wait_lag("billing")
    consumer.close()
    kcoord.wait_empty("billing")
