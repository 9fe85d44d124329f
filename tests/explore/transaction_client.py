"""A transactional producer of the model: what it sends, what it retries, and what it was told.

It behaves as clients do. On version 1 (librdkafka, aiokafka) it adds partitions and offsets to the transaction before
it writes them, and keeps its epoch; on version 2 (KIP-890) a write adds them, and each end gives it a new epoch. A
request whose answer is lost is sent again on a new connection. It may give up a write or a commit of offsets, and then
aborts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple

from kcoord.protocol import apis, errors
from kcoord.protocol.add_offsets_to_txn import AddOffsetsToTxnRequest
from kcoord.protocol.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.protocol.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.harness.transactions import transactional

TOPIC: Final = "t"
PARTITIONS: Final = 2
TIMEOUT_MS: Final = 60_000
GIVES_UP: Final = 0.3
COMMITS: Final = 0.7
RETRIABLE: Final = frozenset(
    (
        errors.CONCURRENT_TRANSACTIONS,
        errors.NOT_ENOUGH_REPLICAS,
        errors.COORDINATOR_NOT_AVAILABLE,
        errors.NOT_COORDINATOR,
        errors.COORDINATOR_LOAD_IN_PROGRESS,
    )
)
# The roles of connections.
COORDINATOR, GROUP, PRODUCE = "coordinator", "group", "produce"


class Ask(NamedTuple):
    """A request that the client wants to have answered."""

    role: str
    api_key: int
    version: int
    body: Any


class Refused(Exception):
    """The client got an error after which it cannot go on."""


Life = Generator[Ask, Any, Any]


class Txn:
    """A transaction as its client knows it."""

    def __init__(self, number: int, transactional_id: str) -> None:
        self.number = number
        self.transactional_id = transactional_id
        # Values that were acknowledged, by partition, and the partitions whose offsets were.
        self.values: dict[int, list[bytes]] = {}
        self.offsets: list[int] = []
        self.commit_asked = False
        # How it ended, once the client knows.
        self.told: bool | None = None

    def __repr__(self) -> str:
        told = {None: "unknown", True: "committed", False: "aborted"}[self.told]
        return f"transaction {self.number} of {self.transactional_id} ({told})"


class Producer:
    """One client process. `new_txn` registers a transaction with the account of the world."""

    def __init__(
        self, transactional_id: str, version: int, count: int, rng: random.Random, new_txn: Callable[[str], Txn]
    ) -> None:
        self.transactional_id = transactional_id
        self.version = version
        self.count = count
        self.rng = rng
        self.new_txn = new_txn
        # As librdkafka does, or with one connection for everything, as the Java client does.
        self.has_own_connections = rng.random() < 0.5
        self.producer_id = -1
        self.epoch = -1
        self.sequences = [0] * PARTITIONS
        self.must_bump = False
        self.txn: Txn | None = None
        self.life = self.run()

    def role(self, role: str) -> str:
        return role if self.has_own_connections else COORDINATOR

    def ask(
        self, role: str, api_key: int, version: int, body: Any, code_of: Callable[[Any], int], may_give_up: bool = False
    ) -> Life:
        """Send until there is an answer that is no reason to try again; None if the client gives up."""
        while True:
            answer = yield Ask(self.role(role), api_key, version, body)
            if answer is None:
                if may_give_up and self.rng.random() < GIVES_UP:
                    return None
                continue
            code = code_of(answer)
            if code == errors.NONE:
                return answer
            if code not in RETRIABLE:
                name = apis.APIS[api_key].name
                raise Refused(f"{name} v{version} got {errors.ERROR_NAMES.get(code, code)}")

    # --- the life

    def run(self) -> Life:
        yield from self.init(False)
        for _ in range(self.count):
            self.txn = self.new_txn(self.transactional_id)
            yield from self.transact(self.txn)
        self.txn = None

    def init(self, goes_on: bool) -> Life:
        producer = (self.producer_id, self.epoch) if goes_on else (-1, -1)
        body = InitProducerIdRequest(self.transactional_id, TIMEOUT_MS, *producer)
        answer = yield from self.ask(COORDINATOR, apis.INIT_PRODUCER_ID, 4, body, lambda a: a.error_code)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences = [0] * PARTITIONS
        self.must_bump = False

    def transact(self, txn: Txn) -> Life:
        is_whole = yield from self.work(txn)
        if is_whole and self.rng.random() < COMMITS:
            yield from self.end(txn, True)
        elif self.must_bump and self.rng.random() < 0.5:
            # The server aborts what the earlier epoch has open.
            yield from self.init(True)
            txn.told = False
        else:
            yield from self.end(txn, False)
            if self.must_bump:
                yield from self.init(True)

    def work(self, txn: Txn) -> Life:
        """Writes and offsets; whether all of them are acknowledged."""
        rng = self.rng
        partitions = rng.sample(range(PARTITIONS), rng.randint(1, PARTITIONS))
        steps: list[tuple[str, int]] = [("write", partition) for partition in partitions]
        steps += [("write", partitions[0])] * rng.randint(0, 1)
        if rng.random() < 0.7:
            steps.insert(rng.randint(0, len(steps)), ("offsets", 0))
        added: list[int] = []
        for name, partition in steps:
            if name == "offsets":
                is_done = yield from self.commit_offsets(txn)
            else:
                if self.version == 1 and partition not in added:
                    added += [partition]
                    yield from self.add_partition(partition)
                is_done = yield from self.write(txn, partition)
            if not is_done:
                return False
        return True

    def add_partition(self, partition: int) -> Life:
        topics = [AddPartitionsToTxnTopic(TOPIC, [partition])]
        body = AddPartitionsToTxnRequest(None, self.transactional_id, self.producer_id, self.epoch, topics)
        yield from self.ask(
            COORDINATOR, apis.ADD_PARTITIONS_TO_TXN, 3, body,
            lambda a: a.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
        )  # fmt: skip

    def write(self, txn: Txn, partition: int) -> Life:
        sequence = self.sequences[partition]
        value = b"%d/%d/%d" % (txn.number, partition, sequence)
        records = transactional([value], self.producer_id, sequence, self.epoch)
        data = [TopicProduceData(TOPIC, partition_data=[PartitionProduceData(partition, records)])]
        body = ProduceRequest(self.transactional_id, -1, 1000, data)
        version = 11 if self.version == 1 else 12
        answer = yield from self.ask(
            PRODUCE, apis.PRODUCE, version, body, lambda a: a.responses[0].partition_responses[0].error_code, True
        )
        if answer is None:
            # Whether it is in the log is unknown, and so is the next sequence.
            self.must_bump = self.version == 1
            return False
        self.sequences[partition] += 1
        txn.values.setdefault(partition, []).append(value)
        return True

    def commit_offsets(self, txn: Txn) -> Life:
        group = self.transactional_id
        if self.version == 1:
            add = AddOffsetsToTxnRequest(self.transactional_id, self.producer_id, self.epoch, group)
            yield from self.ask(COORDINATOR, apis.ADD_OFFSETS_TO_TXN, 3, add, lambda a: a.error_code)
        partitions = self.rng.sample(range(PARTITIONS), self.rng.randint(1, PARTITIONS))
        offsets = [TxnOffsetCommitRequestPartition(partition, txn.number) for partition in partitions]
        topics = [TxnOffsetCommitRequestTopic(TOPIC, offsets)]
        body = TxnOffsetCommitRequest(self.transactional_id, group, self.producer_id, self.epoch, topics=topics)
        version = 4 if self.version == 1 else 5
        answer = yield from self.ask(
            GROUP, apis.TXN_OFFSET_COMMIT, version, body,
            lambda a: max(one.error_code for topic in a.topics for one in topic.partitions), True,
        )  # fmt: skip
        if answer is None:
            return False
        txn.offsets += partitions
        return True

    def end(self, txn: Txn, is_commit: bool) -> Life:
        txn.commit_asked = is_commit
        body = EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, is_commit)
        version = 1 if self.version == 1 else 5
        # A client that knows of nothing in its transaction does not end it.
        if self.version == 2 or txn.values or txn.offsets or self.must_bump or not is_commit:
            answer = yield from self.ask(COORDINATOR, apis.END_TXN, version, body, lambda a: a.error_code)
            if self.version == 2:
                self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
                self.sequences = [0] * PARTITIONS
        txn.told = is_commit
