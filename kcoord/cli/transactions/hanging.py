"""Finds hanging transactions (KIP-664).

A producer has a transaction open in a partition, and its coordinator does not know that the transaction has this
partition. Then nobody will ever write the marker, and the partition's last stable offset does not advance any more.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.cli.transactions.cluster import Cluster, check
from kcoord.protocol import apis
from kcoord.protocol.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)
from kcoord.protocol.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from kcoord.protocol.errors import LEADER_NOT_AVAILABLE, NONE, TRANSACTIONAL_ID_NOT_FOUND
from kcoord.protocol.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from kcoord.protocol.metadata import MetadataResponseTopic

# What one request of DescribeProducers asks for, far below the limits of a server.
PARTITIONS_MAX: Final = 1000


@final
class OpenTransaction:
    """What one producer has open in one partition. `transactional_id` is "" if no coordinator knows the producer."""

    def __init__(self, topic: str, partition: int, leader: int, producer: ProducerState) -> None:
        self.topic = topic
        self.partition = partition
        self.leader = leader
        self.producer = producer
        self.transactional_id = ""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


def open_transactions(cluster: Cluster, topics: list[MetadataResponseTopic]) -> list[OpenTransaction]:
    """The open transactions of the topics' partitions, as their leaders know them."""
    by_leader: dict[int, list[tuple[str, int]]] = {}
    for topic in topics:
        name = topic.name or ""
        check(topic.error_code, f"topic {name}")
        for partition in topic.partitions:
            check(NONE if partition.leader_id >= 0 else LEADER_NOT_AVAILABLE, f"{name}-{partition.partition_index}")
            by_leader.setdefault(partition.leader_id, []).append((name, partition.partition_index))
    found: list[OpenTransaction] = []
    for leader, partitions in by_leader.items():
        for start in range(0, len(partitions), PARTITIONS_MAX):
            found += _of_leader(cluster, leader, partitions[start : start + PARTITIONS_MAX])
    found.sort(key=lambda one: (one.topic, one.partition, one.producer.current_txn_start_offset))
    return found


def _of_leader(cluster: Cluster, leader: int, partitions: list[tuple[str, int]]) -> list[OpenTransaction]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    request = DescribeProducersRequest([TopicRequest(topic, indexes) for topic, indexes in by_topic.items()])
    answer = cluster.ask(leader, apis.DESCRIBE_PRODUCERS, request, DescribeProducersResponse)
    found: list[OpenTransaction] = []
    for described in answer.topics:
        for one in described.partitions:
            check(one.error_code, f"the producers of {described.name}-{one.partition_index}", one.error_message)
            for producer in one.active_producers:
                if producer.current_txn_start_offset >= 0:
                    found.append(OpenTransaction(described.name, one.partition_index, leader, producer))
    return found


def hanging(cluster: Cluster, candidates: list[OpenTransaction]) -> list[OpenTransaction]:
    """The candidates that no coordinator will end.

    DescribeTransactions returns the partitions of an ongoing transaction, and of one that ends those without a marker.
    """
    if not candidates:
        return []
    producer_ids = sorted({one.producer.producer_id for one in candidates})
    ids: dict[int, str] = {}
    for node_id in list(cluster.brokers):
        request = ListTransactionsRequest(producer_id_filters=producer_ids)
        answer = cluster.retrying(lambda node=node_id, body=request: _listed(cluster, node, body))  # type: ignore[misc]
        for listed in answer.transaction_states:
            ids[listed.producer_id] = listed.transactional_id
    known = {transactional_id: described(cluster, transactional_id) for transactional_id in set(ids.values())}
    found: list[OpenTransaction] = []
    for one in candidates:
        one.transactional_id = ids.get(one.producer.producer_id, "")
        state = known.get(one.transactional_id)
        if state is None or not has_partition(state, one.topic, one.partition):
            found.append(one)
    return found


def _listed(cluster: Cluster, node_id: int, request: ListTransactionsRequest) -> ListTransactionsResponse:
    answer = cluster.ask(node_id, apis.LIST_TRANSACTIONS, request, ListTransactionsResponse)
    check(answer.error_code, f"the transactions of broker {node_id}")
    return answer


def described(cluster: Cluster, transactional_id: str) -> TransactionState | None:
    """The state of a transactional id; None if its coordinator does not know it."""
    found = cluster.retrying(lambda: _described(cluster, transactional_id)[1])
    return None if found.error_code == TRANSACTIONAL_ID_NOT_FOUND else found


def describe_with_coordinator(cluster: Cluster, transactional_id: str) -> tuple[int, TransactionState]:
    """The coordinator of a transactional id, and its state."""
    coordinator, state = cluster.retrying(lambda: _described(cluster, transactional_id))
    check(state.error_code, f"transactional id {transactional_id}")
    return coordinator, state


def _described(cluster: Cluster, transactional_id: str) -> tuple[int, TransactionState]:
    coordinator = cluster.coordinator(transactional_id)
    request = DescribeTransactionsRequest([transactional_id])
    answer = cluster.ask(coordinator, apis.DESCRIBE_TRANSACTIONS, request, DescribeTransactionsResponse)
    (state,) = answer.transaction_states
    if state.error_code != TRANSACTIONAL_ID_NOT_FOUND:
        check(state.error_code, f"transactional id {transactional_id}")
    return coordinator, state


def has_partition(state: TransactionState, topic: str, partition: int) -> bool:
    return any(topic == one.topic and partition in one.partitions for one in state.topics)
