"""What holds for transactions with every broker: the same checks run with kcoord and with Kafka."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kcoord.client import Consumer, GroupMetadata, Producer, RecordMetadata, TopicPartition
from kcoord.client.errors import (
    BrokerError,
    IllegalGeneration,
    IllegalState,
    KafkaError,
    ProducerFenced,
    RecordTooLarge,
    TransactionAborted,
    UnknownMember,
)
from tests.client.consuming import partitions_of, reads_nothing
from tests.client.producing import create_topic
from tests.client.rebalancing import DEADLINE_S, consumer, create, poll_until


def producer(bootstrap: str, transactional_id: str, **options: Any) -> Producer:
    return Producer(bootstrap_servers=bootstrap, transactional_id=transactional_id, linger_ms=1, **options)


async def committed(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """The values that read_committed shows, in the order of partitions. Fails if there are not `count` of them."""
    found: dict[int, list[bytes]] = {}
    async with Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as reader:
        reader.assign(partitions_of(topic))
        async with asyncio.timeout(DEADLINE_S):
            while sum(len(values) for values in found.values()) < count:
                for record in await reader.poll(0.5):
                    found.setdefault(record.partition, []).append(record.value)
        assert await reads_nothing(reader)
    return [value for partition in sorted(found) for value in found[partition]]


async def check_transactions(bootstrap: str, topic: str) -> None:
    """Committed records are read, aborted ones are not; the states are Kafka's."""
    await create_topic(bootstrap, topic)
    async with producer(bootstrap, topic) as one:
        with pytest.raises(IllegalState, match="init_transactions was not called"):
            await one.begin_transaction()
        await one.init_transactions()
        with pytest.raises(IllegalState):
            await one.send(topic, b"no transaction")
        kept = []
        for number in range(8):
            await one.begin_transaction()
            with pytest.raises(IllegalState):
                await one.begin_transaction()
            sent: list[asyncio.Future[RecordMetadata]] = []
            for part in range(30):
                value = b"%d-%d" % (number, part)
                sent.append(await one.send_nowait(topic, value, partition=part % 3))
            if number % 3 == 1:
                await one.flush()
                await one.abort_transaction()
            elif number % 3 == 2:
                # Without a flush some are dropped before they are sent.
                await one.abort_transaction()
                for future in sent:
                    assert future.done()
                    assert future.exception() is None or isinstance(future.exception(), TransactionAborted)
            else:
                await one.commit_transaction()
                assert [future.result().offset >= 0 for future in sent] == [True] * 30
                kept += [(part % 3, number, part) for part in range(30)]
        # A transaction without records.
        async with one.transaction():
            pass
        await one.begin_transaction()
        await one.abort_transaction()
        with pytest.raises(ZeroDivisionError):
            async with one.transaction():
                await one.send(topic, b"aborted")
                raise ZeroDivisionError
        async with one.transaction():
            await one.send(topic, b"last", partition=2)
        # What is open when the producer stops is aborted.
        await one.begin_transaction()
        await one.send(topic, b"open")
    values = await committed(bootstrap, topic, len(kept) + 1)
    assert values == [b"%d-%d" % (number, part) for _, number, part in sorted(kept)] + [b"last"]


async def check_fencing(bootstrap: str, topic: str) -> None:
    """A second producer with the transactional id ends the first one."""
    await create_topic(bootstrap, topic)
    first, second = producer(bootstrap, topic), producer(bootstrap, topic)
    async with first, second:
        await first.init_transactions()
        await first.begin_transaction()
        await first.send(topic, b"of the zombie")
        await second.init_transactions()
        with pytest.raises(ProducerFenced):
            await first.commit_transaction()
        for call in (first.begin_transaction, first.abort_transaction, first.commit_transaction):
            with pytest.raises(ProducerFenced):
                await call()
        with pytest.raises(ProducerFenced):
            await first.send(topic, b"never")
        async with second.transaction():
            await second.send(topic, b"of the second")
    assert await committed(bootstrap, topic, 1) == [b"of the second"]


async def check_fenced_while_sending(bootstrap: str, topic: str) -> None:
    """A zombie that only sends hears of it from the partition leader, must abort, and learns then what it is."""
    await create_topic(bootstrap, topic)
    first, second = producer(bootstrap, topic), producer(bootstrap, topic)
    async with first, second:
        await first.init_transactions()
        await first.begin_transaction()
        await first.send(topic, b"1", partition=0)
        await second.init_transactions()
        with pytest.raises(BrokerError):
            await first.send(topic, b"2", partition=0)
        with pytest.raises(KafkaError):
            await first.commit_transaction()
        with pytest.raises(ProducerFenced):
            await first.abort_transaction()
    assert await committed(bootstrap, topic, 0) == []


async def check_abortable(bootstrap: str, topic: str) -> None:
    """A record that cannot be written: the transaction must be aborted, and the producer goes on."""
    await create_topic(bootstrap, topic)
    async with producer(bootstrap, topic, max_request_size=3_000_000) as one:
        await one.init_transactions()
        await one.begin_transaction()
        await one.send(topic, b"good", partition=0)
        # The broker takes 1 MiB.
        with pytest.raises(RecordTooLarge):
            await one.send(topic, bytes(2_000_000), partition=0)
        for _ in range(2):
            with pytest.raises(RecordTooLarge):
                await one.commit_transaction()
        with pytest.raises(RecordTooLarge):
            await one.send(topic, b"not now")
        await one.abort_transaction()
        async with one.transaction():
            await one.send(topic, b"after", partition=0)
    assert await committed(bootstrap, topic, 1) == [b"after"]


async def check_sample(bootstrap: str, protocol: str) -> None:
    """The sample of KIP-447: one producer copies what a member of a group reads, across rebalances, exactly once."""
    await create(bootstrap, source=4, sink=1)
    async with Producer(bootstrap_servers=bootstrap) as writer:
        for number in range(400):
            await writer.send_nowait("source", b"%d" % number, partition=number % 4)

    async def copy(name: str, stop: asyncio.Event) -> None:
        reader = consumer(
            bootstrap,
            "copies",
            protocol,
            enable_auto_commit=False,
            isolation_level="read_committed",
            max_poll_records=7,
        )
        async with reader, producer(bootstrap, f"copies-{protocol}-{name}") as one:
            reader.subscribe(["source"])
            await one.init_transactions()
            while not stop.is_set():
                records = await reader.poll(0.05)
                if not records:
                    continue
                await one.begin_transaction()
                try:
                    for record in records:
                        await one.send_nowait("sink", record.value)
                    ends = {TopicPartition(each.topic, each.partition): each.offset + 1 for each in records}
                    await one.send_offsets_to_transaction(ends, reader.group_metadata())
                    await one.commit_transaction()
                except (IllegalGeneration, UnknownMember):
                    await one.abort_transaction()
                    # What was read is read again, from what the group has committed.
                    await reader.seek_to_committed()

    stops = {name: asyncio.Event() for name in "abc"}
    async with asyncio.timeout(2 * DEADLINE_S), asyncio.TaskGroup() as tasks:
        for name, stop in stops.items():
            tasks.create_task(copy(name, stop))
            await asyncio.sleep(0.4)
        stops["a"].set()
        async with consumer(bootstrap, "watch", protocol) as watcher:
            watcher.assign([TopicPartition("source", number) for number in range(4)])
            async with Consumer(bootstrap_servers=bootstrap, group_id="copies", group_protocol=protocol) as asker:
                wanted = [TopicPartition("source", number) for number in range(4)]
                while sum(one.offset if one else 0 for one in (await asker.committed(wanted)).values()) < 400:
                    await asyncio.sleep(0.1)
        for stop in stops.values():
            stop.set()
    found: list[bytes] = []
    async with Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as reader:
        reader.assign([TopicPartition("sink", 0)])
        async with asyncio.timeout(DEADLINE_S):
            while len(found) < 400:
                found += [record.value for record in await reader.poll(0.5)]
        assert await reads_nothing(reader)
    assert sorted(found, key=int) == [b"%d" % number for number in range(400)]


async def check_old_generation(bootstrap: str, protocol: str) -> None:
    """KIP-447: offsets of a member that the group has replaced are refused, and the transaction can be aborted."""
    await create(bootstrap, source=1)
    (only,) = {TopicPartition("source", 0)}
    async with (
        consumer(bootstrap, "fenced", protocol, enable_auto_commit=False) as reader,
        producer(bootstrap, f"fenced-{protocol}") as one,
    ):
        reader.subscribe(["source"])
        await poll_until(lambda: reader.assignment() == {only}, reader)
        who = reader.group_metadata()
        assert who.generation_id == reader.generation() > 0
        assert who.member_id
        await one.init_transactions()
        async with one.transaction():
            await one.send_offsets_to_transaction({only: 3}, who)
        await one.begin_transaction()
        old = GroupMetadata(who.group_id, who.generation_id - 1, who.member_id)
        with pytest.raises(IllegalGeneration):
            await one.send_offsets_to_transaction({only: 4}, old)
        with pytest.raises(IllegalGeneration):
            await one.commit_transaction()
        await one.abort_transaction()
        await one.begin_transaction()
        with pytest.raises(UnknownMember):
            await one.send_offsets_to_transaction({only: 5}, GroupMetadata(who.group_id, who.generation_id, "nobody"))
        await one.abort_transaction()
        found = await reader.committed(only)
        assert found is not None and found.offset == 3
        # Without a member's metadata only the group id counts, as with a consumer that has no group.
        async with one.transaction():
            await one.send_offsets_to_transaction({only: 6}, reader.group_metadata())
        found = await reader.committed(only)
        assert found is not None and found.offset == 6
