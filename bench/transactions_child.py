"""Transactional producers for `bench.transactions`: transactions_child HOST PORT PRODUCERS VERSION SECONDS FIRST

Each producer has a transactional id (numbered from FIRST on), a connection, a group and a partition of its own. It
sends one request at a time, and the requests of a transaction are those of a real client that sends one record, the
offset of a group and the commit:

- transaction version 2 (clients from Kafka 4.0 on): Produce v12, TxnOffsetCommit v5, EndTxn v5;
- version 1 (librdkafka, aiokafka): AddPartitionsToTxn v3, Produce v9, AddOffsetsToTxn v3, TxnOffsetCommit v3, EndTxn
  v3.

A broker answers EndTxn before the transaction is over, and the next one gets CONCURRENT_TRANSACTIONS meanwhile. It is
repeated after RETRY_S, which is shorter than the pause of any client. Prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from functools import partial
from typing import Final, cast

from bench.workload import Client, check, decode, request_frame
from kcoord.protocol import apis, end_txn, errors
from kcoord.protocol.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kcoord.protocol.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from kcoord.protocol.end_txn import EndTxnRequest, EndTxnResponse
from kcoord.protocol.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kcoord.protocol.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from kcoord.wire.message import Message
from kcoord.wire.record_batch import BatchBuilder

TOPIC: Final = "transactions"
VERSIONS: Final = (1, 2)
WARM_UP_S: Final = 0.5
RECORD_BYTES: Final = 100
TIMEOUT_MS: Final = 60_000
RETRY_S: Final = 0.0005
DEADLINE_S: Final = 60.0
# What passes: the transaction before is ending, or the coordinator is not ready.
NOT_YET: Final = frozenset(
    (
        errors.CONCURRENT_TRANSACTIONS,
        errors.COORDINATOR_LOAD_IN_PROGRESS,
        errors.COORDINATOR_NOT_AVAILABLE,
        errors.NOT_COORDINATOR,
        errors.NOT_ENOUGH_REPLICAS,
    )
)
# (API, version) of each step of a transaction.
Step = tuple[int, int]
STEPS: Final[dict[int, tuple[Step, ...]]] = {
    1: (
        (apis.ADD_PARTITIONS_TO_TXN, 3),
        (apis.PRODUCE, 9),
        (apis.ADD_OFFSETS_TO_TXN, 3),
        (apis.TXN_OFFSET_COMMIT, 3),
        (apis.END_TXN, 3),
    ),
    2: ((apis.PRODUCE, 12), (apis.TXN_OFFSET_COMMIT, 5), (apis.END_TXN, 5)),
}


class Producer(asyncio.Protocol):
    """A transactional producer. `times` are the durations of its transactions in seconds, after the warm-up."""

    def __init__(self, number: int, partition: int, version: int, done: asyncio.Future[None]) -> None:
        self.name = f"bench-{number:03}"
        self.partition = partition
        self.version = version
        self.steps = STEPS[version]
        self.done = done
        self.producer_id = -1
        self.epoch = -1
        self.sequence = 0
        self.count = 0
        self.retries = 0
        self.times: list[float] = []
        self.position = 0
        self.began = 0.0
        self.measured_from = 0.0
        self.ends_at = 0.0
        self.received = b""
        self.is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport without being instances of it.
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(RuntimeError(f"the server closed a connection ({exc})"))

    def fail(self, error: Exception) -> None:
        if not self.is_over and not self.done.done():
            self.done.set_exception(error)

    def begin(self) -> None:
        self.position = 0
        self.began = time.perf_counter()
        self.send()

    def send(self) -> None:
        api_key, version = self.steps[self.position]
        self.transport.write(request_frame(api_key, version, self.request(api_key)))

    def request(self, api_key: int) -> Message:
        name, producer_id, epoch = self.name, self.producer_id, self.epoch
        if api_key == apis.PRODUCE:
            builder = BatchBuilder()
            builder.append(int(time.time() * 1000), None, bytes(RECORD_BYTES))
            records = builder.build(0, 0, producer_id, epoch, self.sequence, transactional=True)
            data = [TopicProduceData(TOPIC, partition_data=[PartitionProduceData(self.partition, records)])]
            return ProduceRequest(name, -1, 30_000, data)
        if api_key == apis.TXN_OFFSET_COMMIT:
            partitions = [TxnOffsetCommitRequestPartition(self.partition, self.count)]
            topics = [TxnOffsetCommitRequestTopic(TOPIC, partitions)]
            return TxnOffsetCommitRequest(name, name, producer_id, epoch, topics=topics)
        if api_key == apis.END_TXN:
            return EndTxnRequest(name, producer_id, epoch, True)
        if api_key == apis.ADD_OFFSETS_TO_TXN:
            return AddOffsetsToTxnRequest(name, producer_id, epoch, name)
        added = [AddPartitionsToTxnTopic(TOPIC, [self.partition])]
        return AddPartitionsToTxnRequest([], name, producer_id, epoch, added)

    def data_received(self, data: bytes) -> None:
        received = self.received + data
        if len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            self.received = received
            return
        self.received = b""
        try:
            self.take(received)
        except Exception as error:
            self.fail(error)

    def take(self, frame: bytes) -> None:
        """Handle the response to the step: go on, repeat it, or stop."""
        api_key, version = self.steps[self.position]
        answer = decode(api_key, version, frame)
        code = error_of(answer)
        if code in NOT_YET:
            self.retries += 1
            asyncio.get_running_loop().call_later(RETRY_S, self.send)
            return
        check(code, apis.APIS[api_key].name)
        self.position += 1
        if self.position < len(self.steps):
            self.send()
            return
        assert isinstance(answer, EndTxnResponse)
        self.end(answer)

    def end(self, answer: EndTxnResponse) -> None:
        now = time.perf_counter()
        self.count += 1
        if self.version == 2:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        else:
            self.sequence += 1
        if self.began > self.measured_from and now <= self.ends_at:
            self.times.append(now - self.began)
        if now < self.ends_at:
            self.begin()
        else:
            self.is_over = True
            self.transport.close()


def error_of(answer: Message) -> int:
    if isinstance(answer, ProduceResponse):
        return answer.responses[0].partition_responses[0].error_code
    if isinstance(answer, TxnOffsetCommitResponse):
        return answer.topics[0].partitions[0].error_code
    if isinstance(answer, AddPartitionsToTxnResponse):
        return answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
    assert isinstance(answer, AddOffsetsToTxnResponse | EndTxnResponse)
    return answer.error_code


def init(client: Client, producer: Producer) -> None:
    """Get the producer its id and epoch."""
    asked = InitProducerIdRequest(producer.name, TIMEOUT_MS)
    deadline = time.perf_counter() + DEADLINE_S
    while True:
        answer = client.call(apis.INIT_PRODUCER_ID, 4, asked, InitProducerIdResponse)
        if answer.error_code not in NOT_YET or time.perf_counter() > deadline:
            break
        time.sleep(0.01)
    check(answer.error_code, "InitProducerId")
    producer.producer_id, producer.epoch = answer.producer_id, answer.producer_epoch


def _same(producer: Producer) -> Producer:
    return producer


async def drive(host: str, port: int, count: int, version: int, seconds: float, first: int) -> list[Producer]:
    """Let the producers work for `seconds` after a warm-up. Raises RuntimeError for an error in a response."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    producers = [Producer(first + number, number, version, done) for number in range(count)]
    client = Client(host, port)
    for producer in producers:
        init(client, producer)
        await loop.create_connection(partial(_same, producer), host, port)
    client.close()
    gc.collect()
    gc.disable()
    measured_from = time.perf_counter() + WARM_UP_S
    for producer in producers:
        producer.measured_from = measured_from
        producer.ends_at = measured_from + seconds
        producer.begin()
    await asyncio.wait([done], timeout=WARM_UP_S + seconds)
    deadline = time.perf_counter() + DEADLINE_S
    while not done.done() and not all(producer.is_over for producer in producers):
        if time.perf_counter() > deadline:
            raise RuntimeError("a producer received no response")
        await asyncio.sleep(0.01)
    if done.done():
        done.result()
    done.cancel()
    return producers


def main() -> None:
    host, port = sys.argv[1], int(sys.argv[2])
    count, version, first = int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[6])
    seconds = float(sys.argv[5])
    work = drive(host, port, count, version, seconds, first)
    try:
        import uvloop
    except ImportError:
        producers = asyncio.run(work)
    else:
        producers = uvloop.run(work)
    # Without a single one in time, the percentiles are what the measurement took.
    times = sorted(duration for producer in producers for duration in producer.times) or [seconds]
    figures = {
        "per_second": len(times) / seconds,
        "p50_ms": times[len(times) // 2] * 1000,
        "p99_ms": times[len(times) * 99 // 100] * 1000,
        "transactions": sum(producer.count for producer in producers),
        "retries": sum(producer.retries for producer in producers),
        "generator_cpu_us": time.process_time() * 1e6 / max(sum(producer.count for producer in producers), 1),
        "compiled": not end_txn.__file__.endswith(".py"),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
