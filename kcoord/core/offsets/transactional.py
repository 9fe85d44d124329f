"""TxnOffsetCommit v0-5: offsets that are committed with a transaction (KIP-98, KIP-447, KIP-890).

The order of the checks is Kafka's: topics, group id, transaction, group. The transaction must have the partition of
`__consumer_offsets` that holds the group. Up to version 4 the client adds it with AddOffsetsToTxn. From version 5 on
the commit itself adds it, before the group is checked: a commit that the group refuses leaves the partition in the
transaction, which then gets a marker there, and that is harmless. One check of our own comes before that of the
transaction: a producer that began with a group assignment commits offsets within it (transactions/claims.py).

An outcome writes to one log, and the partition is added in `__transaction_state`. So version 5 takes two steps. The
first one adds the partition and leaves `TxnOffsetCommitStep`, which checks the group and writes the offsets. A crash
between the two loses the commit and its answer, and the client aborts the transaction or it times out.

The records are a transactional batch. They are pending (see pending.py) until the transaction ends. Kafka stores no
topic ids with them, and no commit of a transaction extends the session of a member.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from kcoord.core.groups.errors import GroupError
from kcoord.core.offsets.commit import is_metadata_too_large
from kcoord.core.offsets.fences import check_partition, check_transactional_commit
from kcoord.core.offsets.state import OffsetState
from kcoord.core.outcome import HELD, INFO, OFFSETS_TOPIC, Event, Fact, Now, Outcome, Request, TransactionalProducer
from kcoord.core.topics.registry import Topic
from kcoord.protocol import errors
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

# From these versions on: no crash of the client on COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296), the error code
# TRANSACTION_ABORTABLE, and partitions that are added by the commit itself (KIP-890).
LOAD_IN_PROGRESS_VERSION: Final = 2
ABORTABLE_VERSION: Final = 4
IMPLICIT_ADD_VERSION: Final = 5
# The offsets of one transaction in one log. Its marker applies all of them in one turn, at some 1.2 µs each.
PENDING_OFFSETS_MAX: Final = 100_000

# (transactional id, producer id, producer epoch, topic, partition, connection id) -> error code: NONE if the partition
# is in the producer's open transaction, and the request was not delayed on a connection that the client has replaced.
# HELD if the request is to be handed to `Hold`.
CheckCommit = Callable[[str, int, int, str, int, int], int]
# (transactional id, request, now) -> an outcome after which the request is handled again later, or dropped.
Hold = Callable[[str, Request, Now], Outcome]
# (transactional id, group id, topic, partition) -> whether the transaction may have an offset of this partition.
Permits = Callable[[str, str, str, int], bool]
# (transactional id, producer id, producer epoch, partitions, now) -> the records that add the partitions to the
# producer's transaction, and the error code for all of them.
AddImplicitly = Callable[[str, int, int, list[tuple[str, int]], Now], tuple[Outcome, int]]


def refuse_commit(
    transactional_id: str, producer_id: int, producer_epoch: int, topic: str, partition: int, connection_id: int
) -> int:
    """The check of a coordinator that knows no transactional id."""
    return errors.INVALID_PRODUCER_ID_MAPPING


def refuse_add(
    transactional_id: str, producer_id: int, producer_epoch: int, partitions: list[tuple[str, int]], now: Now
) -> tuple[Outcome, int]:
    """The addition of a coordinator that knows no transactional id."""
    return Outcome(), errors.INVALID_PRODUCER_ID_MAPPING


def hold_none(transactional_id: str, request: Request, now: Now) -> Outcome:
    """The hold of a coordinator whose check never asks for it."""
    raise RuntimeError("nothing holds requests here")


def permit_all(transactional_id: str, group_id: str, topic: str, partition: int) -> bool:
    """The permission of a coordinator without assignments."""
    return True


@final
class AcceptedTopic:
    """The partitions of a topic that exist, and so reach the coordinator."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.partitions: list[TxnOffsetCommitRequestPartition] = []


@final
class TxnOffsetCommitStep(Event):
    """The second step of a commit: the transaction has the partition of the group now."""

    def __init__(
        self,
        request: Request,
        body: TxnOffsetCommitRequest,
        accepted: list[AcceptedTopic],
        refused: list[TxnOffsetCommitResponseTopic],
    ) -> None:
        self.request = request
        self.body = body
        self.accepted = accepted
        self.refused = refused


@final
class TransactionalCommits:
    """`check_commit`, `add_implicitly`, `hold` and `permits` are the transaction coordinator's."""

    def __init__(
        self,
        state: OffsetState,
        check_commit: CheckCommit = refuse_commit,
        add_implicitly: AddImplicitly = refuse_add,
        hold: Hold = hold_none,
        permits: Permits = permit_all,
    ) -> None:
        self.state = state
        self.check_commit = check_commit
        self.add_implicitly = add_implicitly
        self.hold = hold
        self.permits = permits
        self.pending_offsets_max = PENDING_OFFSETS_MAX

    def handle_txn_offset_commit(self, request: Request, body: TxnOffsetCommitRequest, now: Now) -> Outcome:
        accepted, refused = self._check_topics(body)
        step = TxnOffsetCommitStep(request, body, accepted, refused)
        outcome = Outcome()
        if not accepted:
            outcome.reply(request.request_id, TxnOffsetCommitResponse(0, refused))
            return outcome
        if not body.group_id:
            return _refuse(step, errors.INVALID_GROUP_ID, outcome)
        if not self._is_permitted(body, accepted):
            return _refuse(step, errors.GROUP_AUTHORIZATION_FAILED, outcome)
        transactional_id, producer_id, epoch = body.transactional_id, body.producer_id, body.producer_epoch
        partition = self.state.log_of(body.group_id).partition
        if self._is_being_deleted(accepted):
            return _refuse(step, error_of_version(errors.COORDINATOR_LOAD_IN_PROGRESS, request.version), outcome)
        if request.version >= IMPLICIT_ADD_VERSION:
            outcome, error = self.add_implicitly(
                transactional_id, producer_id, epoch, [(OFFSETS_TOPIC, partition)], now
            )
        else:
            error = self.check_commit(
                transactional_id, producer_id, epoch, OFFSETS_TOPIC, partition, request.connection_id
            )
            if error == HELD:
                return self.hold(transactional_id, request, now)
        if error != errors.NONE:
            return _refuse(step, error_of_version(error, request.version), outcome)
        if outcome.records:
            outcome.follow_ups.append(step)
            return outcome
        return self._commit(step, now, outcome)

    def _is_being_deleted(self, accepted: list[AcceptedTopic]) -> bool:
        """Whether offsets of an earlier topic of the same name remain: their tombstones would delete these, too."""
        left = self.state.topics_left
        removed = self.state.topics.removed
        if not left and not removed:
            return False
        names = dict.fromkeys([*left.values(), *removed.values()], True)
        return any(topic.topic.name in names for topic in accepted)

    def handle_step(self, step: TxnOffsetCommitStep, now: Now) -> Outcome:
        """Commit after the partition of the group was added to the transaction."""
        return self._commit(step, now, Outcome())

    def _check_topics(
        self, body: TxnOffsetCommitRequest
    ) -> tuple[list[AcceptedTopic], list[TxnOffsetCommitResponseTopic]]:
        """The topics and partitions that exist, and the answers for all others, one entry per topic."""
        accepted: list[AcceptedTopic] = []
        refused: dict[str, TxnOffsetCommitResponseTopic] = {}
        for asked in body.topics:
            topic = self.state.topics.get(asked.name)
            valid = None if topic is None else AcceptedTopic(topic)
            unknown: list[TxnOffsetCommitResponsePartition] = []
            for p in asked.partitions:
                if valid is not None and 0 <= p.partition_index < valid.topic.partition_count:
                    valid.partitions.append(p)
                else:
                    code = errors.UNKNOWN_TOPIC_OR_PARTITION
                    unknown.append(TxnOffsetCommitResponsePartition(p.partition_index, code))
            if valid is not None and valid.partitions:
                accepted.append(valid)
            if unknown or valid is None:
                answer = refused.get(asked.name)
                if answer is None:
                    refused[asked.name] = TxnOffsetCommitResponseTopic(asked.name, unknown)
                else:
                    answer.partitions.extend(unknown)
        return accepted, list(refused.values())

    def _is_permitted(self, body: TxnOffsetCommitRequest, accepted: list[AcceptedTopic]) -> bool:
        """Whether the assignment that the producer began with, if any, has all the partitions (draft of KIP-447)."""
        for topic in accepted:
            for p in topic.partitions:
                if not self.permits(body.transactional_id, body.group_id, topic.topic.name, p.partition_index):
                    return False
        return True

    def _commit(self, step: TxnOffsetCommitStep, now: Now, outcome: Outcome) -> Outcome:
        """Check the group, and add the records."""
        body = step.body
        error = self._check_group(body, step.accepted)
        if error != errors.NONE:
            return _refuse(step, error, outcome)
        group_id = body.group_id
        log_id = self.state.log_of(group_id)
        if self._has_too_many(log_id.partition, body.producer_id, step.accepted):
            return _refuse(step, errors.INVALID_COMMIT_OFFSET_SIZE, outcome)
        answers: list[TxnOffsetCommitResponseTopic] = []
        for accepted in step.accepted:
            name = accepted.topic.name
            results: list[TxnOffsetCommitResponsePartition] = []
            for p in accepted.partitions:
                metadata = p.committed_metadata
                if is_metadata_too_large(self.state.config, metadata):
                    code = errors.OFFSET_METADATA_TOO_LARGE
                    results.append(TxnOffsetCommitResponsePartition(p.partition_index, code))
                    continue
                results.append(TxnOffsetCommitResponsePartition(p.partition_index, errors.NONE))
                leader_epoch = max(p.committed_leader_epoch, -1)
                text = "" if metadata is None else metadata
                outcome.add(
                    log_id,
                    OffsetCommitKey(group_id, name, p.partition_index),
                    OffsetCommitValue(p.committed_offset, leader_epoch, text, now.wall_ms),
                )
            answers.append(TxnOffsetCommitResponseTopic(name, results))
        if outcome.records:
            outcome.producer = TransactionalProducer(body.producer_id, body.producer_epoch)
            if not self.state.groups.is_known(group_id):
                outcome.facts.append(Fact(INFO, "simple_group_created", {"group_id": group_id}))
        outcome.reply(step.request.request_id, TxnOffsetCommitResponse(0, _merge(step.refused, answers)))
        return outcome

    def _has_too_many(self, log_partition: int, producer_id: int, accepted: list[AcceptedTopic]) -> bool:
        """Whether the transaction would have more offsets in this log than its marker can apply in a turn.

        An offset that replaces one of the same transaction counts twice here.
        """
        pending = self.state.pending.by_producer.get((log_partition, producer_id))
        if pending is None:
            return False
        count = len(pending)
        for topic in accepted:
            count += len(topic.partitions)
        return count > self.pending_offsets_max

    def _check_group(self, body: TxnOffsetCommitRequest, accepted: list[AcceptedTopic]) -> int:
        """KIP-447: the error of the whole request, 0 for none. Old clients send no member, and are not checked."""
        group = self.state.groups.get(body.group_id)
        if group is not None:
            return group.validate_offset_commit(
                body.member_id, body.group_instance_id, body.generation_id, is_transactional=True
            )
        consumer_group = self.state.groups.consumer_groups.get(body.group_id)
        if consumer_group is None:
            # Without a generation, the record creates a simple group.
            return errors.NONE if body.generation_id < 0 else errors.ILLEGAL_GENERATION
        epoch = body.generation_id
        try:
            member = check_transactional_commit(consumer_group, body.member_id, body.group_instance_id, epoch)
            if member is not None:
                for topic in accepted:
                    topic_id = topic.topic.topic_id
                    for p in topic.partitions:
                        if not is_metadata_too_large(self.state.config, p.committed_metadata):
                            check_partition(member, epoch, topic_id, p.partition_index)
        except GroupError as refused:
            # The API has no code for a stale member epoch.
            return errors.ILLEGAL_GENERATION if refused.code == errors.STALE_MEMBER_EPOCH else refused.code
        return errors.NONE


def error_of_version(error: int, version: int) -> int:
    """The code that a client of `version` gets for an error of the transaction coordinator, as on a broker.

    Codes that a broker's group coordinator replaces are those of its log and of its way to the other coordinator.
    """
    if error == errors.PRODUCER_FENCED:
        return errors.INVALID_PRODUCER_EPOCH
    if error == errors.TRANSACTION_ABORTABLE and version < ABORTABLE_VERSION:
        return errors.INVALID_TXN_STATE
    if error == errors.COORDINATOR_LOAD_IN_PROGRESS and version < LOAD_IN_PROGRESS_VERSION:
        return errors.COORDINATOR_NOT_AVAILABLE
    if error in (errors.UNKNOWN_TOPIC_OR_PARTITION, errors.NOT_ENOUGH_REPLICAS, errors.REQUEST_TIMED_OUT):
        return errors.COORDINATOR_NOT_AVAILABLE
    if error in (errors.NOT_LEADER_OR_FOLLOWER, errors.KAFKA_STORAGE_ERROR):
        return errors.NOT_COORDINATOR
    return error


def _refuse(step: TxnOffsetCommitStep, error_code: int, outcome: Outcome) -> Outcome:
    """The same error for every partition that reached the coordinator."""
    answers: list[TxnOffsetCommitResponseTopic] = []
    for accepted in step.accepted:
        results = [TxnOffsetCommitResponsePartition(p.partition_index, error_code) for p in accepted.partitions]
        answers.append(TxnOffsetCommitResponseTopic(accepted.topic.name, results))
    outcome.reply(step.request.request_id, TxnOffsetCommitResponse(0, _merge(step.refused, answers)))
    return outcome


def _merge(
    refused: list[TxnOffsetCommitResponseTopic], answers: list[TxnOffsetCommitResponseTopic]
) -> list[TxnOffsetCommitResponseTopic]:
    """Unknown topics and partitions come first. Answers for a topic that is among them are added to its entry."""
    if not refused:
        return answers
    topics = list(refused)
    by_name: dict[str, TxnOffsetCommitResponseTopic] = {topic.name: topic for topic in refused}
    for answer in answers:
        existing = by_name.get(answer.name)
        if existing is None:
            topics.append(answer)
            by_name[answer.name] = answer
        else:
            existing.partitions.extend(answer.partitions)
    return topics
