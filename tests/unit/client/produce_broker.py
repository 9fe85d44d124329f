"""A broker in this process that takes Produce requests, judges their sequence numbers, and fails as a test says."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from kcoord.protocol import apis, errors
from kcoord.protocol.init_producer_id import InitProducerIdResponse
from kcoord.protocol.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kcoord.protocol.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
    decode_produce_request,
)
from kcoord.wire.primitives import Reader
from kcoord.wire.record_batch import BatchHeader, check_crc, decode_records, parse_header
from tests.unit.client.peers import answer_frame, peer, versions_answer

TOPIC_ID = bytes(range(16))
RECORDS_BYTES_MAX = 100_000_000
# What a test can have a broker do with a request instead of an error code.
SILENT = -100
WRITE_SILENTLY = -101
# The connection ends before or after the records are written.
HANG_UP = -102
WRITE_AND_HANG_UP = -103


class ProduceBroker:
    """Broker 1 with topic `t`. `script` holds what happens to the next Produce requests; 0 is the usual answer."""

    def __init__(self, partitions: int = 1) -> None:
        self.partitions = partitions
        self.script: deque[int] = deque()
        self.logs: list[list[bytes]] = [[] for _ in range(partitions)]
        self.headers: list[BatchHeader] = []
        self.batch_bytes_max = RECORDS_BYTES_MAX
        self.producer_ids = 0
        self.held = asyncio.Event()
        self.held.set()
        self.host, self.port = "", 0
        # (partition, producer id) -> epoch, next sequence, first sequences of written batches with their offsets
        self._known: dict[tuple[int, int], tuple[int, int, dict[int, int]]] = {}

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    @asynccontextmanager
    async def run(cls, partitions: int = 1) -> AsyncIterator[Self]:
        broker = cls(partitions)
        async with peer(broker.behave) as (broker.host, broker.port):
            yield broker
            # Nobody waits any more.
            broker.held.set()

    async def behave(self, key: int, version: int, correlation_id: int, body: Reader) -> bytes | None:
        if key == apis.API_VERSIONS:
            return versions_answer(version, correlation_id)
        if key == apis.METADATA:
            parts = [MetadataResponsePartition(0, index, 1, 0, [1], [1]) for index in range(self.partitions)]
            topics = [MetadataResponseTopic(0, "t", TOPIC_ID, partitions=parts)]
            metadata = MetadataResponse(0, [MetadataResponseBroker(1, self.host, self.port)], topics=topics)
            return answer_frame(key, version, correlation_id, metadata)
        if key == apis.INIT_PRODUCER_ID:
            self.producer_ids += 1
            return answer_frame(key, version, correlation_id, InitProducerIdResponse(0, 0, self.producer_ids, 0))
        assert key == apis.PRODUCE
        request = decode_produce_request(body, version)
        await self.held.wait()
        order = self.script.popleft() if self.script else 0
        if order == SILENT:
            return None
        if order == HANG_UP:
            raise ConnectionError
        answer = self._produce(request, 0 if order in (WRITE_SILENTLY, WRITE_AND_HANG_UP) else order)
        if order == WRITE_AND_HANG_UP:
            raise ConnectionError
        return None if order == WRITE_SILENTLY else answer_frame(key, version, correlation_id, answer)

    def _produce(self, request: ProduceRequest, code: int) -> ProduceResponse:
        answer = ProduceResponse()
        for topic in request.topic_data:
            parts: list[PartitionProduceResponse] = []
            for one in topic.partition_data:
                offset = -1
                found = code
                if not found:
                    assert one.records is not None
                    found, offset = self._append(one.index, one.records)
                parts.append(PartitionProduceResponse(one.index, found, offset))
            answer.responses.append(TopicProduceResponse(topic.name, topic.topic_id, parts))
        return answer

    def _append(self, partition: int, batch: bytes) -> tuple[int, int]:
        header = parse_header(batch)
        assert check_crc(batch, 0, header)
        self.headers.append(header)
        log = self.logs[partition]
        if len(batch) > self.batch_bytes_max:
            return errors.MESSAGE_TOO_LARGE, -1
        if header.producer_id >= 0:
            # As in Kafka, a producer that is not known may begin at any number, and a new epoch begins at 0.
            start = (header.producer_epoch, header.base_sequence, dict[int, int]())
            epoch, expected, written = self._known.get((partition, header.producer_id), start)
            if header.producer_epoch > epoch:
                epoch, expected, written = header.producer_epoch, 0, {}
            if header.producer_epoch < epoch:
                return errors.INVALID_PRODUCER_EPOCH, -1
            if header.base_sequence in written:
                return errors.NONE, written[header.base_sequence]
            if header.base_sequence != expected:
                return errors.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            written[header.base_sequence] = len(log)
            self._known[partition, header.producer_id] = (epoch, expected + header.count, written)
        offset = len(log)
        log += [record.value or b"" for record in decode_records(batch, 0, header, RECORDS_BYTES_MAX)]
        return errors.NONE, offset
