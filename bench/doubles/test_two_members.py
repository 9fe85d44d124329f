"""The test of bench/fixture.py in Python, DOUBLES_TESTS times, with the fixture: in each test one member has all
partitions, a second one joins, each has half of them and reads its records, and both leave. Select one with `-k`.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial

import pytest
from confluent_kafka import Consumer, Producer

from kcoord.client import Consumer as OwnConsumer
from kcoord.client import Producer as OwnProducer
from kcoord.testing.fixture import KcoordServer

TESTS = range(int(os.environ.get("DOUBLES_TESTS", "1")))
PARTITIONS = 4
LIMIT_S = 60.0


def join(kcoord: KcoordServer) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": kcoord.bootstrap,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "range",
            "heartbeat.interval.ms": 100,
        }
    )
    consumer.subscribe(["orders"])
    return consumer


@pytest.mark.parametrize("number", TESTS)
def test_confluent_kafka(kcoord: KcoordServer, number: int) -> None:
    end = time.monotonic() + LIMIT_S
    kcoord.create_topic("orders", partitions=PARTITIONS)
    first = join(kcoord)
    while len(first.assignment()) < PARTITIONS:
        first.poll(0.01)
        assert time.monotonic() < end
    second = join(kcoord)
    while not len(first.assignment()) == len(second.assignment()) == PARTITIONS // 2:
        first.poll(0.01)
        second.poll(0.01)
        assert time.monotonic() < end
    producer = Producer({"bootstrap.servers": kcoord.bootstrap, "linger.ms": 0})
    for partition in range(PARTITIONS):
        producer.produce("orders", b"order", partition=partition)
    assert producer.flush(LIMIT_S) == 0
    read = 0
    while read < PARTITIONS:
        read += sum(consumer.poll(0.01) is not None for consumer in (first, second))
        assert time.monotonic() < end
    for consumer in (first, second):
        consumer.close()


@pytest.mark.parametrize("number", TESTS)
async def test_own_client(kcoord: KcoordServer, number: int) -> None:
    kcoord.create_topic("orders", partitions=PARTITIONS)
    member = partial(
        OwnConsumer,
        "orders",
        bootstrap_servers=kcoord.bootstrap,
        group_id="billing",
        group_protocol="classic",
        auto_offset_reset="earliest",
        partition_assignment_strategy=["range"],
        heartbeat_interval_ms=100,
    )
    async with asyncio.timeout(LIMIT_S), member() as first, OwnProducer(bootstrap_servers=kcoord.bootstrap) as producer:
        while len(first.assignment()) < PARTITIONS:
            await first.poll(0.01)
        async with member() as second:
            while not len(first.assignment()) == len(second.assignment()) == PARTITIONS // 2:
                await asyncio.gather(first.poll(0.01), second.poll(0.01))
            for partition in range(PARTITIONS):
                await producer.send("orders", b"order", partition=partition)
            read = 0
            while read < PARTITIONS:
                read += sum(map(len, await asyncio.gather(first.poll(0.01), second.poll(0.01))))
