"""Produce: checking record batches, giving them offsets and handing them to the log.

Batches are stored as they came, with base offset and leader epoch filled in, unless the topic asks for another codec
or stamps them with its own time. Every partition is checked and answered on its own; one bad batch costs the others
nothing. Sequences of idempotent producers are checked against the last five batches of each producer (KIP-98); a
repeated batch is answered with the offsets it got the first time.

An answer leaves when all that was appended before it is durable, for acks=1 as for acks=-1, since there is only one
disk to trust. That covers a repeated batch whose first copy is still on its way there; the engine sees to it.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import GROUP_EVENTS_TOPIC, INTERNAL_TOPICS, Now, Request
from kcoord.engine.partitions import (
    CODEC_OF_PRODUCER,
    PartitionTable,
    ServedTopic,
    TopicPartition,
    TopicSettings,
)
from kcoord.log.journal import Journal
from kcoord.protocol.errors import (
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_RECORD,
    INVALID_REQUIRED_ACKS,
    INVALID_TIMESTAMP,
    INVALID_TOPIC_EXCEPTION,
    MESSAGE_TOO_LARGE,
    NONE,
    RECORD_LIST_TOO_LARGE,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kcoord.protocol.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kcoord.wire.primitives import read_i32_be
from kcoord.wire.produced_batch import ProducedBatch, validate_produced_batch
from kcoord.wire.record_batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC_V2,
    TRANSACTIONAL_FLAG,
    BatchBuilder,
    BatchHeader,
    decode_records,
    parse_header,
    with_log_append_time,
    with_offsets,
)

TOPIC_IDS_FROM: Final = 13
NO_TIMESTAMP: Final = -1
NO_OFFSET: Final = -1
# Where a batch has its attributes (low byte), and where its length, which counts from there, ends.
ATTRIBUTES_AT: Final = 22
LENGTH_END: Final = 12
MAGIC_AT: Final = 16
# Faults inside of a batch, which are told with the log's start.
TOLD_THE_START: Final = frozenset((INVALID_PRODUCER_EPOCH, INVALID_RECORD, INVALID_TIMESTAMP))



def refused(index: int, error_code: int, message: str | None = None) -> PartitionProduceResponse:
    """The answer for a partition that took nothing."""
    return PartitionProduceResponse(index, error_code, NO_OFFSET, error_message=message)


def is_transactional(records: bytes | None) -> bool:
    """Whether the first batch says that it belongs to a transaction."""
    return (
        records is not None
        and len(records) >= HEADER_BYTES
        and (records[ATTRIBUTES_AT] & TRANSACTIONAL_FLAG) != 0
    )


def has_transactional_records(body: ProduceRequest) -> bool:
    for topic in body.topic_data:
        for data in topic.partition_data:
            if is_transactional(data.records):
                return True
    return False


def without_torn_end(records: bytes) -> bytes:
    """The records without what follows the first batch, where that is less than a whole batch.

    Brokers have always passed over a batch that is cut off at the end.
    """
    if len(records) < HEADER_BYTES:
        return records
    first = batch_bytes(records, 0)
    if first < HEADER_BYTES or first >= len(records):
        return records
    rest = len(records) - first
    if rest < LENGTH_END or batch_bytes(records, first) > rest:
        return records[:first]
    return records


def batch_bytes(records: bytes, pos: int) -> int:
    """The size that the batch at `pos` claims to have."""
    # Not in 32 bits, where a hostile length could wrap.
    length: int = read_i32_be(records, pos + 8)
    return length + LENGTH_END


def is_one_batch(records: bytes | None) -> bool:
    """Whether the records look like exactly one batch of format version 2."""
    return (
        records is not None
        and len(records) >= HEADER_BYTES
        and records[MAGIC_AT] == MAGIC_V2
        and batch_bytes(records, 0) == len(records)
    )


def recompress(batch: bytes, header: BatchHeader, codec: int, bytes_max: int) -> bytes:
    """The batch's records in another codec, as the topic's compression.type asks for."""
    builder = BatchBuilder()
    for record in decode_records(batch, 0, header, bytes_max):
        builder.append(record.timestamp, record.key, record.value, record.headers)
    return builder.build(
        0,
        0,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.is_transactional,
        False,
        codec,
    )


def bad_batch(index: int, checked: ProducedBatch, log_start_offset: int) -> PartitionProduceResponse:
    """The answer for a batch that did not pass. Bad records are named by their index in the batch (KIP-467)."""
    # Brokers leave the message out where the error code says it all, and clients show their own text then.
    answer = refused(index, checked.error_code, checked.message if checked.record_errors else None)
    answer.log_start_offset = log_start_offset
    for number, message in checked.record_errors:
        answer.record_errors.append(BatchIndexAndErrorMessage(number, message))
    return answer


@final
class ProduceRoom:
    """Writes of clients."""

    def __init__(self, config: CoreConfig, table: PartitionTable, journal: Journal) -> None:
        self.config = config
        self.table = table
        self.journal = journal

    def handle_produce(self, request: Request, body: ProduceRequest, now: Now) -> ProduceResponse:
        """Append what is good and answer for every partition.

        With acks=0 the answer is not to be sent, but an error in it closes the connection.
        """
        # Kafka asks for the right to write under the transactional id, and there is none.
        refuse_all = body.transactional_id is None and has_transactional_records(body)
        response = ProduceResponse()
        for topic in body.topic_data:
            answer = TopicProduceResponse(topic.name, topic.topic_id)
            served = self._topic(request.version, topic)
            for data in topic.partition_data:
                if refuse_all:
                    answer.partition_responses.append(
                        refused(data.index, TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
                    )
                else:
                    answer.partition_responses.append(self._produce(request.version, body, served, data, now))
            response.responses.append(answer)
        return response

    def _topic(self, version: int, topic: TopicProduceData) -> ServedTopic | None:
        if version >= TOPIC_IDS_FROM:
            return self.table.topic_by_id(topic.topic_id)
        return self.table.topic(topic.name)

    def _produce(
        self,
        version: int,
        body: ProduceRequest,
        served: ServedTopic | None,
        data: PartitionProduceData,
        now: Now,
    ) -> PartitionProduceResponse:
        index = data.index
        if served is None:
            return refused(
                index, UNKNOWN_TOPIC_ID if version >= TOPIC_IDS_FROM else UNKNOWN_TOPIC_OR_PARTITION
            )
        tp = self.table.find(served.name, index)
        if tp is None:
            return refused(index, UNKNOWN_TOPIC_OR_PARTITION)
        if body.acks < -1 or body.acks > 1:
            return refused(index, INVALID_REQUIRED_ACKS)
        if served.name in INTERNAL_TOPICS or served.name == GROUP_EVENTS_TOPIC:
            return refused(index, INVALID_TOPIC_EXCEPTION)
        if is_transactional(data.records):
            # No transactional id was ever given out by us, so none maps to this producer.
            return refused(index, INVALID_PRODUCER_ID_MAPPING, "the transactional id is not known")
        return self._append(version, served.settings, tp, data, now)

    def _append(
        self, version: int, settings: TopicSettings, tp: TopicPartition, data: PartitionProduceData, now: Now
    ) -> PartitionProduceResponse:
        index = data.index
        log = tp.log
        records = data.records
        if records is not None:
            records = without_torn_end(records)
        checked = validate_produced_batch(records, version, now.wall_ms, settings.limits)
        header = checked.header
        if checked.error_code != NONE or header is None:
            # What is wrong inside of a batch is told with the log's start, what is wrong with the whole without.
            inside = checked.error_code in TOLD_THE_START and is_one_batch(records)
            return bad_batch(index, checked, log.log_start_offset if inside else NO_OFFSET)
        batch = checked.batch
        if settings.codec != CODEC_OF_PRODUCER and settings.codec != header.codec:
            batch = recompress(batch, header, settings.codec, settings.limits.max_decompressed_bytes)
            if settings.limits.timestamp_type == LOG_APPEND_TIME:
                batch = with_log_append_time(batch, now.wall_ms)
            header = parse_header(batch, 0)
            if header.size > settings.limits.max_batch_bytes:
                return refused(index, MESSAGE_TOO_LARGE)
        if header.size > settings.segment_bytes:
            return refused(index, RECORD_LIST_TOO_LARGE)
        base_offset: int = log.end_offset
        last_offset: int = base_offset + header.last_offset_delta
        has_producer = header.producer_id >= 0
        if has_producer:
            check = tp.producers.check(header)
            if check.error_code != NONE:
                answer = refused(index, check.error_code)
                answer.log_start_offset = log.log_start_offset
                return answer
            seen = check.duplicate
            if seen is not None:
                return PartitionProduceResponse(
                    index, NONE, seen.first_offset, seen.timestamp_ms, log.log_start_offset
                )
        batch = with_offsets(batch, base_offset, tp.leader_epoch)
        self.journal.append(log, batch, base_offset, last_offset, header.max_timestamp, tp.leader_epoch)
        if has_producer:
            tp.producers.note(header, last_offset, now.wall_ms)
        self.table.note_append(tp)
        append_time = now.wall_ms if settings.limits.timestamp_type == LOG_APPEND_TIME else NO_TIMESTAMP
        return PartitionProduceResponse(index, NONE, base_offset, append_time, log.log_start_offset)
