"""A cluster of three brokers in one server fails over under Kafka's Java client, in both group protocols.

tests/double/test_cluster.py has the clients of Python, and examples/go/failover_test.go has franz-go.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from kcoord.testing.fixture import KcoordServer
from tests.harness.retries import CLASSIC, CONSUMER, SETTINGS, Raised
from tests.interop.java_steps import JavaConsumer, JavaProducer, JavaSteps

PARTITIONS = 6
MEMBERS = 2
STEP = 60
WAIT_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[KcoordServer]:
    with KcoordServer(SETTINGS, brokers=3) as cluster:
        yield cluster


class Work:
    """A producer that waits for each record, and consumers that commit after each poll."""

    def __init__(self, steps: JavaSteps, cluster: KcoordServer, name: str, protocol: str) -> None:
        self.name = name
        self.written = 0
        self.values: list[str] = []
        # By partition, the offset that a commit has confirmed.
        self.committed = dict.fromkeys(range(PARTITIONS), 0)
        self.repeated: list[tuple[int, int]] = []
        self.raised: list[str] = []
        self._producer = JavaProducer(steps, cluster.bootstrap, name, is_transactional=False)
        self._consumers = [
            JavaConsumer(steps, cluster.bootstrap, name, protocol, **{"max.poll.records": 20}) for _ in range(MEMBERS)
        ]
        self._is_over = False
        # Nothing is written any more.
        self._is_written = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._produce()),
            *map(asyncio.create_task, map(self._consume, self._consumers)),
        ]

    async def _produce(self) -> None:
        await self._producer.start()
        while not self._is_over:
            await self._producer.send(self.name, str(self.written).encode(), self.written % PARTITIONS)
            self.written += 1
        self._is_written = True
        await self._producer.close()

    async def _consume(self, consumer: JavaConsumer) -> None:
        await consumer.start()
        while not self._is_written or len(set(self.values)) < self.written:
            try:
                records = await consumer.poll_records(0.05)
                for partition, offset, value in records:
                    self.values.append(value)
                    if offset < self.committed[partition]:
                        self.repeated.append((partition, offset))
                if records:
                    await consumer.commit()
            except Raised as error:
                # A commit between two generations: its records come again.
                self.raised.append(error.name)
                continue
            for partition, offset, _ in records:
                self.committed[partition] = max(self.committed[partition], offset + 1)
        await consumer.close()

    async def more(self) -> None:
        """Until so many more records were written and read."""
        written, read = self.written + STEP, len(self.values) + STEP
        end = time.monotonic() + WAIT_S
        while self.written < written or len(self.values) < read:
            for task in self._tasks:
                if task.done():
                    task.result()
            assert time.monotonic() < end, f"{self.written} written, {len(self.values)} read, {self.raised}"
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        self._is_over = True
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*self._tasks)


@pytest.mark.parametrize("protocol", [CLASSIC, CONSUMER])
async def test_a_failover(steps: JavaSteps, cluster: KcoordServer, protocol: str) -> None:
    """The coordinator stops, then it moves, then the leaders move: no committed record is lost or repeated."""
    name = f"orders-{protocol}"
    await asyncio.to_thread(cluster.create_topic, name, PARTITIONS)
    work = Work(steps, cluster, name, protocol)
    work.start()
    await work.more()
    stopped = cluster.coordinator(name)
    cluster.stop_broker(stopped)
    await work.more()
    cluster.start_broker(stopped)
    cluster.move_coordinator(name, stopped)
    await work.more()
    for partition in range(PARTITIONS):
        cluster.move_leader(name, partition, stopped)
    await work.more()
    await work.stop()
    assert work.repeated == []
    assert set(work.values) == {str(number) for number in range(work.written)}
    ends = {(name, partition): len(range(partition, work.written, PARTITIONS)) for partition in range(PARTITIONS)}
    assert cluster.committed(name) == ends
    errors = {error for one in cluster.requests() for error in one.errors}
    assert "NOT_COORDINATOR" in errors
    assert errors & {"NOT_LEADER_OR_FOLLOWER", "FENCED_LEADER_EPOCH"}
