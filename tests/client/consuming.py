"""What holds for the consumer with every broker: the same checks run with kcoord and with Kafka."""

from __future__ import annotations

import asyncio
import logging

import pytest
from confluent_kafka import Producer as ConfluentProducer

from kcoord.client import Admin, Consumer, ConsumerRecord, Producer, TopicPartition
from kcoord.client.admin.results import CommittedOffset
from kcoord.client.errors import (
    IllegalState,
    InvalidConfiguration,
    InvalidGroupId,
    NoCommittedOffset,
    OffsetOutOfRange,
    SerializationFailed,
)
from tests.client.producing import PARTITIONS, create_topic

READ_DEADLINE_S = 30.0
TIME_MS = 1_700_000_000_000


def partitions_of(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(PARTITIONS)]


async def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """The next `count` records. Fails if they do not come."""
    found: list[ConsumerRecord] = []
    async with asyncio.timeout(READ_DEADLINE_S):
        while len(found) < count:
            found += await consumer.poll(1.0, count - len(found))
    return found


async def reads_nothing(consumer: Consumer) -> bool:
    return not await consumer.poll(0.3)


async def write(bootstrap: str, topic: str, count: int, codec: str | None = None, size: int = 10) -> None:
    """Record i goes to partition i % PARTITIONS, with the time TIME_MS + i."""
    await create_topic(bootstrap, topic)
    async with Producer(bootstrap_servers=bootstrap, compression_type=codec) as producer:
        for number in range(count):
            headers = [("number", b"%d" % number), ("none", None)] if number % 3 else None
            key = b"key-%d" % number if number % 5 else None
            value = (b"%d" % number).ljust(size, b".") if number % 7 else None
            await producer.send_nowait(
                topic, value, key, partition=number % PARTITIONS, headers=headers, timestamp_ms=TIME_MS + number
            )
        await producer.flush()


async def check_codec(bootstrap: str, topic: str, codec: str | None) -> None:
    """Everything arrives as it was written, in the order of each partition."""
    await write(bootstrap, topic, 600, codec)
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions_of(topic))
        found = await read(consumer, 600)
        assert await reads_nothing(consumer)
    for partition in range(PARTITIONS):
        records = [record for record in found if record.partition == partition]
        assert [record.offset for record in records] == list(range(200))
        for record in records:
            number = record.offset * PARTITIONS + partition
            assert record.topic == topic
            assert record.timestamp == TIME_MS + number
            assert record.timestamp_type == 0
            assert record.key == (b"key-%d" % number if number % 5 else None)
            assert record.value == ((b"%d" % number).ljust(10, b".") if number % 7 else None)
            assert record.headers == ([("number", b"%d" % number), ("none", None)] if number % 3 else [])


async def check_positions(bootstrap: str, topic: str) -> None:
    """Positions, seeks, pauses and offsets by time."""
    await write(bootstrap, topic, 300)
    first, second, third = partitions_of(topic)
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([first])
        assert await consumer.position(first) == 0
        assert [record.offset for record in await read(consumer, 7)] == list(range(7))
        assert await consumer.position(first) == 7
        consumer.seek(first, 50)
        assert await consumer.position(first) == 50
        assert [record.offset for record in await read(consumer, 2)] == [50, 51]
        consumer.seek_to_end()
        assert await consumer.position(first) == 100
        assert await reads_nothing(consumer)
        assert consumer.highwater(first) == 100
        assert consumer.lag(first) == 0
        consumer.seek_to_beginning(first)
        assert (await read(consumer, 1))[0].offset == 0
        # A partition that stays keeps its position.
        consumer.assign([first, second])
        assert await consumer.position(first) == 1
        consumer.pause(first)
        assert consumer.paused() == {first}
        assert {record.partition for record in await read(consumer, 100)} == {1}
        assert await reads_nothing(consumer)
        consumer.resume(first)
        assert {record.partition for record in await read(consumer, 99)} == {0}
        everything = [first, second, third]
        # getmany reads some partitions only, and leaves the others where they are.
        consumer.assign(everything)
        consumer.seek_to_beginning(*everything)
        async with asyncio.timeout(READ_DEADLINE_S):
            while not (some := await consumer.getmany(second, third, timeout_ms=500, max_records=20)):
                pass
        assert set(some) <= {second, third}
        assert await consumer.position(first) == 0
        with pytest.raises(IllegalState):
            await consumer.getmany(TopicPartition(topic, 99))
        assert await consumer.beginning_offsets(everything) == dict.fromkeys(everything, 0)
        assert await consumer.end_offsets(everything) == dict.fromkeys(everything, 100)
        times = await consumer.offsets_for_times({first: TIME_MS + 30, second: TIME_MS + 10_000, third: 0})
        assert [times[one].offset if times[one] else None for one in everything] == [10, None, 0]  # type: ignore[union-attr]
        assert times[first].timestamp == TIME_MS + 30  # type: ignore[union-attr]
        assert await consumer.partitions_for_topic(topic) == {0, 1, 2}
        assert topic in await consumer.topics()


async def check_iteration(bootstrap: str, topic: str) -> None:
    """Iteration hands out record after record, and positions follow one by one."""
    await write(bootstrap, topic, 300)
    (first, *_) = partitions_of(topic)
    offsets = []
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([first])
        async with asyncio.timeout(READ_DEADLINE_S):
            async for record in consumer:
                offsets.append(record.offset)
                assert await consumer.position(first) == record.offset + 1
                if len(offsets) == 60:
                    consumer.seek(first, 95)
                if record.offset == 99:
                    await consumer.stop()
    assert offsets == [*range(60), *range(95, 100)]


async def check_commits(bootstrap: str, topic: str) -> None:
    """A consumer with a group id but its own assignment commits, and another one goes on there."""
    await write(bootstrap, topic, 300)
    first, second, third = partitions_of(topic)
    async with Consumer(
        bootstrap_servers=bootstrap, group_id=topic, enable_auto_commit=False, auto_offset_reset="earliest"
    ) as consumer:
        # Nothing is committed: what was read, for example for a transaction that was aborted, is read again.
        consumer.assign([first])
        assert [record.offset for record in (await read(consumer, 2))[:2]] == [0, 1]
        assert await consumer.seek_to_committed() == {first: None}
        assert [record.offset for record in (await read(consumer, 2))[:2]] == [0, 1]
    async with Consumer(bootstrap_servers=bootstrap, group_id=topic, enable_auto_commit=False) as consumer:
        consumer.assign([first, second])
        assert await consumer.committed(first) is None
        consumer.seek(first, 10)
        consumer.seek(second, 20)
        await consumer.commit()
        await consumer.commit({third: CommittedOffset(30, "why"), first: 11})
        assert await consumer.committed([first, second, third]) == {
            first: CommittedOffset(11, "", -1),
            second: CommittedOffset(20, "", -1),
            third: CommittedOffset(30, "why", -1),
        }
        assert consumer.group_metadata().group_id == topic
        assert consumer.generation() == -1
    async with Consumer(bootstrap_servers=bootstrap, group_id=topic, auto_commit_interval_ms=50) as consumer:
        consumer.assign([third])
        assert (await read(consumer, 5))[0].offset == 30
        await asyncio.sleep(0.1)
        await consumer.poll(0)
        async with asyncio.timeout(READ_DEADLINE_S):
            while (found := await consumer.committed(third)) is None or found.offset < 35:
                await asyncio.sleep(0.02)
        consumer.seek(third, 0)
        assert (await read(consumer, 1))[0].offset == 0
        committed = (await consumer.seek_to_committed())[third]
        assert committed is not None
        assert await consumer.position(third) == committed.offset
        consumer.seek(third, 77)
        # KIP-70: what was consumed is committed before the assignment ends.
        await consumer.unsubscribe()
        assert consumer.assignment() == frozenset()
        assert await consumer.committed(third) == CommittedOffset(77, "", -1)
        consumer.assign([second])
        consumer.seek(second, 44)
    async with Consumer(bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="none") as consumer:
        consumer.assign([second])
        assert await consumer.position(second) == 44


async def check_resets(bootstrap: str, topic: str) -> None:
    """Without a position the policy decides, and so it does when the log no longer has the position."""
    await write(bootstrap, topic, 300)
    (first, *_) = partitions_of(topic)
    async with Admin(bootstrap) as admin:
        await admin.delete_records({first: 40})
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([first])
        with pytest.raises(NoCommittedOffset):
            await consumer.poll(READ_DEADLINE_S)
        consumer.seek(first, 10)
        with pytest.raises(OffsetOutOfRange):
            await consumer.poll(READ_DEADLINE_S)
        consumer.seek(first, 40)
        assert (await read(consumer, 1))[0].offset == 40
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([first])
        consumer.seek(first, 10)
        assert (await read(consumer, 1))[0].offset == 40
    async with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([first])
        assert await consumer.position(first) == 100


async def check_isolation(bootstrap: str, topic: str) -> None:
    """read_committed leaves out aborted records and what is open; markers are never seen."""
    await create_topic(bootstrap, topic)
    kept: list[bytes] = []

    def transactions() -> ConfluentProducer:
        settings = {"bootstrap.servers": bootstrap, "transactional.id": topic}
        # librdkafka gives up its only broker when it re-bootstraps.
        producer = ConfluentProducer({**settings, "metadata.recovery.strategy": "none"})
        producer.init_transactions(READ_DEADLINE_S)
        for number in range(12):
            producer.begin_transaction()
            for part in range(20):
                producer.produce(topic, b"%d-%d" % (number, part), partition=0)
            # What is not sent yet would not be in the log after an abort.
            assert producer.flush(READ_DEADLINE_S) == 0
            if number % 3 == 0:
                producer.abort_transaction(READ_DEADLINE_S)
            else:
                kept.extend(b"%d-%d" % (number, part) for part in range(20))
                producer.commit_transaction(READ_DEADLINE_S)
        producer.begin_transaction()
        producer.produce(topic, b"open", partition=0)
        assert producer.flush(READ_DEADLINE_S) == 0
        return producer

    producer = await asyncio.to_thread(transactions)
    first = TopicPartition(topic, 0)
    for isolation, values in (("read_committed", kept), ("read_uncommitted", None)):
        async with Consumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level=isolation
        ) as consumer:
            consumer.assign([first])
            found = await read(consumer, 241 if values is None else len(values))
            assert await reads_nothing(consumer)
            if values is None:
                assert [record.value for record in found][-1] == b"open"
            else:
                assert [record.value for record in found] == values
                # The position goes on past markers and aborted records, up to the open transaction.
                assert await consumer.position(first) == 12 * 21 == consumer.last_stable_offset(first)
                assert (await consumer.end_offsets([first]))[first] == 12 * 21
    await asyncio.to_thread(producer.abort_transaction, READ_DEADLINE_S)


async def check_deserializers(bootstrap: str, topic: str) -> None:
    """A record that cannot be read is named, loses nothing, and can be skipped."""
    await write(bootstrap, topic, 300)
    (first, *_) = partitions_of(topic)

    def parse(data: bytes) -> int:
        number = int(data.rstrip(b"."))
        if number == 30:
            raise ValueError("not this one")
        return number

    async with Consumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        key_deserializer=bytes.decode,
        value_deserializer=parse,
    ) as consumer:
        consumer.assign([first])
        found = await read(consumer, 10)
        assert [record.value for record in found] == [None if n % 7 == 0 else n for n in range(0, 30, 3)]
        assert found[1].key == "key-3"
        for _ in range(2):
            with pytest.raises(SerializationFailed, match=f"{topic}-0, offset 10"):
                await consumer.poll(READ_DEADLINE_S)
            assert await consumer.position(first) == 10
        consumer.seek(first, 11)
        assert (await read(consumer, 1))[0].value == 33


async def check_memory(bootstrap: str, topic: str) -> None:
    """A slow consumer holds no more than its buffer."""
    await write(bootstrap, topic, 900, size=5000)
    async with Consumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        buffer_bytes_max=200_000,
        max_partition_fetch_bytes=100_000,
    ) as consumer:
        consumer.assign(partitions_of(topic))
        assert consumer._parts is not None
        fetcher = consumer._parts.fetcher
        found = 0
        most = 0
        async with asyncio.timeout(READ_DEADLINE_S):
            while found < 900:
                found += len(await consumer.poll(1.0, 10))
                most = max(most, fetcher.buffered_bytes)
                await asyncio.sleep(0.001)
        # One batch may be larger than what was asked for.
        assert 50_000 < most <= 200_000 + 17_000
        assert await reads_nothing(consumer)
        assert fetcher.buffered_bytes == 0


async def check_group_ids(bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """KIP-289: the table of the proposal, cell by cell, for both group ids that are none."""
    await write(bootstrap, topic, 30)
    (first, *_) = partitions_of(topic)
    for group_id in (None, ""):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "kcoord.client.consumer"):
            consumer = Consumer(bootstrap_servers=bootstrap, group_id=group_id, auto_offset_reset="earliest")
        assert ("deprecated" in caplog.text) == (group_id == "")
        # When using subscribe(...): InvalidGroupException, before any request: the consumer is not even started.
        with pytest.raises(InvalidGroupId):
            consumer.subscribe([topic])
        with pytest.raises(InvalidGroupId):
            consumer.subscribe(pattern="t.*")
        # When using assign(...): enable.auto.commit is automatically set to false.
        assert not consumer._options.is_auto_commit
        async with consumer:
            consumer.assign([first])
            # Cannot fetch offsets: the reset policy decides.
            assert await consumer.position(first) == 0
            with pytest.raises(InvalidGroupId):
                await consumer.committed(first)
            # Can seek to and fetch from an offset.
            consumer.seek(first, 5)
            assert (await read(consumer, 1))[0].offset == 5
            # Cannot commit offsets.
            with pytest.raises(InvalidGroupId):
                await consumer.commit()
            with pytest.raises(InvalidGroupId):
                await consumer.commit({first: 3})
            with pytest.raises(InvalidGroupId):
                consumer.group_metadata()
    # The default is None, and asking for auto commit without a group is a mistake, as in Kafka.
    assert Consumer(bootstrap_servers=bootstrap)._options.group_id is None
    with pytest.raises(InvalidConfiguration):
        Consumer(bootstrap_servers=bootstrap, enable_auto_commit=True)
