"""What tests do without a client of their own, as requests of an InnerClient. Errors are those of kcoord.client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kcoord.client.consumer.records import Chunk, ConsumerRecord
from kcoord.client.errors import check, error_for
from kcoord.client.producer.batch import record_bytes
from kcoord.client.producer.partitioner import partition_of_key
from kcoord.protocol import apis
from kcoord.protocol.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kcoord.protocol.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from kcoord.protocol.errors import UNKNOWN_TOPIC_OR_PARTITION
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kcoord.protocol.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kcoord.testing.double.watching import CoreView
from kcoord.testing.state.inner import InnerClient
from kcoord.testing.state.records import NewRecord, Position, Record, config_text
from kcoord.wire.record_batch import BatchBuilder

# The newest versions that identify topics by name, not by id.
CREATE_TOPICS_VERSION: Final = 7
DELETE_TOPICS_VERSION: Final = 6
FETCH_VERSION: Final = 12
METADATA_VERSION: Final = 12
OFFSET_COMMIT_VERSION: Final = 9
PRODUCE_VERSION: Final = 12

# The number of partitions is the setting num.partitions.
DEFAULT_PARTITIONS: Final = -1
DEFAULT_REPLICAS: Final = -1
ACKS_ALL: Final = -1
# Records of one request; a larger record has a request of its own.
BATCH_BYTES: Final = 256 * 1024
FETCH_BYTES: Final = 1024 * 1024
DECOMPRESSED_BYTES_MAX: Final = 1 << 30
ISOLATION_LEVELS: Final = {"read_uncommitted": 0, "read_committed": 1}
REQUEST_MS: Final = 10_000


def partitions_of(client: InnerClient, topic: str) -> dict[int, tuple[int, int]]:
    """The first offset and the high watermark of each partition. Raises UnknownTopicOrPartition."""
    found = CoreView(client.engine).ends(topic)
    if not found:
        raise error_for(UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r}", None)
    return found


async def create_topic(
    client: InnerClient, name: str, partitions: int = DEFAULT_PARTITIONS, configs: Mapping[str, object] | None = None
) -> None:
    """Raises BrokerError, such as TOPIC_ALREADY_EXISTS."""
    given = [CreatableTopicConfig(key, config_text(value)) for key, value in (configs or {}).items()]
    topic = CreatableTopic(name, partitions, DEFAULT_REPLICAS, [], given)
    request = CreateTopicsRequest([topic], REQUEST_MS, False)
    answer = await client.ask(apis.CREATE_TOPICS, CREATE_TOPICS_VERSION, request, CreateTopicsResponse)
    result = answer.topics[0]
    check(result.error_code, f"topic {name!r}", result.error_message)


async def delete_topic(client: InnerClient, name: str) -> None:
    """Raises BrokerError."""
    request = DeleteTopicsRequest([DeleteTopicState(name)], [], REQUEST_MS)
    answer = await client.ask(apis.DELETE_TOPICS, DELETE_TOPICS_VERSION, request, DeleteTopicsResponse)
    result = answer.responses[0]
    check(result.error_code, f"topic {name!r}", result.error_message)


async def list_topics(client: InnerClient) -> dict[str, int]:
    """The number of partitions of each topic that is not internal."""
    request = MetadataRequest(None, False)
    answer = await client.ask(apis.METADATA, METADATA_VERSION, request, MetadataResponse)
    found = {topic.name or "": len(topic.partitions) for topic in answer.topics if not topic.is_internal}
    return dict(sorted(found.items()))


async def _create_when_used(client: InnerClient, topic: str) -> None:
    """As a producer does with its first metadata: auto.create.topics.enable decides. Raises BrokerError."""
    if CoreView(client.engine).ends(topic):
        return
    request = MetadataRequest([MetadataRequestTopic(name=topic)], True)
    answer = await client.ask(apis.METADATA, METADATA_VERSION, request, MetadataResponse)
    if not CoreView(client.engine).ends(topic):
        check(answer.topics[0].error_code or UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r}")


async def produce(client: InnerClient, topic: str, records: Iterable[NewRecord]) -> list[Position]:
    """Write the records; their positions, in the same order. Raises BrokerError.

    A key chooses its partition as in Kafka's clients. Records without a key go where the fewest offsets are in use.
    """
    await _create_when_used(client, topic)
    ends = {partition: end for partition, (_, end) in partitions_of(client, topic).items()}
    now_ms = client.now_ms()
    batches: dict[int, list[tuple[int, NewRecord]]] = {}
    written: dict[int, Position] = {}
    sizes: dict[int, int] = {}
    for number, record in enumerate(records):
        partition = _choose(record, ends)
        if partition not in ends:
            raise error_for(UNKNOWN_TOPIC_OR_PARTITION, f"partition {topic}-{partition}")
        ends[partition] += 1
        size = record_bytes(record.key, record.value, record.headers)
        if partition in batches and sizes[partition] + size > BATCH_BYTES:
            written.update(await _write(client, topic, partition, batches.pop(partition), now_ms))
        if partition not in batches:
            batches[partition], sizes[partition] = [], 0
        batches[partition].append((number, record))
        sizes[partition] += size
    for partition, batch in batches.items():
        written.update(await _write(client, topic, partition, batch, now_ms))
    return [position for _, position in sorted(written.items())]


def _choose(record: NewRecord, ends: Mapping[int, int]) -> int:
    if record.partition is not None:
        return record.partition
    if record.key is not None:
        return partition_of_key(record.key, len(ends))
    return min(ends, key=lambda partition: (ends[partition], partition))


async def _write(
    client: InnerClient, topic: str, partition: int, batch: list[tuple[int, NewRecord]], now_ms: int
) -> dict[int, Position]:
    builder = BatchBuilder()
    for _, record in batch:
        time_ms = now_ms if record.timestamp_ms is None else record.timestamp_ms
        builder.append(time_ms, record.key, record.value, record.headers)
    data = PartitionProduceData(partition, builder.build(0, -1))
    request = ProduceRequest(None, ACKS_ALL, REQUEST_MS, [TopicProduceData(name=topic, partition_data=[data])])
    answer = await client.ask(apis.PRODUCE, PRODUCE_VERSION, request, ProduceResponse)
    result = answer.responses[0].partition_responses[0]
    check(result.error_code, f"partition {topic}-{partition}", result.error_message)
    return {number: Position(partition, result.base_offset + step) for step, (number, _) in enumerate(batch)}


async def read(
    client: InnerClient, topic: str, partition: int | None, start: int, limit: int | None, isolation: str
) -> list[Record]:
    """The records from offset `start` on, by partition and offset. Raises BrokerError, ValueError."""
    if isolation not in ISOLATION_LEVELS:
        raise ValueError(f"isolation is one of {', '.join(ISOLATION_LEVELS)}")
    found = partitions_of(client, topic)
    if partition is not None and partition not in found:
        raise error_for(UNKNOWN_TOPIC_OR_PARTITION, f"partition {topic}-{partition}")
    records: list[Record] = []
    for number, (first, _) in sorted(found.items()):
        if partition in (None, number):
            left = None if limit is None else limit - len(records)
            records += await _read_partition(client, topic, number, max(start, first), left, isolation)
    return records


async def _read_partition(
    client: InnerClient, topic: str, partition: int, offset: int, limit: int | None, isolation: str
) -> list[Record]:
    records: list[Record] = []
    end = partitions_of(client, topic)[partition][1]
    while offset < end and (limit is None or len(records) < limit):
        chunk = await _fetch(client, topic, partition, offset, isolation)
        wanted = end if limit is None else limit - len(records)
        records += [_record(one) for one in chunk.take(wanted) if one.offset < end]
        if chunk.next_offset == offset:
            break  # beyond the last stable offset
        offset = chunk.next_offset
    return records


def _record(read: ConsumerRecord) -> Record:
    return Record(read.partition, read.offset, read.key, read.value, read.headers, read.timestamp)


async def _fetch(client: InnerClient, topic: str, partition: int, offset: int, isolation: str) -> Chunk:
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    request = FetchRequest(
        max_bytes=FETCH_BYTES, isolation_level=ISOLATION_LEVELS[isolation],
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )  # fmt: skip
    answer = await client.ask(apis.FETCH, FETCH_VERSION, request, FetchResponse)
    check(answer.error_code, f"topic {topic!r}")
    data = answer.responses[0].partitions[0]
    check(data.error_code, f"partition {topic}-{partition} at offset {offset}")
    aborted = None
    if isolation == "read_committed":
        aborted = sorted((one.producer_id, one.first_offset) for one in data.aborted_transactions or [])
        aborted.sort(key=lambda pair: pair[1])
    return Chunk(topic, partition, offset, bytes(data.records or b""), aborted, DECOMPRESSED_BYTES_MAX, True)


async def commit(client: InnerClient, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Commit offsets of a group without members. Raises BrokerError; UNKNOWN_MEMBER_ID: it has members."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append(OffsetCommitRequestPartition(partition, offset, committed_metadata=""))
    named = [OffsetCommitRequestTopic(name=topic, partitions=parts) for topic, parts in topics.items()]
    request = OffsetCommitRequest(group, topics=named)
    answer = await client.ask(apis.OFFSET_COMMIT, OFFSET_COMMIT_VERSION, request, OffsetCommitResponse)
    for topic_result in answer.topics:
        for result in topic_result.partitions:
            where = f"group {group!r}, partition {topic_result.name}-{result.partition_index}"
            check(result.error_code, where)
