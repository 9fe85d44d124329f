"""Worst frames of the APIs of transactions."""

from __future__ import annotations

from typing import Final

from kcoord.protocol import apis
from kcoord.protocol.add_offsets_to_txn import AddOffsetsToTxnRequest
from kcoord.protocol.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.list_transactions import ListTransactionsRequest
from kcoord.protocol.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kcoord.protocol.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.stall.frames import Frame, filled, message
from tests.stall.shapes import DIFFERENT_MAX
from tests.stall.worlds import (
    FREE_GROUP,
    OFFSETS_TRANSACTION,
    OWNERS_GROUP,
    TRANSACTION_TIMEOUT_MS,
    WIDE,
    WIDE_PARTITIONS,
    WIDE_TRANSACTION,
    World,
    group_name,
    transactional_id,
)

WORLD: Final = "transactions"
ONE: Final = OFFSETS_TRANSACTION
# A transactional id without a transaction.
FREE: Final = 2
ALL_IDS: Final = [transactional_id(index) for index in range(DIFFERENT_MAX)]
# It needs many steps for each of many names.
PATTERN: Final = "(x|0|1|2)*(0|1|2|3|4|5)+(0|1|2|3|4|5|6|7|8)*9"


def wide(world: World) -> list[int]:
    return list(range(world.size(WIDE_PARTITIONS)))


def add_partitions(world: World) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest([], transactional_id(FREE), FREE, 0, [AddPartitionsToTxnTopic(WIDE, wide(world))])


def commit_offsets(world: World, index: int) -> TxnOffsetCommitRequest:
    partitions = [TxnOffsetCommitRequestPartition(number, 1, -1, "") for number in wide(world)]
    topics = [TxnOffsetCommitRequestTopic(WIDE, partitions)]
    return TxnOffsetCommitRequest(transactional_id(index), group_name(0), index, 0, -1, "", None, topics)


def claim(world: World, group: str) -> InitProducerIdRequest:
    assignment = world.assignment(group, wide(world))
    return InitProducerIdRequest(transactional_id(FREE), TRANSACTION_TIMEOUT_MS, group_assignment=assignment)


def write_markers(world: World) -> WriteTxnMarkersRequest:
    topics = [WritableTxnMarkerTopic(WIDE, wide(world))]
    return WriteTxnMarkersRequest([WritableTxnMarker(WIDE_TRANSACTION, 0, False, topics, 0, 0)])


def end(index: int, is_commit: bool) -> EndTxnRequest:
    return EndTxnRequest(transactional_id(index), index, 0, is_commit)


def transaction_frames() -> list[Frame]:
    wide_id = transactional_id(WIDE_TRANSACTION)
    return [
        message(apis.INIT_PRODUCER_ID, 5, "aborts 8,000 partitions", WORLD, lambda world: InitProducerIdRequest(
            wide_id, TRANSACTION_TIMEOUT_MS), changes=True),
        message(apis.INIT_PRODUCER_ID, 5, "has 8,000 partitions of a group", WORLD, lambda world: claim(
            world, FREE_GROUP), changes=True),
        message(apis.INIT_PRODUCER_ID, 5, "takes 8,000 partitions from as many producers", WORLD, lambda world: claim(
            world, OWNERS_GROUP), changes=True),
        message(apis.ADD_PARTITIONS_TO_TXN, 3, "8,000 partitions", WORLD, add_partitions, changes=True),
        filled(apis.ADD_PARTITIONS_TO_TXN, 5, "a partition of many", WORLD, "Transactions", "different", "deep",
               changes=True, TransactionalId=ALL_IDS, ProducerId=range(DIFFERENT_MAX), ProducerEpoch=0, Name=WIDE,
               Partitions=0),
        filled(apis.ADD_PARTITIONS_TO_TXN, 5, "a partition of the wide one, as often as fits", WORLD, "Transactions",
               "deep", changes=True, TransactionalId=wide_id, ProducerId=WIDE_TRANSACTION, ProducerEpoch=0,
               Name="t00000", Partitions=0),
        message(apis.ADD_OFFSETS_TO_TXN, 4, "a group", WORLD, lambda world: AddOffsetsToTxnRequest(
            wide_id, WIDE_TRANSACTION, 0, group_name(0)), changes=True),
        message(apis.TXN_OFFSET_COMMIT, 5, "8,000 offsets of a new transaction", WORLD, lambda world: commit_offsets(
            world, FREE), changes=True),
        message(apis.TXN_OFFSET_COMMIT, 5, "8,000 offsets once more", WORLD, lambda world: commit_offsets(
            world, ONE), changes=True),
        message(apis.END_TXN, 5, "8,000 partitions", WORLD, lambda world: end(WIDE_TRANSACTION, True), changes=True),
        message(apis.END_TXN, 5, "40,000 offsets", WORLD, lambda world: end(ONE, True), changes=True),
        message(apis.END_TXN, 5, "40,000 offsets aborted", WORLD, lambda world: end(ONE, False), changes=True),
        message(apis.WRITE_TXN_MARKERS, 2, "8,000 partitions", WORLD, write_markers, changes=True),
        filled(apis.WRITE_TXN_MARKERS, 2, "a partition, as often as fits", WORLD, "Markers", "deep", changes=True,
               ProducerEpoch=0, Name=WIDE, PartitionIndexes=0),
        filled(apis.DESCRIBE_TRANSACTIONS, 0, "every id", WORLD, "TransactionalIds", "different",
               TransactionalIds=ALL_IDS),
        filled(apis.DESCRIBE_TRANSACTIONS, 0, "one of 8,000 partitions, as often as fits", WORLD, "TransactionalIds",
               TransactionalIds=wide_id),
        message(apis.LIST_TRANSACTIONS, 2, "every id", WORLD, lambda world: ListTransactionsRequest([], [], -1, None)),
        message(apis.LIST_TRANSACTIONS, 2, "every id by a pattern", WORLD, lambda world: ListTransactionsRequest(
            [], [], -1, PATTERN)),
        filled(apis.LIST_TRANSACTIONS, 2, "unknown states", WORLD, "StateFilters", "different",
               StateFilters=ALL_IDS),
        filled(apis.LIST_TRANSACTIONS, 2, "producers", WORLD, "ProducerIdFilters", "different",
               ProducerIdFilters=range(DIFFERENT_MAX)),
        filled(apis.DESCRIBE_PRODUCERS, 0, "every partition", WORLD, "Topics.PartitionIndexes", "different",
               Name=WIDE, PartitionIndexes=range(DIFFERENT_MAX)),
        filled(apis.DESCRIBE_PRODUCERS, 0, "a partition, as often as fits", WORLD, "Topics.PartitionIndexes",
               Name=WIDE, PartitionIndexes=0),
    ]  # fmt: skip
