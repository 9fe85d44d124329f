"""Producers that begin with the assignment of their group (draft of KIP-447), over a socket, kill -9 included."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

from kcoord.protocol import apis
from kcoord.protocol.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OwnedTopicPartitions,
)
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kcoord.protocol.end_txn import EndTxnRequest, EndTxnResponse
from kcoord.protocol.errors import (
    CONCURRENT_TRANSACTIONS,
    GROUP_AUTHORIZATION_FAILED,
    INVALID_PRODUCER_EPOCH,
    NONE,
    PRODUCER_FENCED,
    STALE_MEMBER_EPOCH,
)
from kcoord.protocol.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kcoord.protocol.init_producer_id import (
    AssignedTopic,
    GroupAssignment,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kcoord.protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from kcoord.protocol.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from kcoord.server.probe import Probe
from tests.e2e.process import ServerProcess

AT_ONCE = ("--set", "group.consumer.assignment.interval.ms=0")
WAIT_S = 30.0


class Worker:
    """A member of the group `g` and its producer, whose transactional id nobody else knows."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.transactional_id = str(uuid.uuid4())
        self.epoch = 0
        self.owned: dict[bytes, list[int]] = {}
        self.producer = -1, -1

    @property
    def partitions(self) -> list[int]:
        return sorted(partition for of_topic in self.owned.values() for partition in of_topic)

    def beat(self, probe: Probe) -> None:
        request = ConsumerGroupHeartbeatRequest("g", self.name, self.epoch)
        request.topic_partitions = [OwnedTopicPartitions(topic, owned) for topic, owned in self.owned.items()]
        if self.epoch == 0:
            request.rebalance_timeout_ms = 30_000
            request.subscribed_topic_names = ["t"]
        answer = probe.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, request, ConsumerGroupHeartbeatResponse)
        assert answer.error_code == NONE, answer.error_message
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {one.topic_id: one.partitions for one in answer.assignment.topic_partitions}

    def try_init(self, probe: Probe) -> int:
        assignment = GroupAssignment("g", self.epoch, self.name, None, [AssignedTopic("t", self.partitions)])
        request = InitProducerIdRequest(self.transactional_id, 60_000, -1, -1, assignment)
        answer = probe.ask(apis.INIT_PRODUCER_ID, 5, request, InitProducerIdResponse)
        self.producer = answer.producer_id, answer.producer_epoch
        return answer.error_code

    def init(self, probe: Probe) -> list[int]:
        """The errors until the producer has its epoch."""
        errors = []
        ends_at = time.monotonic() + WAIT_S
        while (error := self.try_init(probe)) != NONE:
            assert error == CONCURRENT_TRANSACTIONS
            assert time.monotonic() < ends_at
            errors.append(error)
            time.sleep(0.02)
        return errors

    def commit_offset(self, probe: Probe, partition: int, offset: int) -> int:
        """In the transaction, which it begins (transaction version 2)."""
        topics = [TxnOffsetCommitRequestTopic("t", [TxnOffsetCommitRequestPartition(partition, offset)])]
        body = TxnOffsetCommitRequest(self.transactional_id, "g", *self.producer, self.epoch, self.name, None, topics)
        answer = probe.ask(apis.TXN_OFFSET_COMMIT, 5, body, TxnOffsetCommitResponse)
        return answer.topics[0].partitions[0].error_code

    def end(self, probe: Probe) -> int:
        body = EndTxnRequest(self.transactional_id, *self.producer, True)
        answer = probe.ask(apis.END_TXN, 5, body, EndTxnResponse)
        if answer.error_code == NONE:
            self.producer = answer.producer_id, answer.producer_epoch
        return answer.error_code


def prepare(probe: Probe) -> None:
    made = probe.ask(apis.CREATE_TOPICS, 7, CreateTopicsRequest([CreatableTopic("t", 2, 1)]), CreateTopicsResponse)
    assert made.topics[0].error_code == NONE
    found = probe.ask(apis.FIND_COORDINATOR, 4, FindCoordinatorRequest("", 1, ["x"]), FindCoordinatorResponse)
    assert found.coordinators[0].error_code == NONE


def reconcile(probe: Probe, *workers: Worker) -> None:
    """Until each of them has a part of the two partitions."""
    ends_at = time.monotonic() + WAIT_S
    while not all(len(worker.partitions) * len(workers) == 2 for worker in workers):
        assert time.monotonic() < ends_at
        for worker in workers:
            worker.beat(probe)


def committed(probe: Probe) -> list[int]:
    """The offsets of both partitions, which are stable."""
    group = OffsetFetchRequestGroup("g", None, -1, [OffsetFetchRequestTopics("t", partition_indexes=[0, 1])])
    request = OffsetFetchRequest(groups=[group], require_stable=True)
    answer = probe.ask(apis.OFFSET_FETCH, 9, request, OffsetFetchResponse)
    partitions = answer.groups[0].topics[0].partitions
    assert [one.error_code for one in partitions] == [NONE, NONE]
    return [one.committed_offset for one in sorted(partitions, key=lambda one: one.partition_index)]


def test_a_rebalance_moves_partitions_from_one_producer_to_another(tmp_path: Path) -> None:
    first, second = Worker("first"), Worker("second")
    with ServerProcess(tmp_path, *AT_ONCE) as server, Probe(server.bootstrap) as probe:
        prepare(probe)
        reconcile(probe, first)
        assert first.init(probe) == []
        for partition in (0, 1):
            assert first.commit_offset(probe, partition, 10) == NONE
        assert first.end(probe) == NONE
        assert committed(probe) == [10, 10]
        # The transaction that the new owner finds.
        for partition in (0, 1):
            assert first.commit_offset(probe, partition, 20) == NONE
        server.kill()
    with ServerProcess(tmp_path, *AT_ONCE) as server, Probe(server.bootstrap) as probe:
        zombie = Worker("first")
        zombie.__dict__.update(first.__dict__)
        reconcile(probe, first, second)
        assert second.init(probe) != []
        # What the first one had open is aborted, and it cannot go on with its producer.
        assert committed(probe) == [10, 10]
        assert zombie.end(probe) == PRODUCER_FENCED
        assert zombie.commit_offset(probe, first.partitions[0], 20) == INVALID_PRODUCER_EPOCH
        assert zombie.try_init(probe) == STALE_MEMBER_EPOCH
        assert first.init(probe) == []
        for worker, other in ((first, second), (second, first)):
            assert worker.commit_offset(probe, worker.partitions[0], 30) == NONE
            assert worker.commit_offset(probe, other.partitions[0], 40) == GROUP_AUTHORIZATION_FAILED
            assert worker.end(probe) == NONE
        assert committed(probe) == [30, 30]
        server.kill()
    with ServerProcess(tmp_path, *AT_ONCE) as server, Probe(server.bootstrap) as probe:
        assert committed(probe) == [30, 30]
        for worker in (first, second):
            assert worker.commit_offset(probe, worker.partitions[0], 50) == NONE
            assert worker.end(probe) == NONE
        assert committed(probe) == [50, 50]
        assert [line["aborted"] for line in server.lines("partitions_reassigned")] == []
        assert server.stop() == 0
