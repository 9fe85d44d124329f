"""Transactional producers of confluent-kafka (librdkafka) and aiokafka against a server process.

Both are on transaction version 1: they enlist partitions with AddPartitionsToTxn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.e2e.process import ServerProcess
from tests.harness.present import present

WAIT_S = 60.0


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data: Path = tmp_path_factory.mktemp("transactions") / "data"
    with ServerProcess(data) as server:
        yield server.bootstrap
        assert server.stop() == 0


def producer(bootstrap: str, transactional_id: str, **settings: object) -> Producer:
    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 1, **settings})
    made.init_transactions(WAIT_S)
    return made


def consumer(bootstrap: str, group: str, **settings: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "isolation.level": "read_committed", **settings,
        }
    )  # fmt: skip


def write(one: Producer, topic: str, values: list[bytes]) -> None:
    for value in values:
        one.produce(topic, value)
    assert one.flush(WAIT_S) == 0


def read(bootstrap: str, topic: str, count: int, **settings: object) -> list[bytes]:
    """The first `count` values of the topic's first partition, and a moment of silence after them."""
    one = consumer(bootstrap, f"reads-{topic}", **settings)
    one.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    end = time.monotonic() + WAIT_S
    quiet_until = 0.0
    while time.monotonic() < end:
        message = one.poll(0.05)
        if message is not None:
            assert message.error() is None, message.error()
            values.append(present(message.value()))
        if len(values) >= count:
            quiet_until = quiet_until or time.monotonic() + 0.3
            if time.monotonic() > quiet_until:
                break
    one.close()
    return values


def test_committed_is_read_and_aborted_is_not(bootstrap: str) -> None:
    one = producer(bootstrap, "commits")
    for number in range(3):
        one.begin_transaction()
        write(one, "mixed", [b"committed %d" % number])
        one.commit_transaction(WAIT_S)
        one.begin_transaction()
        write(one, "mixed", [b"aborted %d" % number])
        one.abort_transaction(WAIT_S)
    assert read(bootstrap, "mixed", 3) == [b"committed 0", b"committed 1", b"committed 2"]
    everything = read(bootstrap, "mixed", 6, **{"isolation.level": "read_uncommitted"})
    assert len(everything) == 6


def test_an_open_transaction_holds_readers_back(bootstrap: str) -> None:
    one = producer(bootstrap, "open")
    one.begin_transaction()
    write(one, "held", [b"in the transaction"])
    plain = Producer({"bootstrap.servers": bootstrap})
    write(plain, "held", [b"after it"])
    watcher = consumer(bootstrap, "watches")
    watcher.assign([TopicPartition("held", 0, 0)])
    assert watcher.poll(1.0) is None
    low, high = watcher.get_watermark_offsets(TopicPartition("held", 0), WAIT_S)
    assert (low, high) == (0, 0)
    one.commit_transaction(WAIT_S)
    assert present(watcher.poll(WAIT_S)).value() == b"in the transaction"
    assert present(watcher.poll(WAIT_S)).value() == b"after it"
    watcher.close()


def test_a_second_producer_fences_the_first(bootstrap: str) -> None:
    first = producer(bootstrap, "fenced")
    first.begin_transaction()
    write(first, "fences", [b"of the first"])
    second = producer(bootstrap, "fenced")
    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(WAIT_S)
    assert caught.value.args[0].fatal()
    second.begin_transaction()
    write(second, "fences", [b"of the second"])
    second.commit_transaction(WAIT_S)
    assert read(bootstrap, "fences", 1) == [b"of the second"]


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_consume_transform_produce(bootstrap: str, group_protocol: str) -> None:
    """Offsets are committed with the transaction, and a transaction that is aborted commits none."""
    source, target, group = f"source-{group_protocol}", f"target-{group_protocol}", f"copies-{group_protocol}"
    plain = Producer({"bootstrap.servers": bootstrap})
    write(plain, source, [b"%d" % number for number in range(10)])
    reader = consumer(bootstrap, group, **{"group.protocol": group_protocol})
    reader.subscribe([source])
    one = producer(bootstrap, group)
    seen: list[bytes] = []
    while len(seen) < 10:
        message = reader.poll(WAIT_S)
        assert message is not None and message.error() is None
        value = present(message.value())
        is_bad = value == b"5" and value not in seen
        seen.append(value)
        one.begin_transaction()
        write(one, target, [b"copy of " + value])
        offsets = [TopicPartition(source, 0, present(message.offset()) + 1)]
        one.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), WAIT_S)
        if is_bad:
            one.abort_transaction(WAIT_S)
            committed = reader.committed([TopicPartition(source, 0)], WAIT_S)
            assert committed[0].offset == 5
        else:
            one.commit_transaction(WAIT_S)
    reader.close()
    assert seen == [b"%d" % number for number in range(10)]
    assert read(bootstrap, target, 9) == [b"copy of %d" % number for number in range(10) if number != 5]
    check = consumer(bootstrap, group)
    assert check.committed([TopicPartition(source, 0)], WAIT_S)[0].offset == 10
    check.close()


def test_a_transaction_that_takes_too_long_is_aborted(bootstrap: str) -> None:
    one = producer(bootstrap, "slow", **{"transaction.timeout.ms": 1000})
    one.begin_transaction()
    write(one, "timeouts", [b"too late"])
    time.sleep(2.0)
    with pytest.raises(KafkaException):
        one.commit_transaction(WAIT_S)
    again = producer(bootstrap, "slow")
    again.begin_transaction()
    write(again, "timeouts", [b"in time"])
    again.commit_transaction(WAIT_S)
    assert read(bootstrap, "timeouts", 1) == [b"in time"]


async def test_aiokafka(bootstrap: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="aio") as one:
        async with one.transaction():
            await one.send_and_wait("aio-source", b"something to copy")
        async with one.transaction():
            await one.send_and_wait("aio", b"committed")
            await one.send_offsets_to_transaction({AioTopicPartition("aio-source", 0): 7}, "aio-group")
        with pytest.raises(ValueError, match="no"):
            async with one.transaction():
                await one.send_and_wait("aio", b"aborted")
                raise ValueError("no")
        async with one.transaction():
            await one.send_and_wait("aio", b"committed again")
    async with AIOKafkaConsumer(
        "aio", bootstrap_servers=bootstrap, group_id="aio-group", auto_offset_reset="earliest",
        isolation_level="read_committed", enable_auto_commit=False,
    ) as reader:  # fmt: skip
        values = [(await asyncio.wait_for(reader.getone(), WAIT_S)).value for _ in range(2)]
        assert values == [b"committed", b"committed again"]
        assert await reader.committed(AioTopicPartition("aio-source", 0)) == 7


async def test_aiokafka_is_fenced(bootstrap: str) -> None:
    first = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="aio-fenced")
    await first.start()
    await first.begin_transaction()
    await first.send_and_wait("aio-fences", b"of the first")
    second = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="aio-fenced")
    await second.start()
    with pytest.raises(ProducerFenced):
        await first.commit_transaction()
    await first.stop()
    async with second.transaction():
        await second.send_and_wait("aio-fences", b"of the second")
    await second.stop()


def test_kill_in_the_middle(tmp_path: Path) -> None:
    """After kill -9, the next producer with the same id aborts what was open, and what was committed stays."""
    data = tmp_path / "data"
    with ServerProcess(data) as server:
        one = producer(server.bootstrap, "survives")
        one.begin_transaction()
        write(one, "kept", [b"committed"])
        one.commit_transaction(WAIT_S)
        one.begin_transaction()
        write(one, "kept", [b"left open"])
        server.kill()
    with ServerProcess(data) as server:
        again = producer(server.bootstrap, "survives")
        again.begin_transaction()
        write(again, "kept", [b"after the restart"])
        again.commit_transaction(WAIT_S)
        assert read(server.bootstrap, "kept", 2) == [b"committed", b"after the restart"]
        assert server.stop() == 0
