"""Transactions: the steady workload whose requests depend on each other, one producer for each connection.

A transaction is AddPartitionsToTxn, Produce of one batch, and EndTxn. Where the cluster has transaction.version 2
(KIP-890), it is Produce and EndTxn.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, Final

from kcoord.cli.bench.load import CONNECTION_LOST, DRAIN_S, NO_ANSWER, figures
from kcoord.cli.bench.options import Options
from kcoord.cli.bench.steady import Prepared, at_once, batch, data_partitions, produce_request
from kcoord.cli.bench.target import TRANSACTION_TIMEOUT_MS, Target
from kcoord.client.cluster import TRANSACTION
from kcoord.client.connection import Connection, ConnectionOptions
from kcoord.client.errors import BrokerError, KafkaError, error_for
from kcoord.client.load.frames import CLIENT_ID, error_codes
from kcoord.client.load.histogram import Histogram
from kcoord.client.metadata import TopicMetadata
from kcoord.protocol import apis, errors
from kcoord.protocol.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from kcoord.protocol.end_txn import EndTxnRequest, EndTxnResponse
from kcoord.protocol.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kcoord.protocol.produce import ProduceResponse

REQUEST_TIMEOUT_S: Final = 30.0
FEATURE: Final = "transaction.version"
# The versions from which Produce adds partitions by itself, and EndTxn raises the epoch (KIP-890).
PRODUCE_ADDS_FROM: Final = 12
END_BUMPS_FROM: Final = 5
# The newest version of AddPartitionsToTxn that clients use.
ADD_PARTITIONS_MAX: Final = 3
# Markers of the transaction before are still being written: clients try again after a short pause.
NOT_YET: Final = frozenset({errors.CONCURRENT_TRANSACTIONS, errors.COORDINATOR_LOAD_IN_PROGRESS})
RETRY_S: Final = 0.002
# After an error a producer gets its id again, no more often than this.
PAUSE_S: Final = 0.1


async def prepare_transactions(target: Target, options: Options) -> Prepared:
    """One producer with its own transactional id and partition for each connection."""
    topic = await target.topic("transactions", data_partitions(options))
    name = f"{target.prefix}transactions"
    versions: dict[str, int] = {}

    async def one(number: int) -> dict[str, Any]:
        transactional_id = f"{name}-{number}"
        coordinator = await target.coordinator(transactional_id, TRANSACTION)
        partition = number % len(topic.partitions)
        leader = target.leader(topic, partition)
        versions.update(_versions(await target.init_producer(transactional_id)))
        return {
            "id": transactional_id, "topic": topic.name, "topic_id": topic.topic_id.hex(), "partition": partition,
            "coordinator": [coordinator.host, coordinator.port], "leader": [leader.host, leader.port],
            "record_bytes": options.record_bytes, "batch_records": options.batch_records,
        }  # fmt: skip

    return Prepared("transactions", await at_once(options.connections, one), versions, 1)


def _has_version_2(connection: Connection) -> bool:
    return connection.features.get(FEATURE, 0) >= 2 and connection.has(apis.END_TXN, END_BUMPS_FROM)


def _versions(connection: Connection) -> dict[str, int]:
    """The versions of the requests of a transaction. Raises UnsupportedVersion."""
    if _has_version_2(connection):
        return {"Produce": connection.version(apis.PRODUCE), "EndTxn": connection.version(apis.END_TXN)}
    return {
        "AddPartitionsToTxn": connection.version(apis.ADD_PARTITIONS_TO_TXN, 0, ADD_PARTITIONS_MAX),
        "Produce": connection.version(apis.PRODUCE, 0, PRODUCE_ADDS_FROM - 1),
        "EndTxn": connection.version(apis.END_TXN, 0, END_BUMPS_FROM - 1),
    }


class BenchProducer:
    """A transactional producer that does one transaction after the other."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.name: str = plan["id"]
        self.options = Options(record_bytes=plan["record_bytes"], batch_records=plan["batch_records"])
        self.topic = TopicMetadata(plan["topic"], bytes.fromhex(plan["topic_id"]))
        self.histogram = Histogram()
        self.errors: dict[str, int] = {}
        self.bytes_sent = 0
        self.coordinator: Connection | None = None
        self.leader: Connection | None = None
        self.versions: dict[str, int] = {}
        self.producer_id = -1
        self.epoch = -1
        self.sequence = 0

    async def open(self) -> None:
        """Connect, and get the producer its id. Raises KafkaError."""
        await self.close()
        options = ConnectionOptions(CLIENT_ID, REQUEST_TIMEOUT_S)
        host, port = self.plan["coordinator"]
        self.coordinator = await Connection.open(host, port, options)
        host, port = self.plan["leader"]
        self.leader = await Connection.open(host, port, options)
        self.versions = _versions(self.coordinator)
        version = self.coordinator.version(apis.INIT_PRODUCER_ID)
        while True:
            answer = await self.coordinator.ask(
                apis.INIT_PRODUCER_ID,
                version,
                InitProducerIdRequest(self.name, TRANSACTION_TIMEOUT_MS),
                InitProducerIdResponse,
            )
            if answer.error_code not in NOT_YET:
                break
            await asyncio.sleep(RETRY_S)
        if answer.error_code:
            raise error_for(answer.error_code, self.name)
        self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0

    async def close(self) -> None:
        for connection in (self.coordinator, self.leader):
            if connection is not None:
                await connection.close()

    def reset(self) -> None:
        self.histogram = Histogram()
        self.errors = {}
        self.bytes_sent = 0

    async def work(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            began = time.perf_counter_ns()
            try:
                await self._transaction()
            except KafkaError as error:
                name = error.name if isinstance(error, BrokerError) else CONNECTION_LOST
                self.errors[name] = self.errors.get(name, 0) + 1
                await asyncio.sleep(PAUSE_S)
                with contextlib.suppress(KafkaError):
                    await self.open()
                continue
            self.histogram.add(time.perf_counter_ns() - began)

    async def _transaction(self) -> None:
        assert self.coordinator is not None
        assert self.leader is not None
        partition: int = self.plan["partition"]
        name, versions = self.name, self.versions
        if "AddPartitionsToTxn" in versions:
            added = AddPartitionsToTxnRequest(
                [], name, self.producer_id, self.epoch, [AddPartitionsToTxnTopic(self.topic.name, [partition])]
            )
            while True:
                answer = await self.coordinator.ask(
                    apis.ADD_PARTITIONS_TO_TXN, versions["AddPartitionsToTxn"], added, AddPartitionsToTxnResponse
                )
                if not await self._must_wait(error_codes(answer)):
                    break
        records = batch(self.options, self.producer_id, self.epoch, self.sequence)
        request = produce_request(self.topic, partition, records, name)
        while True:
            produced = await self.leader.ask(apis.PRODUCE, versions["Produce"], request, ProduceResponse)
            if not await self._must_wait(error_codes(produced)):
                break
        self.bytes_sent += len(records)
        end = EndTxnRequest(name, self.producer_id, self.epoch, True)
        while True:
            ended = await self.coordinator.ask(apis.END_TXN, versions["EndTxn"], end, EndTxnResponse)
            if not await self._must_wait([ended.error_code]):
                break
        self.sequence += self.options.batch_records
        if versions["EndTxn"] >= END_BUMPS_FROM:
            if (ended.producer_id, ended.producer_epoch) != (self.producer_id, self.epoch):
                self.sequence = 0
            self.producer_id, self.epoch = ended.producer_id, ended.producer_epoch

    async def _must_wait(self, codes: list[int]) -> bool:
        """Whether to send the request again, after a pause. Raises BrokerError for any other error."""
        wrong = [code for code in codes if code]
        if not wrong:
            return False
        if wrong[0] not in NOT_YET:
            raise error_for(wrong[0], self.name)
        await asyncio.sleep(RETRY_S)
        return True


class TransactionLoad:
    def __init__(self, plans: list[dict[str, Any]]) -> None:
        self.producers = [BenchProducer(plan) for plan in plans]

    async def open(self) -> None:
        for one in self.producers:
            await one.open()

    async def round(self, warm_up_s: float, seconds: float) -> dict[str, Any]:
        stop = asyncio.Event()
        tasks = [asyncio.create_task(one.work(stop)) for one in self.producers]
        await asyncio.sleep(warm_up_s)
        for one in self.producers:
            one.reset()
        began, cpu_began = time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        answered = sum(one.histogram.total for one in self.producers)
        moved = sum(one.bytes_sent for one in self.producers)
        stop.set()
        _, late = await asyncio.wait(tasks, timeout=DRAIN_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        errors_found = [one.errors for one in self.producers] + [{NO_ANSWER: len(late)}] * bool(late)
        return figures(answered, elapsed, [one.histogram for one in self.producers], errors_found, moved, cpu)

    async def close(self) -> None:
        for one in self.producers:
            await one.close()
