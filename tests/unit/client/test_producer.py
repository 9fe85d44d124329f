"""The producer with a broker that fails as scripted: order, exactly once, limits and deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kcoord.client.errors import (
    AuthorizationFailed,
    IllegalState,
    InvalidConfiguration,
    KafkaError,
    OutOfOrderSequence,
    RecordTooLarge,
    RequestTimedOut,
    SerializationFailed,
)
from kcoord.client.producer import Producer, RecordMetadata
from kcoord.protocol import errors
from tests.unit.client.produce_broker import SILENT, WRITE_SILENTLY, ProduceBroker

SETTINGS: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 5, "retry_backoff_max_ms": 20}


@asynccontextmanager
async def both(partitions: int = 1, **options: Any) -> AsyncIterator[tuple[ProduceBroker, Producer]]:
    async with (
        ProduceBroker.run(partitions) as broker,
        Producer(bootstrap_servers=broker.bootstrap, **{**SETTINGS, **options}) as producer,
    ):
        yield broker, producer


async def send_all(producer: Producer, count: int, size: int = 20) -> list[asyncio.Future[RecordMetadata]]:
    return [await producer.send_nowait("t", b"%0*d" % (size, number), partition=0) for number in range(count)]


def numbers(broker: ProduceBroker) -> list[int]:
    return [int(value) for value in broker.logs[0]]


@pytest.mark.parametrize(
    "script",
    [
        [errors.NOT_LEADER_OR_FOLLOWER],
        [0, errors.NOT_ENOUGH_REPLICAS, 0, errors.NOT_ENOUGH_REPLICAS, 0, 0, errors.REQUEST_TIMED_OUT],
        [errors.CORRUPT_MESSAGE] * 6,
        [0, errors.COORDINATOR_LOAD_IN_PROGRESS],
    ],
)
async def test_refused_batches_are_sent_again_in_order(script: list[int]) -> None:
    async with both(batch_bytes_max=200) as (broker, producer):
        broker.script.extend(script)
        futures = await send_all(producer, 100)
        found = await asyncio.gather(*futures)
        assert numbers(broker) == list(range(100))
        assert [one.offset for one in found] == list(range(100))
        assert {header.producer_epoch for header in broker.headers} == {0}


@pytest.mark.parametrize("script", [[SILENT], [WRITE_SILENTLY], [0, WRITE_SILENTLY, SILENT, 0, WRITE_SILENTLY]])
async def test_lost_answers_write_nothing_twice(script: list[int]) -> None:
    async with both(batch_bytes_max=200, request_timeout_ms=300) as (broker, producer):
        broker.script.extend(script)
        await asyncio.gather(*await send_all(producer, 100))
        assert numbers(broker) == list(range(100))


async def test_a_broker_that_forgot_the_producer_gets_the_next_epoch() -> None:
    async with both() as (broker, producer):
        await asyncio.gather(*await send_all(producer, 10))
        broker.script.append(errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
        await asyncio.gather(*await send_all(producer, 10))
        assert numbers(broker) == [*range(10), *range(10)]
        assert broker.headers[-1].producer_epoch == 1
        broker.script.append(errors.UNKNOWN_PRODUCER_ID)
        await asyncio.gather(*await send_all(producer, 10))
        assert broker.headers[-1].producer_epoch == 2
        assert broker.producer_ids == 1


async def test_a_refused_batch_does_not_stop_the_ones_after_it() -> None:
    async with both(batch_bytes_max=200) as (broker, producer):
        broker.script.extend([0, errors.TOPIC_AUTHORIZATION_FAILED])
        results = await asyncio.gather(*await send_all(producer, 60), return_exceptions=True)
        failed = [number for number, result in enumerate(results) if isinstance(result, AuthorizationFailed)]
        assert failed == list(range(failed[0], failed[-1] + 1))
        assert len(failed) + len(numbers(broker)) == 60
        assert numbers(broker) == [number for number in range(60) if number not in failed]


async def test_batches_above_the_limit_of_the_broker_are_split() -> None:
    async with both(batch_bytes_max=100_000, linger_ms=50) as (broker, producer):
        broker.batch_bytes_max = 700
        futures = await send_all(producer, 100, 50)
        await producer.flush()
        assert [one.result().offset for one in futures] == list(range(100))
        assert numbers(broker) == list(range(100))
        with pytest.raises(RecordTooLarge):
            await producer.send("t", b"x" * 1000)
        await producer.send("t", b"100")
        assert numbers(broker)[-1] == 100


async def test_delivery_timeout() -> None:
    options = {"delivery_timeout_ms": 700, "request_timeout_ms": 300}
    async with both(**options) as (broker, producer):
        broker.script.extend([errors.NOT_ENOUGH_REPLICAS] * 1000)
        with pytest.raises(RequestTimedOut, match="NOT_ENOUGH_REPLICAS"):
            await producer.send("t", b"1")
        broker.script.clear()
        assert (await producer.send("t", b"2")).offset == 0
        # The first record was given up after it had its sequence number.
        assert broker.headers[-1].producer_epoch == 1


async def test_half_open_broker() -> None:
    options = {"delivery_timeout_ms": 700, "request_timeout_ms": 200}
    async with both(**options) as (broker, producer):
        broker.script.extend([SILENT] * 1000)
        with pytest.raises(RequestTimedOut):
            await producer.send("t", b"1")
        broker.script.clear()
        await producer.send("t", b"2")
        assert numbers(broker) == [2]


async def test_records_that_may_be_written_do_not_get_new_numbers() -> None:
    """Batch 1 is given up while nobody knows what became of batch 2, which was sent after it."""
    options = {"delivery_timeout_ms": 1000, "request_timeout_ms": 400, "batch_bytes_max": 100}
    async with both(**options) as (broker, producer):
        await producer.send("t", b"0", partition=0)
        broker.script.extend([SILENT] * 1000)
        first = await producer.send_nowait("t", b"1" * 50, partition=0)
        await asyncio.sleep(0.35)
        second = await producer.send_nowait("t", b"2" * 50, partition=0)
        with pytest.raises(RequestTimedOut):
            await first
        broker.script.clear()
        with pytest.raises((OutOfOrderSequence, RequestTimedOut)):
            await second
        await producer.send("t", b"3")
        assert numbers(broker) == [0, 3]


async def test_the_buffer_bounds_memory() -> None:
    async with both(buffer_bytes_max=10_000, max_block_ms=300) as (broker, producer):
        await producer.send("t", b"0")
        broker.held.clear()
        sent: list[asyncio.Future[RecordMetadata]] = []
        with pytest.raises(RequestTimedOut, match="buffer"):
            while len(sent) < 1000:
                sent.append(await producer.send_nowait("t", b"%0100d" % (len(sent) + 1)))
        assert 50 <= len(sent) <= 100
        waiting = asyncio.create_task(producer.send("t", b"%0100d" % (len(sent) + 1)))
        broker.held.set()
        await asyncio.gather(*sent, waiting)
        assert numbers(broker) == list(range(len(sent) + 2))


@pytest.mark.parametrize("acks", [0, 1])
async def test_other_acks(acks: int) -> None:
    async with both(acks=acks, batch_bytes_max=200) as (broker, producer):
        if acks:
            broker.script.append(errors.NOT_LEADER_OR_FOLLOWER)
        else:
            # With acks=0 a broker does not answer.
            broker.script.extend([WRITE_SILENTLY] * 1000)
        found = await asyncio.gather(*await send_all(producer, 50))
        assert broker.producer_ids == 0
        if acks:
            assert sorted(numbers(broker)) == list(range(50))
        else:
            assert {one.offset for one in found} == {-1}


async def test_wrong_use() -> None:
    wrong: list[dict[str, Any]] = [
        {"acks": "2"},
        {"compression_type": "x"},
        {"acks": 1, "enable_idempotence": True},
    ]
    for options in wrong:
        with pytest.raises(InvalidConfiguration):
            Producer(bootstrap_servers="a:1", **options)
    with pytest.raises(InvalidConfiguration):
        Producer(bootstrap_servers="a:1", delivery_timeout_ms=1)
    with pytest.raises(IllegalState):
        await Producer(bootstrap_servers="a:1").send("t", b"")
    async with both(max_block_ms=300) as (broker, producer):
        with pytest.raises(SerializationFailed):
            await producer.send("t", "text")
        with pytest.raises(SerializationFailed):
            await producer.send("t", b"", headers=[("a", 1)])  # type: ignore[list-item]
        with pytest.raises(KafkaError):
            await producer.send("t", b"", partition=1)
        with pytest.raises(RecordTooLarge):
            await producer.send("t", bytes(2_000_000))
        with pytest.raises(RequestTimedOut):
            await producer.send("other", b"")
        await producer.send("t", b"1")
    with pytest.raises(IllegalState):
        await producer.send("t", b"")
    assert numbers(broker) == [1]


async def test_stop_delivers_and_gives_up_at_its_limit() -> None:
    async with ProduceBroker.run() as broker:
        producer = Producer(bootstrap_servers=broker.bootstrap, linger_ms=60_000)
        await producer.start()
        sent = await producer.send_nowait("t", b"1")
        await producer.stop()
        assert sent.result().offset == 0
        producer = Producer(bootstrap_servers=broker.bootstrap)
        await producer.start()
        broker.script.extend([SILENT] * 10)
        sent = await producer.send_nowait("t", b"2")
        await producer.stop(0.2)
        with pytest.raises(IllegalState):
            await sent
