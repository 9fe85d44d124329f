"""The steady workloads that repeat one request: how each is prepared, as lanes for the load generator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kcoord.cli.bench.joining import GroupMember, join_classic, join_consumer
from kcoord.cli.bench.lanes import lane_plan
from kcoord.cli.bench.options import Options
from kcoord.cli.bench.target import Target
from kcoord.client.connection import Connection
from kcoord.client.load.frames import NUMBER, error_codes, parts_of, request_frame
from kcoord.client.metadata import Node, TopicMetadata
from kcoord.protocol import apis
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kcoord.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kcoord.protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kcoord.wire.message import Message
from kcoord.wire.record_batch import BatchBuilder

T = TypeVar("T")

FETCHED_PARTITIONS: Final = 5
DATA_PARTITIONS_MAX: Final = 32
# Connections that are prepared at the same time.
PREPARED_AT_ONCE: Final = 32
GROUPS_FROM: Final = 8
ALL_IN_SYNC: Final = -1
PRODUCE_TIMEOUT_MS: Final = 30_000
FETCH_WAIT_MS: Final = 500
# The first offset that is committed. It grows by one with each request.
FIRST_OFFSET: Final = 1


@dataclass(slots=True)
class Prepared:
    """The lanes of a workload, and the versions of the requests by name."""

    kind: str
    lanes: list[dict[str, Any]]
    versions: dict[str, int]
    in_flight: int


async def at_once(count: int, make: Callable[[int], Awaitable[T]]) -> list[T]:
    """The results of `make` for the numbers from 0 on."""
    gate = asyncio.Semaphore(PREPARED_AT_ONCE)

    async def one(number: int) -> T:
        async with gate:
            return await make(number)

    tasks = [asyncio.ensure_future(one(number)) for number in range(count)]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def lane(
    target: Target, options: Options, node: Node, api_key: int, build: Callable[[int], Message], answer: type[Message]
) -> dict[str, Any]:
    """A lane to a broker. Its request was answered once without an error.

    `build` makes the request with the number that grows. Raises KafkaError, such as UnsupportedVersion.
    """
    connection = await target.connect(node)
    try:
        version = connection.version(api_key)
        await target.ask(connection, api_key, version, build(FIRST_OFFSET), answer)
        parts = parts_of(request_frame(api_key, version, build(NUMBER)))
        return lane_plan(node.host, node.port, api_key, version, parts, options.in_flight, FIRST_OFFSET + 1)
    finally:
        await connection.close()


def prepared(options: Options, api_key: int, lanes: list[dict[str, Any]]) -> Prepared:
    return Prepared("lanes", lanes, {apis.APIS[api_key].name: lanes[0]["version"]}, options.in_flight)


# --- groups


def commit_request(member: GroupMember, topic: TopicMetadata, count: int, offset: int) -> OffsetCommitRequest:
    partitions = [OffsetCommitRequestPartition(number, offset) for number in range(count)]
    topics = [OffsetCommitRequestTopic(topic.name, topic.topic_id, partitions)]
    return OffsetCommitRequest(member.group_id, member.epoch, member.member_id, topics=topics)


def offset_fetch_request(
    version: int, group_id: str, topic: TopicMetadata, partitions: list[int]
) -> OffsetFetchRequest:  # fmt: skip
    if version < GROUPS_FROM:
        return OffsetFetchRequest(group_id, [OffsetFetchRequestTopic(topic.name, partitions)])
    topics = [OffsetFetchRequestTopics(topic.name, topic.topic_id, partitions)]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id, topics=topics)])


async def prepare_commits(target: Target, options: Options, count: int, groups: str = "commit") -> Prepared:
    """OffsetCommit of `count` partitions, by one member of a classic group for each connection.

    `groups` is the beginning of the names of the groups, whose members stay until the end of all workloads.
    """
    topic = await target.topic(f"offsets-{count}", count)

    async def one(number: int) -> dict[str, Any]:
        member = await join_classic(target, f"{groups}-{count}-{number}", topic)

        def build(offset: int) -> Message:
            return commit_request(member, topic, count, offset)

        return await lane(target, options, member.node, apis.OFFSET_COMMIT, build, OffsetCommitResponse)

    return prepared(options, apis.OFFSET_COMMIT, await at_once(options.connections, one))


async def prepare_offset_fetch(target: Target, options: Options) -> Prepared:
    """OffsetFetch of FETCHED_PARTITIONS committed offsets, from one group for each connection."""
    count = FETCHED_PARTITIONS
    topic = await target.topic(f"offsets-{count}", count)
    numbers = list(range(count))

    async def one(number: int) -> dict[str, Any]:
        member = await join_classic(target, f"offset-fetch-{number}", topic)
        connection = await target.connect(member.node)
        try:
            version = connection.version(apis.OFFSET_COMMIT)
            commit = commit_request(member, topic, count, FIRST_OFFSET)
            await target.ask(connection, apis.OFFSET_COMMIT, version, commit, OffsetCommitResponse)
            request = offset_fetch_request(connection.version(apis.OFFSET_FETCH), member.group_id, topic, numbers)
        finally:
            await connection.close()
        return await lane(target, options, member.node, apis.OFFSET_FETCH, lambda _: request, OffsetFetchResponse)

    return prepared(options, apis.OFFSET_FETCH, await at_once(options.connections, one))


async def prepare_heartbeats(target: Target, options: Options) -> Prepared:
    """Heartbeat of the one member of a classic group for each connection."""
    topic = await target.topic("offsets-1", 1)

    async def one(number: int) -> dict[str, Any]:
        member = await join_classic(target, f"heartbeat-{number}", topic)
        request = HeartbeatRequest(member.group_id, member.epoch, member.member_id)
        return await lane(target, options, member.node, apis.HEARTBEAT, lambda _: request, HeartbeatResponse)

    return prepared(options, apis.HEARTBEAT, await at_once(options.connections, one))


async def prepare_consumer_heartbeats(target: Target, options: Options) -> Prepared:
    """ConsumerGroupHeartbeat without news, of the one member of a consumer group for each connection."""
    topic = await target.topic("offsets-1", 1)

    async def one(number: int) -> dict[str, Any]:
        member = await join_consumer(target, f"consumer-heartbeat-{number}", topic)
        request = ConsumerGroupHeartbeatRequest(member.group_id, member.member_id, member.epoch)
        return await lane(
            target, options, member.node, apis.CONSUMER_GROUP_HEARTBEAT, lambda _: request,
            ConsumerGroupHeartbeatResponse,
        )  # fmt: skip

    return prepared(options, apis.CONSUMER_GROUP_HEARTBEAT, await at_once(options.connections, one))


# --- records


def batch(options: Options, producer_id: int = -1, epoch: int = -1, sequence: int = -1) -> bytes:
    """A batch of records; with a producer id it is part of a transaction."""
    builder = BatchBuilder()
    now_ms = int(time.time() * 1000)
    for _ in range(options.batch_records):
        builder.append(now_ms, None, bytes(options.record_bytes))
    return builder.build(0, -1, producer_id, epoch, sequence, transactional=producer_id >= 0)


def produce_request(
    topic: TopicMetadata, partition: int, records: bytes, transactional_id: str | None = None
) -> ProduceRequest:
    data = [TopicProduceData(topic.name, topic.topic_id, [PartitionProduceData(partition, records)])]
    return ProduceRequest(transactional_id, ALL_IN_SYNC, PRODUCE_TIMEOUT_MS, data)


def data_partitions(options: Options) -> int:
    return min(options.connections, DATA_PARTITIONS_MAX)


async def prepare_produce(target: Target, options: Options) -> Prepared:
    """Produce of one batch with acks=all, each connection to the leader of its partition."""
    topic = await target.topic("produce", data_partitions(options))
    records = batch(options)

    async def one(number: int) -> dict[str, Any]:
        partition = number % len(topic.partitions)
        request = produce_request(topic, partition, records)
        node = target.leader(topic, partition)
        return await lane(target, options, node, apis.PRODUCE, lambda _: request, ProduceResponse)

    return prepared(options, apis.PRODUCE, await at_once(options.connections, one))


async def prepare_fetch(target: Target, options: Options) -> Prepared:
    """Fetch of the same `fetch_bytes` of records again and again, each connection from its partition."""
    count = data_partitions(options)
    topic = await target.topic("fetch", count)
    await at_once(count, lambda number: _fill(target, options, topic, number))

    async def one(number: int) -> dict[str, Any]:
        partition = number % count
        wanted = FetchPartition(partition, partition_max_bytes=options.fetch_bytes)
        request = FetchRequest(
            max_wait_ms=FETCH_WAIT_MS, min_bytes=1, max_bytes=options.fetch_bytes,
            topics=[FetchTopic(topic.name, topic.topic_id, [wanted])],
        )  # fmt: skip
        return await lane(
            target, options, target.leader(topic, partition), apis.FETCH, lambda _: request, FetchResponse
        )

    return prepared(options, apis.FETCH, await at_once(options.connections, one))


async def _fill(target: Target, options: Options, topic: TopicMetadata, partition: int) -> None:
    """Write a little more to a partition than one Fetch may return."""
    connection: Connection = await target.connect(target.leader(topic, partition))
    try:
        version = connection.version(apis.PRODUCE)
        records = batch(options)
        request = produce_request(topic, partition, records)
        for _ in range(options.fetch_bytes // len(records) + 1):
            answer = await target.ask(connection, apis.PRODUCE, version, request, ProduceResponse)
            assert not error_codes(answer)
    finally:
        await connection.close()
