"""Transactions and their producers."""

from __future__ import annotations

from dataclasses import dataclass

from kcoord.client.metadata import TopicPartition


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """`coordinator` is the broker's id."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """`start_ms` is -1 if no transaction is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    coordinator: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """`transaction_start_offset` is -1 without an open transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int


@dataclass(frozen=True, slots=True)
class FencedProducer:
    """The producer id and epoch that the coordinator gave out instead."""

    producer_id: int
    producer_epoch: int
