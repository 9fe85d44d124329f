"""A virtual clock under real clients: hours of timeouts, and none of them waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kcoord.testing.fixture import KcoordServer, WaitTimeout

WAIT_S = 30.0
HOUR_S = 3600.0


@pytest.fixture
def server() -> Iterator[KcoordServer]:
    with KcoordServer(clock="virtual") as server:
        yield server


def produce(server: KcoordServer, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for value in values:
        producer.produce("orders", value)
    assert producer.flush(WAIT_S) == 0


def member(server: KcoordServer, **settings: object) -> Consumer:
    consumer = Consumer(
        {"bootstrap.servers": server.bootstrap, "group.id": "billing", "auto.offset.reset": "earliest",
         "enable.auto.commit": False, **settings}
    )  # fmt: skip
    consumer.subscribe(["orders"])
    return consumer


def first_message(consumer: Consumer) -> bytes | None:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            return message.value()
    raise AssertionError("no message")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_session_expires_when_its_time_has_passed(server: KcoordServer, protocol: str) -> None:
    produce(server, b"1")
    long = {"session.timeout.ms": 1_800_000, "max.poll.interval.ms": 1_800_000}
    consumer = member(server, **{"group.protocol": protocol, **(long if protocol == "classic" else {})})
    assert first_message(consumer) == b"1"
    server.wait_stable("billing", members=1)
    with server.hold(group="billing"):
        time.sleep(0.3)
        assert server.state("billing") == "Stable"
        passed_s = server.run_until(lambda: server.state("billing") == "Empty")
    expected_s = 1800 if protocol == "classic" else 45
    assert expected_s * 0.5 <= passed_s <= expected_s * 1.1
    consumer.close()


def test_offsets_expire_after_a_week(server: KcoordServer) -> None:
    produce(server, b"1")
    consumer = member(server)
    assert first_message(consumer) == b"1"
    consumer.commit(asynchronous=False)
    consumer.close()
    server.wait_empty("billing")
    began = time.monotonic()
    server.advance(6 * 24 * HOUR_S)
    assert server.committed("billing") == {("orders", 0): 1}
    server.advance(2 * 24 * HOUR_S)
    assert server.committed("billing") == {}
    assert time.monotonic() - began < WAIT_S


def test_records_have_the_server_s_time_and_expire_with_it(server: KcoordServer) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    config = {"message.timestamp.type": "LogAppendTime", "retention.ms": "3600000", "segment.ms": "600000"}
    admin.create_topics([NewTopic("orders", 1, 1, config=config)])["orders"].result(WAIT_S)
    began_ms = server.now_ms
    produce(server, b"old")
    server.advance(2 * HOUR_S)
    produce(server, b"new")
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("orders", 0)])
    end = time.monotonic() + WAIT_S
    while consumer.get_watermark_offsets(TopicPartition("orders", 0), WAIT_S)[0] != 1 and time.monotonic() < end:
        server.advance(HOUR_S / 2)
    consumer.assign([TopicPartition("orders", 0, 1)])
    message = None
    while message is None and time.monotonic() < end:
        message = consumer.poll(0.1)
    assert message is not None and message.value() == b"new"
    assert 0 <= message.timestamp()[1] - began_ms - 2 * HOUR_S * 1000 < WAIT_S * 1000
    consumer.close()


def test_a_transaction_times_out(server: KcoordServer) -> None:
    produce(server, b"0")
    producer = Producer(
        {"bootstrap.servers": server.bootstrap, "transactional.id": "one", "transaction.timeout.ms": 600_000,
         "metadata.recovery.strategy": "none"}
    )  # fmt: skip
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("orders", b"1")
    producer.flush(WAIT_S)
    server.advance(500)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    assert admin.list_topics(timeout=WAIT_S).topics["orders"] is not None
    assert server.requests("EndTxn") == []
    consumer = Consumer(
        {"bootstrap.servers": server.bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
    )
    partition = TopicPartition("orders", 0)
    assert consumer.get_watermark_offsets(partition, WAIT_S)[1] == 1  # the open transaction holds it back
    server.advance(120)
    assert consumer.get_watermark_offsets(partition, WAIT_S)[1] == 3  # with the abort marker
    consumer.close()


def test_time_runs_and_moves(server: KcoordServer) -> None:
    before_ms = server.now_ms
    time.sleep(0.05)
    assert 50 <= server.now_ms - before_ms < WAIT_S * 1000
    server.advance(HOUR_S)
    assert server.now_ms - before_ms >= HOUR_S * 1000


def test_what_never_comes(server: KcoordServer) -> None:
    with pytest.raises(WaitTimeout, match="60 s passed without the condition"):
        server.run_until(lambda: False, seconds=60)


def test_the_machine_s_clock_cannot_be_moved(kcoord: KcoordServer) -> None:
    with pytest.raises(RuntimeError, match='clock="virtual"'):
        kcoord.advance(1)
    with pytest.raises(ValueError, match="real or virtual"):
        KcoordServer(clock="fake")
