"""State that tests prepare and look at without a client, beside real clients."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from kcoord.client.errors import BrokerError, RecordTooLarge, UnknownMember, UnknownTopicOrPartition
from kcoord.client.producer.partitioner import partition_of_key
from kcoord.server.failures import ServerError
from kcoord.testing.fixture import KcoordServer, Record
from kcoord.testing.state.records import GivenRecord
from tests.harness.present import present

WAIT_S = 30.0


def test_a_consumer_reads_what_was_prepared(kcoord: KcoordServer) -> None:
    kcoord.create_topic("orders", partitions=3, configs={"retention.ms": -1})
    assert kcoord.topics() == {"orders": 3}
    given: list[GivenRecord] = [b"1", {"key": "a", "value": "2"}, {"value": None, "key": b"b"}]
    assert kcoord.produce("orders", given, headers={"source": "test"}, partition=1) == [(1, 0), (1, 1), (1, 2)]
    assert kcoord.produce("orders", "late", partition=2, timestamp_ms=1_700_000_000_000)[0].offset == 0
    kcoord.commit("billing", {("orders", 0): 0, ("orders", 1): 1, ("orders", 2): 0})
    assert kcoord.committed("billing") == {("orders", 0): 0, ("orders", 1): 1, ("orders", 2): 0}
    assert kcoord.requests() == []
    # With this policy a partition without a committed offset would be an error.
    consumer = Consumer({"bootstrap.servers": kcoord.bootstrap, "group.id": "billing", "auto.offset.reset": "error"})
    consumer.subscribe(["orders"])
    found: dict[object, object] = {}
    while len(found) < 3:
        message = present(consumer.poll(WAIT_S))
        assert message.error() is None
        found[message.partition(), message.offset()] = (message.key(), message.value(), message.headers())
        assert message.partition() != 2 or message.timestamp()[1] == 1_700_000_000_000
    consumer.close()
    assert found == {
        (1, 1): (b"a", b"2", [("source", b"test")]),
        (1, 2): (b"b", None, [("source", b"test")]),
        (2, 0): (None, b"late", None),
    }


async def test_the_records_that_a_producer_wrote(kcoord: KcoordServer) -> None:
    """On an event loop, too; and keys choose the same partitions in both directions."""
    kcoord.create_topic("orders", partitions=4)
    async with AIOKafkaProducer(bootstrap_servers=kcoord.bootstrap, compression_type="gzip") as producer:
        for number in range(20):
            await producer.send_and_wait("orders", str(number).encode(), key=b"key %d" % (number % 5))
    (one,) = kcoord.records("orders", limit=1)
    assert one.partition == partition_of_key(present(one.key), 4)
    again = kcoord.produce("orders", "20", key=one.key)
    assert again[0].partition == one.partition
    records = kcoord.records("orders")
    assert sorted(int(record.text or "") for record in records) == list(range(21))
    assert records == sorted(records, key=lambda record: (record.partition, record.offset))
    assert kcoord.records("orders", again[0].partition, start=again[0].offset)[0].json() == 20


def test_many_records(kcoord: KcoordServer) -> None:
    """More than one request of the fixture's has, in both directions. Without keys the partitions take turns."""
    kcoord.create_topic("orders", partitions=2)
    values = [str(number).rjust(5000, "0") for number in range(600)]
    written = kcoord.produce("orders", values)
    assert [position.partition for position in written[:4]] == [0, 1, 0, 1]
    read = kcoord.records("orders")
    assert [(record.partition, record.offset) for record in read] == sorted(written)
    by_position = {(record.partition, record.offset): record.text for record in read}
    assert [by_position[position] for position in written] == values
    assert kcoord.records("orders", 1, start=10, limit=3) == read[310:313]
    # A record that was read can be written again.
    assert kcoord.produce("copy", [Record(0, 7, b"k", b"v", [("h", None)], 5)]) == [(0, 0)]
    assert kcoord.records("copy") == [Record(0, 0, b"k", b"v", [("h", None)], 5)]


def test_isolation(kcoord: KcoordServer) -> None:
    producer = Producer({"bootstrap.servers": kcoord.bootstrap, "transactional.id": "t"})
    producer.init_transactions(WAIT_S)
    for value, is_committed in ((b"1", True), (b"2", False), (b"3", True)):
        producer.begin_transaction()
        producer.produce("orders", value)
        producer.flush(WAIT_S)
        (producer.commit_transaction if is_committed else producer.abort_transaction)(WAIT_S)
    producer.begin_transaction()
    producer.produce("orders", b"4")
    producer.flush(WAIT_S)
    kcoord.produce("orders", b"5")
    assert [record.value for record in kcoord.records("orders")] == [b"1", b"2", b"3", b"4", b"5"]
    assert [record.value for record in kcoord.records("orders", isolation="read_committed")] == [b"1", b"3"]
    producer.abort_transaction(WAIT_S)
    assert [record.value for record in kcoord.records("orders", isolation="read_committed")] == [b"1", b"3", b"5"]
    with pytest.raises(ValueError, match="isolation is one of read_uncommitted, read_committed"):
        kcoord.records("orders", isolation="committed")


def test_what_the_server_refuses(kcoord: KcoordServer) -> None:
    kcoord.create_topic("orders")
    with pytest.raises(BrokerError, match="topic 'orders': TOPIC_ALREADY_EXISTS"):
        kcoord.create_topic("orders")
    with pytest.raises(BrokerError, match="INVALID_CONFIG"):
        kcoord.create_topic("other", configs={"retention.ms": "long"})
    with pytest.raises(BrokerError, match="INVALID_PARTITIONS"):
        kcoord.create_topic("other", partitions=0)
    for work in (
        lambda: kcoord.records("other"),
        lambda: kcoord.records("orders", 1),
        lambda: kcoord.delete_topic("other"),
        lambda: kcoord.produce("orders", b"1", partition=1),
        lambda: kcoord.commit("billing", {("other", 0): 1}),
    ):
        with pytest.raises(UnknownTopicOrPartition, match="UNKNOWN_TOPIC_OR_PARTITION"):
            work()
    with pytest.raises(RecordTooLarge, match="partition orders-0: MESSAGE_TOO_LARGE"):
        kcoord.produce("orders", bytes(2_000_000))
    with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
        kcoord.produce("no name", b"1")
    assert kcoord.topics() == {"orders": 1}
    kcoord.delete_topic("orders")
    assert kcoord.topics() == {}


async def test_offsets_of_a_group_with_members_are_theirs(kcoord: KcoordServer) -> None:
    kcoord.produce("orders", [b"1", b"2"])
    async with AIOKafkaConsumer(
        "orders", bootstrap_servers=kcoord.bootstrap, group_id="billing", auto_offset_reset="earliest"
    ) as consumer:
        assert (await asyncio.wait_for(consumer.getone(), WAIT_S)).value == b"1"
        with pytest.raises(UnknownMember, match="group 'billing', partition orders-0: UNKNOWN_MEMBER_ID"):
            kcoord.commit("billing", {("orders", 0): 2})
    kcoord.commit("billing", {("orders", 0): 2})
    assert kcoord.lag("billing") == 0


def test_retention_now(kcoord: KcoordServer) -> None:
    kcoord.create_topic("orders", configs={"retention.ms": 1000})
    kcoord.produce("orders", ["1", {"value": "2", "timestamp_ms": 5}])
    assert kcoord.apply_retention() == 0  # the newest record of a segment counts
    kcoord.delete_topic("orders")
    kcoord.create_topic("orders", configs={"retention.ms": 1000})
    kcoord.produce("orders", {"value": "2", "timestamp_ms": 5})
    assert kcoord.apply_retention() == 1
    assert kcoord.records("orders") == []
    consumer = Consumer({"bootstrap.servers": kcoord.bootstrap, "group.id": "billing"})
    assert consumer.get_watermark_offsets(ConfluentPartition("orders", 0), WAIT_S) == (1, 1)
    consumer.close()


async def test_compaction_now(kcoord: KcoordServer) -> None:
    kcoord.create_topic("orders", configs={"cleanup.policy": "compact", "delete.retention.ms": 0})
    kcoord.create_topic("others")
    kcoord.produce("others", ["1", "2"], key="a")
    kcoord.produce("orders", ["1", "2", "3"], key="a")
    kcoord.produce("orders", ["4"], key="b")
    assert kcoord.compact() == 2
    kcoord.produce("orders", ["5"], key="c")
    kcoord.produce("orders", ["6"], key="b")
    assert kcoord.compact() == 1
    assert kcoord.compact() == 0
    async with AIOKafkaConsumer("orders", bootstrap_servers=kcoord.bootstrap, auto_offset_reset="earliest") as reader:
        found = [await asyncio.wait_for(reader.getone(), 30) for _ in range(3)]
    assert [(one.offset, one.value) for one in found] == [(2, b"3"), (4, b"5"), (5, b"6")]
    assert len(kcoord.records("others")) == 2
    state = kcoord.snapshot()
    kcoord.restore(state)
    assert [one.text for one in kcoord.records("orders")] == ["3", "5", "6"]
    kcoord.produce("orders", ["7"], key="c")
    assert kcoord.compact() == 1


def test_compaction_before_a_power_cut(tmp_path: Path) -> None:
    with KcoordServer(memory_disk=True) as server:
        server.create_topic("orders", configs={"cleanup.policy": "compact"})
        server.produce("orders", ["1", "2"], key="a")
        assert server.compact() == 1
        server.kill(power_cut=True)
        server.start()
        assert [one.text for one in server.records("orders")] == ["2"]
    settings = {"log.dirs": str(tmp_path / "data"), "log.sync": "os"}
    with KcoordServer(settings) as server, pytest.raises(ValueError, match="compacts by itself"):
        server.compact()


def test_mistakes_in_records(kcoord: KcoordServer) -> None:
    with pytest.raises(TypeError, match="a value is bytes, str or None, not int: 7"):
        kcoord.produce("orders", [b"1", 7])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="a record has no field 'vlaue'; there are key, value"):
        kcoord.produce("orders", {"vlaue": b"1"})
    with pytest.raises(TypeError, match="header 'h' is bytes, str or None"):
        kcoord.produce("orders", b"1", headers={"h": 1})  # type: ignore[arg-type]
    assert kcoord.topics() == {}


async def test_rules_are_for_clients(kcoord: KcoordServer) -> None:
    fault = kcoord.fail("Produce", error="NOT_LEADER_OR_FOLLOWER", times=None)
    with kcoord.refuse_connections():
        assert kcoord.produce("orders", b"1") == [(0, 0)]
    assert fault.hits == 0 and kcoord.requests() == []
    fault.remove()
    async with AIOKafkaConsumer(bootstrap_servers=kcoord.bootstrap) as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        await consumer.seek_to_beginning()
        assert (await asyncio.wait_for(consumer.getone(), WAIT_S)).value == b"1"


def test_a_server_that_creates_no_topics() -> None:
    with KcoordServer({"auto.create.topics.enable": "false"}) as server:
        with pytest.raises(UnknownTopicOrPartition, match="topic 'orders': UNKNOWN_TOPIC_OR_PARTITION"):
            server.produce("orders", b"1")
    with pytest.raises(ServerError, match="the server is not running"):
        server.topics()


def test_a_server_that_fails_ends_the_call() -> None:
    server = KcoordServer()
    server.start()
    server._thread.call(lambda running: running.loop.call_later(0.1, running.pump.fail, OSError(5, "the disk is gone")))
    with pytest.raises(ServerError, match="the disk is gone"):
        while True:
            server.produce("orders", b"1")


def test_a_log_on_disk(tmp_path: Path) -> None:
    """Each commit waits for the disk."""
    settings = {"log.dirs": str(tmp_path), "log.sync": "always"}
    with KcoordServer(settings) as server:
        assert server.produce("orders", [b"1"] * 3) == [(0, 0), (0, 1), (0, 2)]
    with KcoordServer(settings) as server:
        assert [record.value for record in server.records("orders")] == [b"1"] * 3
