"""aiokafka against a server process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic

from tests.e2e.process import ServerProcess

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]
WAIT_S = 60.0


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data: Path = tmp_path_factory.mktemp("aiokafka") / "data"
    with ServerProcess(data) as server:
        yield server.bootstrap
        assert server.stop() == 0


def consumer(bootstrap: str, *topics: str, group: str | None, **settings: object) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        *topics, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest",
        enable_auto_commit=False, **settings,
    )  # fmt: skip


async def read(one: AIOKafkaConsumer, count: int) -> list[bytes]:
    return [(await asyncio.wait_for(one.getone(), WAIT_S)).value for _ in range(count)]


@pytest.mark.parametrize("codec", CODECS)
async def test_produce_and_consume(bootstrap: str, codec: str | None) -> None:
    topic = f"codec-{codec}"
    values = [f"value {number} ".encode() * 20 for number in range(200)]
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, compression_type=codec, linger_ms=20, enable_idempotence=True
    ) as producer:
        futures = [await producer.send(topic, value, key=b"k", headers=[("h", b"1")]) for value in values]
        offsets = [(await future).offset for future in futures]
    assert offsets == list(range(200))
    async with consumer(bootstrap, topic, group=None) as one:
        assert await read(one, 200) == values


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_acks(bootstrap: str, acks: int | str) -> None:
    topic = f"acks-{acks}"
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks=acks) as producer:
        for number in range(3):
            await producer.send_and_wait(topic, str(number).encode())
    async with consumer(bootstrap, topic, group=None) as one:
        assert await read(one, 3) == [b"0", b"1", b"2"]


async def test_a_group_resumes_where_it_was(bootstrap: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in range(10):
            await producer.send_and_wait("resume", str(number).encode())
    async with consumer(bootstrap, "resume", group="resuming") as one:
        assert await read(one, 4) == [b"0", b"1", b"2", b"3"]
        await one.commit({TopicPartition("resume", 0): 4})
    async with consumer(bootstrap, "resume", group="resuming") as one:
        assert await one.committed(TopicPartition("resume", 0)) == 4
        assert await read(one, 6) == [b"4", b"5", b"6", b"7", b"8", b"9"]


async def test_members_come_and_go(bootstrap: str) -> None:
    """1 to 5 members and back to 1: every partition always has an owner again, and nothing is read by nobody."""

    async def settle(members: list[AIOKafkaConsumer]) -> None:
        wanted = {TopicPartition("crowd", number) for number in range(6)}

        async def shared() -> None:
            while True:
                owned = [tp for one in members for tp in one.assignment()]
                if len(owned) == 6 and set(owned) == wanted:
                    return
                await asyncio.sleep(0.02)

        await asyncio.wait_for(shared(), WAIT_S)

    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic("crowd", 6, 1)])
    members: list[AIOKafkaConsumer] = []
    seen: set[bytes] = set()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:

        async def round_trip(name: str) -> None:
            values = {f"{name} {number}".encode() for number in range(30)}
            for number, value in enumerate(sorted(values)):
                await producer.send_and_wait("crowd", value, partition=number % 6)

            async def gather() -> None:
                while not values <= seen:
                    for one in members:
                        for records in (await one.getmany(timeout_ms=20)).values():
                            seen.update(record.value for record in records)

            await asyncio.wait_for(gather(), WAIT_S)

        for count in range(1, 6):
            one = consumer(bootstrap, "crowd", group="crowd", heartbeat_interval_ms=100, session_timeout_ms=30_000)
            await one.start()
            members.append(one)
            await settle(members)
            await round_trip(f"up to {count}")
        for count in (4, 3, 2, 1):
            await members.pop(0).stop()
            await settle(members)
            await round_trip(f"down to {count}")
    (group,) = (await admin.describe_consumer_groups(["crowd"]))[0].groups
    assert group[2] == "Stable" and len(group[5]) == 1
    await members.pop().stop()
    await admin.close()


async def test_admin(bootstrap: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic("admin", 2, 1, topic_configs={"retention.ms": "1234"})])
        assert "admin" in await admin.list_topics()
        (described,) = await admin.describe_topics(["admin"])
        assert len(described["partitions"]) == 2
        await admin.create_partitions({"admin": NewPartitions(3)})
        (described,) = await admin.describe_topics(["admin"])
        assert len(described["partitions"]) == 3
        async with consumer(bootstrap, "admin", group="admins") as one:
            await one.commit({TopicPartition("admin", 1): 0})
        assert ("admins", "consumer") in [tuple(group)[:2] for group in await admin.list_consumer_groups()]
        offsets = await admin.list_consumer_group_offsets("admins")
        assert offsets[TopicPartition("admin", 1)].offset == 0
        await admin.delete_topics(["admin"])
        assert "admin" not in await admin.list_topics()
    finally:
        await admin.close()
