"""What strangers do to a server with whole requests: valid ones that cost much, and damaged ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Final

from kcoord.codegen.schema import Field, Message
from kcoord.protocol import apis
from kcoord.protocol.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_topics import DeleteTopicsRequest
from kcoord.protocol.describe_groups import DescribeGroupsRequest
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.errors import MEMBER_ID_REQUIRED, NONE, TOPIC_ALREADY_EXISTS
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.list_groups import ListGroupsRequest
from kcoord.protocol.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kcoord.protocol.metadata import MetadataRequest
from kcoord.protocol.offset_fetch import OffsetFetchRequest
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.wire.compression import CODEC_GZIP, CODEC_LZ4, CODEC_SNAPPY, CODEC_ZSTD
from kcoord.wire.record_batch import BatchBuilder
from tests.fuzz.engine_fuzz import Generator, damage, frame_of
from tests.harness.engine import request_frame
from tests.strangers import requests
from tests.strangers.connection import Connection
from tests.strangers.rogue import ANSWER_S, GROUPS, SILENT_S, TOPIC, Rogue, opening, send_and_wait

CODECS: Final = (CODEC_GZIP, CODEC_SNAPPY, CODEC_LZ4, CODEC_ZSTD)
# What one batch becomes: some are beyond the limit (decompressed.max.bytes), and some below.
BOMB_BYTES: Final = (4 << 20, 60 << 20, 80 << 20)
SNAPPY_BOMB_BYTES: Final = 16 << 20
DENSE_RECORDS: Final = 100_000
# The topic in which strangers look up offsets by time. All its batches are compressed.
TIMES: Final = "strange-times"
TIMES_PARTITIONS: Final = 32
TIMES_BATCHES: Final = 2
TIMES_RECORDS: Final = 5_000
HOUR_MS: Final = 3_600_000
FLOOD_FRAMES: Final = (50, 500)
STORM_S: Final = (0.5, 4.0)
STORM_MEMBERS: Final = 30
# Damaged requests must not change what is everybody's: configs, and thousands of partitions that stay.
NOT_DAMAGED: Final = frozenset(
    (apis.ALTER_CONFIGS, apis.INCREMENTAL_ALTER_CONFIGS, apis.CREATE_TOPICS, apis.CREATE_PARTITIONS)
)
NAMES: Final = (TOPIC, TIMES, *GROUPS, "", "x" * 300, "strange name", "range", "consumer")


def produce(topic: str, partition: int, batch: bytes, transactional_id: str | None = None) -> bytes:
    data = [TopicProduceData(topic, partition_data=[PartitionProduceData(partition, batch)])]
    return request_frame(apis.PRODUCE, 9, ProduceRequest(transactional_id, -1, 10_000, data))


@cache
def records(codec: int, count: int, value_bytes: int, later_ms: int = 0) -> bytes:
    """A compressed batch of records that have nothing in them but zeros."""
    builder = BatchBuilder()
    now_ms = int(time.time() * 1000)
    for _ in range(count):
        builder.append(now_ms + later_ms, None, bytes(value_bytes))
    return builder.build(0, 0, codec=codec)


async def prepare(port: int) -> None:
    """Make the topics of the strangers. Raises OSError if the server is killed meanwhile."""
    connection = Connection(port)
    try:
        await connection.open()
        topics = [CreatableTopic(TIMES, TIMES_PARTITIONS, 1), CreatableTopic(TOPIC, 4, 1)]
        made = await connection.ask(apis.CREATE_TOPICS, 5, CreateTopicsRequest(topics))
        if any(one.error_code not in (NONE, TOPIC_ALREADY_EXISTS) for one in made.topics):
            raise OSError(f"the topics of the strangers were not made: {[one.error_code for one in made.topics]}")
        for number in range(TIMES_BATCHES):
            batch = await asyncio.to_thread(records, CODEC_ZSTD, TIMES_RECORDS, 0, number * HOUR_MS)
            for partition in range(TIMES_PARTITIONS):
                await connection.send(produce(TIMES, partition, batch))
                await connection.receive_frame()
    finally:
        connection.close()


def costly(rogue: Rogue) -> bytes:
    """A frame whose answer is large."""
    everything = [FetchPartition(number, partition_max_bytes=1 << 20) for number in range(TIMES_PARTITIONS)]
    fetch = FetchRequest(max_wait_ms=0, max_bytes=50 << 20, topics=[FetchTopic(TIMES, partitions=everything)])
    made: list[requests.Request] = [
        (apis.FETCH, 11, fetch),
        (apis.METADATA, 9, MetadataRequest(None, allow_auto_topic_creation=False)),
        (apis.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(list(GROUPS))),
        (apis.OFFSET_FETCH, 7, OffsetFetchRequest(GROUPS[0], None)),
        (apis.LIST_GROUPS, 4, ListGroupsRequest()),
        (apis.INIT_PRODUCER_ID, 4, InitProducerIdRequest(None, 60_000)),
        requests.commit(GROUPS[0], TOPIC, rogue.rng.randrange(1000)),
    ]  # fmt: skip
    return request_frame(*rogue.rng.choice(made))


async def flood(rogue: Rogue) -> int:
    """Pipelined requests whose answers nobody reads."""
    rng = rogue.rng

    async def one() -> int:
        connection = rogue.connection(receive_buffer_bytes=4096)
        try:
            await connection.open()
            count = rng.choice(FLOOD_FRAMES)
            frames = (
                costly(rogue) * count
                if rng.random() < 0.5
                else b"".join(rng.choice(opening(rng)) for _ in range(count))
            )
            async with asyncio.timeout(rng.uniform(*SILENT_S)):
                while True:
                    await connection.send(frames)
        except (OSError, TimeoutError):
            return 1
        finally:
            await rogue.leave(connection)

    return sum(await asyncio.gather(*(one() for _ in range(rng.randint(1, 30)))))


async def bombs(rogue: Rogue) -> int:
    """Compressed batches that become very large, or have very many records."""
    rng = rogue.rng
    made = []
    for _ in range(rng.randint(1, 12)):
        codec = rng.choice(CODECS)
        size = SNAPPY_BOMB_BYTES if codec == CODEC_SNAPPY else rng.choice(BOMB_BYTES)
        shape = (codec, DENSE_RECORDS, 0) if rng.random() < 0.3 else (codec, 1, size)
        batch = await asyncio.to_thread(records, *shape)
        frame = produce(TOPIC, rng.randrange(4), batch)
        made.append(send_and_wait(rogue, frame * rng.randint(1, 8), rng.uniform(*SILENT_S)))
    return sum(await asyncio.gather(*made))


async def lookups(rogue: Rogue) -> int:
    """Offsets by time in many partitions, where each lookup has to look into a compressed batch."""
    rng = rogue.rng

    def frame() -> bytes:
        now_ms = int(time.time() * 1000)
        times = [now_ms + rng.randrange(-HOUR_MS, TIMES_BATCHES * HOUR_MS) for _ in range(TIMES_PARTITIONS)]
        parts = [ListOffsetsPartition(number, -1, at) for number, at in enumerate(times)]
        return request_frame(apis.LIST_OFFSETS, 7, ListOffsetsRequest(-1, 0, [ListOffsetsTopic(TIMES, parts)]))

    made = []
    for _ in range(rng.randint(1, 20)):
        data = b"".join(frame() for _ in range(rng.randint(1, 20)))
        made.append(send_and_wait(rogue, data, rng.uniform(*SILENT_S)))
    return sum(await asyncio.gather(*made))


class StrangeGenerator(Generator):
    """Random requests about the names of strangers only, so that no damage makes them requests about others."""

    def __init__(self, rogue: Rogue) -> None:
        super().__init__(rogue.rng)
        for api_key in NOT_DAMAGED:
            self.requests.pop(api_key, None)

    def one(self, message: Message, field: Field, version: int) -> Any:
        if field.struct is None and field.element == "string":
            return self.rng.choice(NAMES)
        return super().one(message, field, version)


async def damaged(rogue: Rogue) -> int:
    """Random requests of all APIs, about half of them with flipped bits, cut, or with other damage."""
    rng = rogue.rng
    generator = await asyncio.to_thread(StrangeGenerator, rogue)
    made = []
    for _ in range(rng.randint(1, 60)):
        frames = []
        for number in range(rng.choice((1, 3, 20))):
            api_key, version, body = generator.request()
            frames.append(damage(rng, frame_of(api_key, version, number, body)))
        made.append(send_and_wait(rogue, b"".join(frames), rng.random()))
    return sum(await asyncio.gather(*made))


async def storm(rogue: Rogue) -> int:
    """Members that join groups and leave at once, or are gone."""
    rng = rogue.rng
    ends_at = time.monotonic() + rng.uniform(*STORM_S)

    async def classic(connection: Connection, group: str) -> None:
        made = await connection.ask(*requests.join(group, TOPIC))
        if made.error_code == MEMBER_ID_REQUIRED:
            made = await connection.ask(*requests.join(group, TOPIC, made.member_id))
        if made.error_code == NONE and rng.random() < 0.7:
            is_leader = made.leader == made.member_id
            await connection.ask(*requests.sync(group, made.generation_id, made.member_id, TOPIC, is_leader))
        if rng.random() < 0.7:
            await connection.ask(*requests.leave(group, made.member_id))

    async def consumer(connection: Connection, group: str) -> None:
        member = f"stormy-{rng.randrange(1 << 40)}"
        made = await connection.ask(*requests.heartbeat(group, member, 0, TOPIC))
        for _ in range(rng.randrange(3)):
            made = await connection.ask(*requests.heartbeat(group, member, made.member_epoch, TOPIC))
        if rng.random() < 0.7:
            await connection.ask(*requests.heartbeat(group, member, -1, TOPIC))

    async def one(connection: Connection) -> None:
        group = rng.choice(GROUPS)
        if rng.random() < 0.5:
            await classic(connection, group)
        else:
            await consumer(connection, group + "-consumer")

    return await many(rogue, ends_at, one)


async def transactions(rogue: Rogue) -> int:
    """Producers with the same few transactional ids that fence each other and leave their transactions open."""
    rng = rogue.rng
    ends_at = time.monotonic() + rng.uniform(*STORM_S)

    async def transaction(connection: Connection) -> None:
        name = rng.choice(GROUPS)
        init = InitProducerIdRequest(name, rng.choice((1_000, 60_000)))
        made = await connection.ask(apis.INIT_PRODUCER_ID, 4, init)
        partition = rng.randrange(4)
        parts = [AddPartitionsToTxnTopic(TOPIC, [partition])]
        add = AddPartitionsToTxnRequest(None, name, made.producer_id, made.producer_epoch, parts)
        await connection.ask(apis.ADD_PARTITIONS_TO_TXN, 3, add)
        builder = BatchBuilder()
        builder.append(int(time.time() * 1000), None, b"transactional")
        batch = builder.build(0, 0, max(made.producer_id, 0), max(made.producer_epoch, 0), 0, True)
        await connection.send(produce(TOPIC, partition, batch, name))
        if rng.random() < 0.5:
            await connection.receive_frame()
        if rng.random() < 0.5:
            end = EndTxnRequest(name, made.producer_id, made.producer_epoch, rng.random() < 0.5)
            await connection.send(request_frame(apis.END_TXN, 3, end))

    return await many(rogue, ends_at, transaction)


async def many(rogue: Rogue, ends_at: float, work: Callable[[Connection], Awaitable[None]]) -> int:
    """Some connections at a time, each for one piece of work, until then. Returns how many were done."""

    async def one() -> int:
        count = 0
        while time.monotonic() < ends_at:
            connection = rogue.connection()
            try:
                await connection.open()
                async with asyncio.timeout(ANSWER_S):
                    await work(connection)
                count += 1
            except (OSError, TimeoutError):
                await asyncio.sleep(0.05)
            finally:
                await rogue.leave(connection)
        return count

    return sum(await asyncio.gather(*(one() for _ in range(rogue.rng.randint(2, STORM_MEMBERS)))))


async def topics(rogue: Rogue) -> int:
    """Topics that are made and deleted again, in one breath or two."""
    rng = rogue.rng
    names = [f"strange-{rng.randrange(1 << 30)}" for _ in range(rng.randint(1, 10))]
    made = [CreatableTopic(name, rng.randint(1, 8), 1) for name in names]
    create = request_frame(apis.CREATE_TOPICS, 5, CreateTopicsRequest(made))
    delete = request_frame(apis.DELETE_TOPICS, 4, DeleteTopicsRequest(topic_names=names))
    await send_and_wait(rogue, create, rng.choice((0.0, 1.0)))
    sent = 0
    # A kill may come between. What is left then is for the end of the run.
    for _ in range(3):
        sent += await send_and_wait(rogue, delete, 0.5)
    return sent
