"""InitProducerId with a group assignment, as the draft of KIP-447 had it.

A producer names the member of its consumer, its generation (or member epoch), and the partitions that the group has
assigned to it. It does so after each rebalance. The group is asked first, so a member of an older generation gets an
error and changes nothing.

If other producers own some of these partitions, each of them is fenced: a first request aborts its transaction, and a
later one, when the transaction is over, increments its epoch and removes its assignment. These requests are answered
with CONCURRENT_TRANSACTIONS, and clients try again. A transaction whose end is decided is not disturbed. When the
producer gets its epoch, every transaction of an earlier owner is over, and no earlier owner can begin another one.

An outcome has one log, and owners may have different ones. So each owner is fenced by an event of its own. A crash
between them leaves the others as they were, and the client's next try fences them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from kcoord.core.cause import PARTITIONS_REASSIGNED, Cause
from kcoord.core.config import CoreConfig
from kcoord.core.outcome import INFO, Event, Fact, Now, Outcome
from kcoord.core.producers import ProducerIds
from kcoord.core.transactions.end import TransactionEnds
from kcoord.core.transactions.state import (
    EMPTY,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    ONGOING,
    Transaction,
    Transactions,
)
from kcoord.protocol.errors import (
    CONCURRENT_TRANSACTIONS,
    ILLEGAL_GENERATION,
    INVALID_GROUP_ID,
    INVALID_REQUEST,
    NONE,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kcoord.protocol.init_producer_id import GroupAssignment
from kcoord.protocol.records.transaction_group_assignment import (
    AssignedTopic,
    TransactionGroupAssignmentKey,
    TransactionGroupAssignmentValue,
)
from kcoord.protocol.records.transaction_log import TransactionLogKey

# What one request fences, so that its turn stays short: owners, and partitions of their transactions. The client's next
# try fences more.
OWNERS_MAX: Final = 100
PARTITIONS_MAX: Final = 1000
# (group id, member id, instance id, generation or member epoch, partitions by topic id) -> error code: NONE if the
# group has such a member, in this generation, and may have assigned the partitions to it.
CheckMember = Callable[[str, str, str | None, int, list[tuple[bytes, int]]], int]


def refuse_member(
    group_id: str, member_id: str, group_instance_id: str | None, epoch: int, partitions: list[tuple[bytes, int]]
) -> int:
    """The check of a coordinator that knows no group."""
    return ILLEGAL_GENERATION


@final
class FenceOwner(Event):
    """Another producer takes over partitions from the one with this id and epoch."""

    def __init__(self, transactional_id: str, producer_id: int, producer_epoch: int, cause: Cause) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.cause = cause


@final
class AssignmentClaims:
    """`check_member` is the group coordinator's."""

    def __init__(
        self,
        config: CoreConfig,
        transactions: Transactions,
        producer_ids: ProducerIds,
        ends: TransactionEnds,
        check_member: CheckMember = refuse_member,
    ) -> None:
        self.config = config
        self.transactions = transactions
        self.producer_ids = producer_ids
        self.ends = ends
        self.check_member = check_member

    def claim(self, transactional_id: str, assignment: GroupAssignment, out: Outcome) -> int:
        """NONE if the partitions have no other owner. Otherwise an error, and events that fence the owners."""
        error = self._check(assignment)
        if error != NONE:
            return error
        owners: dict[str, bool] = {}
        for topic in assignment.topics:
            for partition in topic.partitions:
                for owner in self.transactions.assignments.owners(assignment.group_id, topic.name, partition):
                    if owner != transactional_id:
                        owners[owner] = True
        if not owners:
            return NONE
        text = f"of group {assignment.group_id}, in generation {assignment.generation_id}, to {transactional_id}"
        cause = Cause(PARTITIONS_REASSIGNED, assignment.member_id, text)
        size = 0
        for owner in owners:
            txn = self.transactions.by_id.get(owner)
            if txn is None:
                out.follow_ups.append(FenceOwner(owner, NO_PRODUCER_ID, NO_EPOCH, cause))
            elif not txn.is_ending:
                out.follow_ups.append(FenceOwner(owner, txn.producer_id, txn.producer_epoch, cause))
                size += txn.partition_count()
            if size >= PARTITIONS_MAX or len(out.follow_ups) >= OWNERS_MAX:
                break
        return CONCURRENT_TRANSACTIONS

    def _check(self, assignment: GroupAssignment) -> int:
        if not assignment.group_id:
            return INVALID_GROUP_ID
        if not assignment.member_id or assignment.generation_id < 0:
            return INVALID_REQUEST
        partitions: list[tuple[bytes, int]] = []
        for asked in assignment.topics:
            topic = self.transactions.topics.get(asked.name)
            for partition in asked.partitions:
                if topic is None or partition < 0 or partition >= topic.partition_count:
                    return UNKNOWN_TOPIC_OR_PARTITION
                partitions.append((topic.topic_id, partition))
        if len(partitions) > self.config.request_partitions_max:
            return INVALID_REQUEST
        return self.check_member(
            assignment.group_id,
            assignment.member_id,
            assignment.group_instance_id,
            assignment.generation_id,
            partitions,
        )

    def handle_fence(self, event: FenceOwner, now: Now) -> Outcome:
        """Abort the transaction of an earlier owner; or, if it has none, take its epoch and its assignment away."""
        out = Outcome()
        transactional_id = event.transactional_id
        if transactional_id not in self.transactions.assignments.by_id:
            return out
        txn = self.transactions.by_id.get(transactional_id)
        if txn is None:
            # What an import or a repair left of a transactional id.
            log = self.transactions.log_of(transactional_id)
            out.add(log, TransactionGroupAssignmentKey(transactional_id), None, event.cause)
            return out
        if txn.is_ending or txn.producer_id != event.producer_id or txn.producer_epoch != event.producer_epoch:
            return out
        is_open = txn.status == ONGOING
        is_done = self.ends.fence(txn, event.cause, now, out) if is_open else self._retire(txn, event.cause, now, out)
        if not is_done:
            self.producer_ids.wait(event, out)
            return out
        fields: dict[str, object] = {
            "transactional_id": transactional_id,
            "producer_id": txn.producer_id,
            "aborted": is_open,
            "cause": event.cause.detail,
        }
        out.facts.append(Fact(INFO, "partitions_reassigned", fields))
        return out

    def _retire(self, txn: Transaction, cause: Cause, now: Now, out: Outcome) -> bool:
        """A new epoch without an assignment. Returns False if that has to wait for a producer id."""
        producer_id, epoch = txn.producer_id, txn.producer_epoch + 1
        if txn.is_exhausted:
            producer_id, epoch = self.producer_ids.take(), 0
            if producer_id == NO_PRODUCER_ID:
                return False
        value = txn.record(EMPTY, now.wall_ms)
        value.producer_id = producer_id
        value.producer_epoch = epoch
        value.transaction_start_timestamp_ms = NO_TIME
        # The producer of the last epoch must not go on as if an answer had been lost.
        txn.next_last_epoch = NO_EPOCH
        out.add(txn.log, TransactionLogKey(txn.transactional_id), value, cause)
        out.add(txn.log, TransactionGroupAssignmentKey(txn.transactional_id), None, cause)
        return True

    def add_record(self, txn: Transaction, assignment: GroupAssignment | None, out: Outcome) -> None:
        """Add the record of the assignment to those of a new epoch, or remove the last one."""
        key = TransactionGroupAssignmentKey(txn.transactional_id)
        if assignment is not None:
            topics = [AssignedTopic(topic.name, list(topic.partitions)) for topic in assignment.topics]
            value = TransactionGroupAssignmentValue(
                assignment.group_id,
                assignment.generation_id,
                assignment.member_id,
                assignment.group_instance_id,
                topics,
            )
            out.add(txn.log, key, value)
        elif txn.transactional_id in self.transactions.assignments.by_id:
            out.add(txn.log, key, None)
