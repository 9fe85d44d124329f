"""Transactions and producers: list, describe, abort, fence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kcoord.client.admin.results import (
    FencedProducer,
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
)
from kcoord.client.admin.spread import Spread, only
from kcoord.client.cluster import TRANSACTION
from kcoord.client.connection import Connection
from kcoord.client.deadline import Deadline
from kcoord.client.errors import KafkaError, check, error_for
from kcoord.client.partition import TopicPartition, by_topic
from kcoord.protocol import apis
from kcoord.protocol.describe_producers import DescribeProducersRequest, DescribeProducersResponse, TopicRequest
from kcoord.protocol.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from kcoord.protocol.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kcoord.protocol.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from kcoord.protocol.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

# The versions of ListTransactions that filter by age (KIP-994) and by a pattern (KIP-1152).
DURATION_FROM: Final = 1
PATTERN_FROM: Final = 2
# The timeout that a fenced producer's id gets: it matters to no one, because the producer begins again.
FENCE_TIMEOUT_MS: Final = 60_000
NO_PRODUCER: Final = -1


async def list_transactions(
    spread: Spread, deadline: Deadline, request: ListTransactionsRequest
) -> list[TransactionListing]:
    version_min = DURATION_FROM if request.duration_filter >= 0 else 0
    if request.transactional_id_pattern is not None:
        version_min = PATTERN_FROM

    async def ask(connection: Connection, nodes: list[int]) -> dict[int, list[TransactionListing] | KafkaError]:
        version = connection.version(apis.LIST_TRANSACTIONS, version_min)
        answer = await connection.ask(apis.LIST_TRANSACTIONS, version, request, ListTransactionsResponse)
        check(answer.error_code, f"the transactions of {connection.address}")
        return {
            node: [
                TransactionListing(one.transactional_id, one.producer_id, one.transaction_state, node)
                for one in answer.transaction_states
            ]
            for node in nodes
        }

    brokers = await spread.all_brokers(deadline)
    answers = await spread.over_brokers(deadline, brokers, ask)
    return sorted((one for node in brokers for one in only(answers, node)), key=lambda one: one.transactional_id)


async def describe_transactions(
    spread: Spread, deadline: Deadline, transactional_ids: Iterable[str]
) -> dict[str, TransactionDescription | KafkaError]:
    async def ask(connection: Connection, part: list[str]) -> dict[str, TransactionDescription | KafkaError]:
        version = connection.version(apis.DESCRIBE_TRANSACTIONS)
        request = DescribeTransactionsRequest(part)
        answer = await connection.ask(apis.DESCRIBE_TRANSACTIONS, version, request, DescribeTransactionsResponse)
        found: dict[str, TransactionDescription | KafkaError] = {}
        for one in answer.transaction_states:
            name = one.transactional_id
            if one.error_code:
                found[name] = error_for(one.error_code, f"transactional id {name}")
                continue
            partitions = sorted(TopicPartition(topic.topic, it) for topic in one.topics for it in topic.partitions)
            found[name] = TransactionDescription(
                name,
                one.transaction_state,
                one.producer_id,
                one.producer_epoch,
                one.transaction_timeout_ms,
                one.transaction_start_time_ms,
                await spread.cluster.coordinator(TRANSACTION, name),
                tuple(partitions),
            )
        return found

    return await spread.over_coordinators(deadline, TRANSACTION, transactional_ids, ask)


async def describe_producers(
    spread: Spread, deadline: Deadline, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[ProducerDescription, ...] | KafkaError]:
    async def ask(
        connection: Connection, part: list[TopicPartition]
    ) -> dict[TopicPartition, tuple[ProducerDescription, ...] | KafkaError]:
        version = connection.version(apis.DESCRIBE_PRODUCERS)
        request = DescribeProducersRequest([TopicRequest(name, some) for name, some in by_topic(part).items()])
        answer = await connection.ask(apis.DESCRIBE_PRODUCERS, version, request, DescribeProducersResponse)
        found: dict[TopicPartition, tuple[ProducerDescription, ...] | KafkaError] = {}
        for topic in answer.topics:
            for it in topic.partitions:
                key = TopicPartition(topic.name, it.partition_index)
                producers = [
                    ProducerDescription(
                        one.producer_id,
                        one.producer_epoch,
                        one.last_sequence,
                        one.last_timestamp,
                        one.coordinator_epoch,
                        one.current_txn_start_offset,
                    )
                    for one in sorted(it.active_producers, key=lambda one: one.producer_id)
                ]
                found[key] = tuple(producers)
                if it.error_code:
                    found[key] = error_for(it.error_code, f"partition {key}", it.error_message)
        return found

    return await spread.over_leaders(deadline, partitions, ask)


async def abort_transaction(
    spread: Spread,
    deadline: Deadline,
    partition: TopicPartition,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
) -> None:
    async def ask(connection: Connection, part: list[TopicPartition]) -> dict[TopicPartition, KafkaError | None]:
        version = connection.version(apis.WRITE_TXN_MARKERS)
        topics = [WritableTxnMarkerTopic(name, some) for name, some in by_topic(part).items()]
        marker = WritableTxnMarker(producer_id, producer_epoch, False, topics, coordinator_epoch)
        request = WriteTxnMarkersRequest([marker])
        answer = await connection.ask(apis.WRITE_TXN_MARKERS, version, request, WriteTxnMarkersResponse)
        return {
            TopicPartition(topic.name, one.partition_index): error_for(one.error_code, f"partition {partition}")
            if one.error_code
            else None
            for marker_result in answer.markers
            for topic in marker_result.topics
            for one in topic.partitions
        }

    only(await spread.over_leaders(deadline, [partition], ask), partition)


async def fence_producers(
    spread: Spread, deadline: Deadline, transactional_ids: Iterable[str]
) -> dict[str, FencedProducer | KafkaError]:
    async def ask(connection: Connection, part: list[str]) -> dict[str, FencedProducer | KafkaError]:
        version = connection.version(apis.INIT_PRODUCER_ID)
        found: dict[str, FencedProducer | KafkaError] = {}
        for name in part:
            request = InitProducerIdRequest(name, FENCE_TIMEOUT_MS, NO_PRODUCER, NO_PRODUCER)
            answer = await connection.ask(apis.INIT_PRODUCER_ID, version, request, InitProducerIdResponse)
            found[name] = FencedProducer(answer.producer_id, answer.producer_epoch)
            if answer.error_code:
                found[name] = error_for(answer.error_code, f"transactional id {name}")
        return found

    return await spread.over_coordinators(deadline, TRANSACTION, transactional_ids, ask)
