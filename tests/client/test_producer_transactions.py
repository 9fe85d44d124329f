"""The producer's transactions with kcoord. tests/interop/test_client_transactions.py has the same with Kafka."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kcoord.client import TopicPartition
from kcoord.client.errors import KafkaError
from kcoord.client.producer import transactions
from kcoord.client.producer.producer import Producer
from kcoord.testing.fixture import KcoordServer
from tests.client import transacting
from tests.client.producing import create_topic
from tests.harness import kcoord_server


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The version of transactions that the producer uses; for version 1 it overlooks the level of the cluster."""
    if request.param == 1:
        monkeypatch.setattr(transactions, "V2", 99)
    found: int = request.param
    return found


async def test_transactions(kcoord: KcoordServer, version: int) -> None:
    await transacting.check_transactions(kcoord.bootstrap, "t")


async def test_fencing(kcoord: KcoordServer, version: int) -> None:
    await transacting.check_fencing(kcoord.bootstrap, "t")


async def test_fenced_while_sending(kcoord: KcoordServer, version: int) -> None:
    await transacting.check_fenced_while_sending(kcoord.bootstrap, "t")


async def test_abortable_errors(kcoord: KcoordServer, version: int) -> None:
    await transacting.check_abortable(kcoord.bootstrap, "t")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_the_sample_of_kip_447(kcoord: KcoordServer, version: int, protocol: str) -> None:
    await transacting.check_sample(kcoord.bootstrap, protocol)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_old_generations(kcoord: KcoordServer, version: int, protocol: str) -> None:
    await transacting.check_old_generation(kcoord.bootstrap, protocol)


async def test_killed_servers(tmp_path: Path, version: int) -> None:
    """kill -9 during transactions: each is read as a whole and once, or not at all, as its commit or abort said."""
    with kcoord_server.KcoordServer(data=tmp_path / "data") as server:
        await create_topic(server.bootstrap, "t")
        # Offsets of a topic that does not exist would be refused until the deadline.
        await create_topic(server.bootstrap, "source")
        kept: list[int] = []
        count = 0
        async with transacting.producer(server.bootstrap, "tx", max_block_ms=15_000) as one:
            await one.init_transactions()
            killer = asyncio.create_task(_kill(server, 2))
            while not killer.done() or count < 5:
                if await _transaction(one, count):
                    kept.append(count)
                count += 1
            await killer
        values = await transacting.committed(server.bootstrap, "t", 12 * len(kept))
    assert values == [b"%d-%d" % (number, step) for part in range(3) for number in kept for step in range(part, 12, 3)]
    assert len(kept) >= 3


async def _transaction(one: Producer, number: int) -> bool:
    """Records in three partitions, and offsets; every fifth is aborted. Whether the transaction was committed."""
    try:
        await one.begin_transaction()
        for step in range(12):
            await one.send_nowait("t", b"%d-%d" % (number, step), partition=step % 3)
            await asyncio.sleep(0)
        await one.send_offsets_to_transaction({TopicPartition("source", 0): number}, "g")
        if number % 5 != 4:
            await one.commit_transaction()
            return True
    except KafkaError:
        # Fatal errors are raised again by the abort.
        pass
    await one.abort_transaction()
    return False


async def _kill(server: kcoord_server.KcoordServer, times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0.4)
        await asyncio.to_thread(server.stop, True)
        await asyncio.to_thread(server.start)
    await asyncio.sleep(0.2)
