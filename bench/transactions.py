"""Small transactions: `make bench ARGS="--only transactions"`.

Each producer has a transactional id, a connection and a partition of its own. A transaction is one record, the offset
of a group and the commit, on transaction version 2 (Produce v12, TxnOffsetCommit v5, EndTxn v5), one request at a time.
"""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Any, Final

from bench import servers, workload
from kcoord.protocol import apis, errors
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.protocol.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kcoord.wire.message import Message
from kcoord.wire.record_batch import BatchBuilder

PRODUCERS: Final = (1, 16)
WARM_UP_S: Final = 0.5
RECORD_BYTES: Final = 100
TIMEOUT_MS: Final = 60_000

Figures = dict[str, float]


class Producer:
    """A transactional producer."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"bench-{number:02}"
        self.producer_id = -1
        self.epoch = -1
        self.times: list[float] = []

    async def ask(self, api_key: int, version: int, message: Message) -> Any:
        """Send a request until its answer has no error that passes."""
        self.writer.write(workload.request_frame(api_key, version, message))
        size = struct.unpack(">i", await self.reader.readexactly(4))[0]
        return workload.decode(api_key, version, bytes(4) + await self.reader.readexactly(size))

    async def start(self, address: servers.Address) -> None:
        self.reader, self.writer = await asyncio.open_connection(address.host, address.port)
        answer = await self.ask(apis.INIT_PRODUCER_ID, 4, InitProducerIdRequest(self.name, TIMEOUT_MS))
        workload.check(answer.error_code, "InitProducerId")
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    async def write(self) -> int:
        builder = BatchBuilder()
        builder.append(int(time.time() * 1000), None, bytes(RECORD_BYTES))
        records = builder.build(0, 0, self.producer_id, self.epoch, 0, transactional=True)
        data = [TopicProduceData(workload.TOPIC, partition_data=[PartitionProduceData(self.number, records)])]
        answer = await self.ask(apis.PRODUCE, 12, ProduceRequest(self.name, -1, 30_000, data))
        return int(answer.responses[0].partition_responses[0].error_code)

    async def transact(self, offset: int) -> None:
        code = await self.write()
        while code == errors.CONCURRENT_TRANSACTIONS:
            code = await self.write()
        workload.check(code, "Produce")
        topics = [TxnOffsetCommitRequestTopic(workload.TOPIC, [TxnOffsetCommitRequestPartition(self.number, offset)])]
        commit = TxnOffsetCommitRequest(self.name, self.name, self.producer_id, self.epoch, topics=topics)
        answer = await self.ask(apis.TXN_OFFSET_COMMIT, 5, commit)
        workload.check(answer.topics[0].partitions[0].error_code, "TxnOffsetCommit")
        answer = await self.ask(apis.END_TXN, 5, EndTxnRequest(self.name, self.producer_id, self.epoch, True))
        workload.check(answer.error_code, "EndTxn")
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    async def work(self, begins_at: float, ends_at: float) -> None:
        offset = 0
        while True:
            began = time.perf_counter()
            if began > ends_at:
                break
            offset += 1
            await self.transact(offset)
            if began > begins_at:
                self.times.append(time.perf_counter() - began)
        self.writer.close()


async def load(address: servers.Address, count: int, seconds: float) -> Figures:
    producers = [Producer(number) for number in range(count)]
    for one in producers:
        await one.start(address)
    begins_at = time.perf_counter() + WARM_UP_S
    await asyncio.gather(*(one.work(begins_at, begins_at + seconds) for one in producers))
    times = sorted(duration for one in producers for duration in one.times)
    return {
        "per_second": len(times) / seconds,
        "p50_ms": times[len(times) // 2] * 1000,
        "p99_ms": times[len(times) * 99 // 100] * 1000,
    }


def measure(server: servers.Server, seconds: float) -> dict[str, Figures]:
    """Figures by the number of producers."""
    client = workload.Client(server.host, server.port)
    workload.create_topic(client, workload.TOPIC, max(PRODUCERS))
    for kind in (0, 1):
        # The first one creates the topic, and may have to wait for it.
        for _ in range(2):
            client.call(apis.FIND_COORDINATOR, 2, FindCoordinatorRequest("bench", kind), FindCoordinatorResponse)
    client.close()
    address = servers.Address(server.host, server.port)
    return {str(count): asyncio.run(load(address, count, seconds)) for count in PRODUCERS}


def print_table(results: dict[str, dict[str, Figures]]) -> None:
    print("\ntransactions/s, p50 ms, p99 ms: one record, one offset, commit")
    print(f"{'producers':<20}" + "".join(f"{count:^28}" for count in PRODUCERS).rstrip())
    for label, by_count in results.items():
        cells = [f"{one['per_second']:>10.0f}{one['p50_ms']:>9.2f}{one['p99_ms']:>9.2f}" for one in by_count.values()]
        print(f"{label:<20}" + "".join(cells))
