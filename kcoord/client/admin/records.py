"""Records and their times, read from partitions without a consumer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kcoord.client.admin.results import FetchedBatches
from kcoord.client.admin.spread import Spread, only
from kcoord.client.connection import Connection
from kcoord.client.deadline import Deadline
from kcoord.client.errors import CorruptRecord, KafkaError, error_for
from kcoord.client.partition import TopicPartition, by_topic
from kcoord.protocol import apis
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from kcoord.wire.compression import DecompressionError
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import HEADER_BYTES, decode_records, parse_header

# The newest version of Fetch that names topics, not topic ids.
FETCH_MAX: Final = 12
# Enough for the first batch of most partitions. A larger first batch comes whole when its partition is asked alone.
PARTITION_BYTES: Final = 128 * 1024
FETCH_BYTES: Final = 16 * 1024 * 1024
DECOMPRESSED_MAX: Final = 128 * 1024 * 1024
CONSUMER: Final = -1


async def first_timestamps(
    spread: Spread, deadline: Deadline, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | KafkaError | None]:
    """The timestamp of the first record at or after each offset; None if there is none yet."""

    async def ask(connection: Connection, part: list[TopicPartition]) -> dict[TopicPartition, int | KafkaError | None]:
        found = await _fetch(connection, {one: offsets[one] for one in part})
        for key, result in list(found.items()):
            found[key] = await _rest(connection, key, offsets[key], result)
        return found

    return await spread.over_leaders(deadline, offsets, ask)


async def fetch(spread: Spread, deadline: Deadline, partition: TopicPartition, offset: int) -> FetchedBatches:
    async def ask(
        connection: Connection, part: list[TopicPartition]
    ) -> dict[TopicPartition, FetchedBatches | KafkaError]:
        (answer,) = (await _ask(connection, {partition: offset}, FETCH_BYTES)).values()
        if answer.error_code:
            return {partition: error_for(answer.error_code, f"partition {partition}")}
        return {partition: FetchedBatches(bytes(answer.records or b""), answer.high_watermark)}

    return only(await spread.over_leaders(deadline, [partition], ask), partition)


class _Incomplete(CorruptRecord):
    """The answer has no record at or after the offset, and ends before `next_offset`."""

    def __init__(self, key: TopicPartition, next_offset: int) -> None:
        super().__init__(f"partition {key}: the answer ends at offset {next_offset}")
        self.next_offset = next_offset


async def _rest(
    connection: Connection, key: TopicPartition, offset: int, result: int | KafkaError | None
) -> int | KafkaError | None:
    """Ask for one partition alone, from where its answer ended, until it has a record or is at its end."""
    asked = -1
    while isinstance(result, _Incomplete) and result.next_offset != asked:
        asked = max(result.next_offset, offset)
        result = (await _fetch(connection, {key: asked}))[key]
    return CorruptRecord(str(result)) if isinstance(result, _Incomplete) else result


async def _fetch(
    connection: Connection, offsets: dict[TopicPartition, int]
) -> dict[TopicPartition, int | KafkaError | None]:
    answers = await _ask(connection, offsets, PARTITION_BYTES)
    return {key: _first_timestamp(key, one, offsets[key]) for key, one in answers.items()}


async def _ask(
    connection: Connection, offsets: dict[TopicPartition, int], partition_bytes: int
) -> dict[TopicPartition, PartitionData]:
    version = connection.version(apis.FETCH, 0, FETCH_MAX)
    topics = []
    for name, some in by_topic(offsets).items():
        partitions = [
            FetchPartition(
                partition=one, fetch_offset=offsets[TopicPartition(name, one)], partition_max_bytes=partition_bytes
            )
            for one in some
        ]
        topics.append(FetchTopic(topic=name, partitions=partitions))
    request = FetchRequest(replica_id=CONSUMER, max_wait_ms=0, min_bytes=0, max_bytes=FETCH_BYTES, topics=topics)
    request.session_epoch = -1
    answer = await connection.ask(apis.FETCH, version, request, FetchResponse)
    return {
        TopicPartition(topic.topic, one.partition_index): one for topic in answer.responses for one in topic.partitions
    }


def _first_timestamp(key: TopicPartition, answer: PartitionData, offset: int) -> int | KafkaError | None:
    if answer.error_code:
        return error_for(answer.error_code, f"partition {key}")
    data = bytes(answer.records or b"")
    position = 0
    next_offset = offset
    try:
        while position + HEADER_BYTES <= len(data):
            header = parse_header(data, position, partial=True)
            if position + header.size > len(data):
                break
            if header.last_offset >= offset and not header.is_control:
                for record in decode_records(data, position, header, DECOMPRESSED_MAX):
                    if record.offset >= offset:
                        return record.timestamp
            next_offset = max(next_offset, header.last_offset + 1)
            position += header.size
    except (DecodeError, DecompressionError) as error:
        return CorruptRecord(f"partition {key} after offset {offset}: {error}")
    return None if answer.high_watermark <= next_offset else _Incomplete(key, next_offset)
