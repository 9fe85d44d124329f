"""Adding partitions to a transaction: AddPartitionsToTxn, AddOffsetsToTxn, and writes that add theirs (KIP-890).

The first partition begins the transaction. The record comes before any write to the partition that is answered, so an
abort finds every partition that may have been written to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import LIMIT, OFFSETS_TOPIC, WARNING, Event, Fact, LogId, Now, Outcome, Reply, Request
from kcoord.core.topics.registry import TopicRegistry, is_internal_name
from kcoord.core.transactions.end import TransactionEnds, overtaken
from kcoord.core.transactions.state import ONGOING, VERSION_1, VERSION_2, Transaction, Transactions
from kcoord.protocol.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kcoord.protocol.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from kcoord.protocol.errors import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_NOT_AVAILABLE,
    GROUP_AUTHORIZATION_FAILED,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_REQUEST,
    INVALID_TXN_STATE,
    NONE,
    NOT_COORDINATOR,
    NOT_ENOUGH_REPLICAS,
    OPERATION_NOT_ATTEMPTED,
    PRODUCER_FENCED,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTION_ABORTABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kcoord.protocol.records.transaction_log import PartitionsSchema, TransactionLogKey

# From this version on AddPartitionsToTxn comes from brokers, and is about several transactions.
BATCHED_FROM: Final = 4
# Before this version clients do not know PRODUCER_FENCED.
PRODUCER_FENCED_FROM: Final = 2
# Produce from these versions on: clients know TRANSACTION_ABORTABLE, and a write adds its partitions.
PRODUCE_ABORTABLE_FROM: Final = 11
PRODUCE_VERSION_2_FROM: Final = 12


def produce_error(error: int, version: int) -> int:
    """The error of a write to a transaction, as Produce of this version answers it.

    NOT_ENOUGH_REPLICAS makes clients that do not know the cause repeat the request.
    """
    if error == PRODUCER_FENCED:
        return INVALID_PRODUCER_EPOCH
    if error == TRANSACTION_ABORTABLE and version < PRODUCE_ABORTABLE_FROM:
        return INVALID_TXN_STATE
    if error == NOT_COORDINATOR or error == COORDINATOR_NOT_AVAILABLE:
        return NOT_ENOUGH_REPLICAS
    if error == CONCURRENT_TRANSACTIONS and version < PRODUCE_VERSION_2_FROM:
        return NOT_ENOUGH_REPLICAS
    return error


@final
class AddPartitionsStep(Event):
    """The rest of a request about several transactions."""

    def __init__(self, request: Request, body: AddPartitionsToTxnRequest) -> None:
        self.request = request
        self.transactions = body.transactions
        self.position = 0
        self.response = AddPartitionsToTxnResponse()


@final
class TransactionPartitions:
    """`offsets_log_of(group id)` is the log of a group's committed offsets."""

    def __init__(
        self,
        config: CoreConfig,
        topics: TopicRegistry,
        transactions: Transactions,
        ends: TransactionEnds,
        offsets_log_of: Callable[[str], LogId],
    ) -> None:
        self.config = config
        self.topics = topics
        self.transactions = transactions
        self.ends = ends
        self.offsets_log_of = offsets_log_of

    # --- AddPartitionsToTxn ----------------------------------------------------------------------------------

    def handle_add_partitions(self, request: Request, body: AddPartitionsToTxnRequest, now: Now) -> Outcome:
        """Add all partitions of a request or none."""
        if request.version >= BATCHED_FROM:
            return self.handle_add_partitions_step(AddPartitionsStep(request, body), now)
        out = Outcome()
        topics = body.v3_and_below_topics
        problems = self._problems(topics, True)
        if problems:
            response = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(topics, NONE, problems))
            out.reply(request.request_id, response)
            return out
        txn, error = self._add(
            body.v3_and_below_transactional_id,
            body.v3_and_below_producer_id,
            body.v3_and_below_producer_epoch,
            _partitions(topics),
            request,
            now,
            out,
        )
        if error == PRODUCER_FENCED and request.version < PRODUCER_FENCED_FROM:
            error = INVALID_PRODUCER_EPOCH
        response = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(topics, error, {}))
        _reply(request, response, txn, error, out)
        return out

    def handle_add_partitions_step(self, step: AddPartitionsStep, now: Now) -> Outcome:
        """Add partitions to several transactions, or check that they have them.

        An outcome has one log, and one record for each transactional id; the rest follows in the next step.
        """
        out = Outcome()
        request = step.request
        seen: dict[str, bool] = {}
        while step.position < len(step.transactions):
            asked = step.transactions[step.position]
            transactional_id = asked.transactional_id
            if out.records and (transactional_id in seen or self._is_elsewhere(transactional_id, out)):
                out.follow_ups.append(step)
                return out
            seen[transactional_id] = True
            result = AddPartitionsToTxnResult(transactional_id, self._batched_results(asked, request, now, out))
            step.response.results_by_transaction.append(result)
            step.position += 1
        if out.records:
            out.reply(request.request_id, step.response)
        else:
            wait_log, wait_offset = self.transactions.newest_log, self.transactions.newest_offset
            out.replies.append(Reply(request.request_id, step.response, wait_log, wait_offset))
        return out

    def _is_elsewhere(self, transactional_id: str, out: Outcome) -> bool:
        """Whether the transactional id has another log than the records of the outcome."""
        return not self.transactions.logs() or self.transactions.log_of(transactional_id) is not out.log

    def _batched_results(
        self, asked: AddPartitionsToTxnTransaction, request: Request, now: Now, out: Outcome
    ) -> list[AddPartitionsToTxnTopicResult]:
        problems = self._problems(asked.topics, False)
        if problems:
            return _results(asked.topics, NONE, problems)
        if not asked.verify_only:
            error = self._add(
                asked.transactional_id,
                asked.producer_id,
                asked.producer_epoch,
                _partitions(asked.topics),
                request,
                now,
                out,
            )[1]
            return _results(asked.topics, error, {})
        errors: dict[tuple[str, int], int] = {}
        for topic, partition in _partitions(asked.topics):
            errors[topic, partition] = self.transactions.check_write(
                asked.transactional_id, asked.producer_id, asked.producer_epoch, topic, partition
            )
        return _results(asked.topics, NONE, errors)

    def _problems(self, topics: list[AddPartitionsToTxnTopic], by_client: bool) -> dict[tuple[str, int], int]:
        """The error of each partition, if one of them cannot be added; otherwise empty.

        Clients do not write to internal topics, and on a broker are not authorized to.
        """
        errors: dict[tuple[str, int], int] = {}
        has_problem = False
        for topic, partition in _partitions(topics):
            error = OPERATION_NOT_ATTEMPTED
            if by_client and is_internal_name(topic):
                error = TOPIC_AUTHORIZATION_FAILED
            elif partition < 0 or partition >= self.topics.partition_count(topic):
                error = UNKNOWN_TOPIC_OR_PARTITION
            if error != OPERATION_NOT_ATTEMPTED:
                has_problem = True
            errors[topic, partition] = error
        return errors if has_problem else {}

    # --- AddOffsetsToTxn -------------------------------------------------------------------------------------

    def handle_add_offsets(self, request: Request, body: AddOffsetsToTxnRequest, now: Now) -> Outcome:
        """Add the partition of `__consumer_offsets` that the group's offsets go to."""
        out = Outcome()
        if not self.transactions.assignments.permits_group(body.transactional_id, body.group_id):
            out.reply(request.request_id, AddOffsetsToTxnResponse(0, GROUP_AUTHORIZATION_FAILED))
            return out
        partitions = [(OFFSETS_TOPIC, self.offsets_log_of(body.group_id).partition)]
        txn, error = self._add(
            body.transactional_id, body.producer_id, body.producer_epoch, partitions, request, now, out
        )
        if error == PRODUCER_FENCED and request.version < PRODUCER_FENCED_FROM:
            error = INVALID_PRODUCER_EPOCH
        _reply(request, AddOffsetsToTxnResponse(0, error), txn, error, out)
        return out

    # --- writes of version 2 ---------------------------------------------------------------------------------

    def handle_implicit_add(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        partitions: list[tuple[str, int]],
        now: Now,
    ) -> tuple[Outcome, int]:
        """Add the partitions that a write is about, where they are missing.

        Returns the records, and an error for all partitions. The partitions exist.
        """
        out = Outcome()
        error = self._enlist(transactional_id, producer_id, producer_epoch, partitions, VERSION_2, None, now, out)[1]
        return out, error

    # --- adding ----------------------------------------------------------------------------------------------

    def _add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: list[tuple[str, int]],
        request: Request,
        now: Now,
        out: Outcome,
    ) -> tuple[Transaction | None, int]:
        """Add partitions on behalf of a request."""
        is_batched = isinstance(request.body, AddPartitionsToTxnRequest) and request.version >= BATCHED_FROM
        version = VERSION_2 if is_batched else VERSION_1
        return self._enlist(transactional_id, producer_id, producer_epoch, partitions, version, request, now, out)

    def _enlist(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        partitions: list[tuple[str, int]],
        version: int,
        request: Request | None,
        now: Now,
        out: Outcome,
    ) -> tuple[Transaction | None, int]:
        if not transactional_id:
            return None, INVALID_REQUEST
        if not self.transactions.logs():
            return None, NOT_COORDINATOR
        txn = self.transactions.by_id.get(transactional_id)
        if txn is None:
            return None, INVALID_PRODUCER_ID_MAPPING
        if txn.is_ending:
            return txn, CONCURRENT_TRANSACTIONS
        if txn.producer_id != producer_id:
            return txn, INVALID_PRODUCER_ID_MAPPING
        if txn.producer_epoch != producer_epoch:
            return txn, PRODUCER_FENCED
        if version < VERSION_2 and request is not None and not txn.admits(request.connection_id):
            # It would add a partition of an earlier transaction to the next one, or begin that.
            out.facts.append(overtaken(request, txn))
            return txn, INVALID_TXN_STATE
        if txn.status == ONGOING and _has_all(txn, partitions):
            return txn, NONE
        partitions_max = self.config.transaction_partitions_max
        if _has_too_many(txn, partitions, partitions_max):
            fields: dict[str, object] = {
                "transactional_id": transactional_id,
                "transaction.partitions.max": partitions_max,
            }
            out.facts.append(Fact(WARNING, "transaction_partitions_refused", fields, LIMIT))
            # Clients of either version abort the transaction after their error.
            return txn, TRANSACTION_ABORTABLE if version >= VERSION_2 else TOPIC_AUTHORIZATION_FAILED
        value = txn.record(ONGOING, now.wall_ms)
        value.transaction_partitions = _with(txn, partitions)
        value.client_transaction_version = version
        if txn.status != ONGOING:
            value.transaction_start_timestamp_ms = now.wall_ms
            self.ends.arm_timeout(txn, now.wall_ms, now, out)
        out.add(txn.log, TransactionLogKey(transactional_id), value)
        return txn, NONE


def _has_all(txn: Transaction, partitions: list[tuple[str, int]]) -> bool:
    for topic, partition in partitions:
        if not txn.has(topic, partition):
            return False
    return True


def _has_too_many(txn: Transaction, partitions: list[tuple[str, int]], partitions_max: int) -> bool:
    """Whether the transaction would have more partitions than it may.

    Those of `__consumer_offsets`, which have a fixed number, may always be added.
    """
    known = txn.partition_count()
    if known + len(partitions) <= partitions_max:
        return False
    added: dict[tuple[str, int], bool] = {}
    for topic, partition in partitions:
        if topic != OFFSETS_TOPIC and not txn.has(topic, partition):
            added[topic, partition] = True
    return len(added) > 0 and known + len(added) > partitions_max


def _with(txn: Transaction, partitions: list[tuple[str, int]]) -> list[PartitionsSchema]:
    """The partitions of the transaction and more of them, as in the record."""
    schemas: list[PartitionsSchema] = []
    by_topic: dict[str, dict[int, bool]] = {}
    for topic, partition in txn.partition_list():
        by_topic.setdefault(topic, {})[partition] = True
    for topic, partition in partitions:
        by_topic.setdefault(topic, {})[partition] = True
    for topic, of_topic in by_topic.items():
        schemas.append(PartitionsSchema(topic, list(of_topic)))
    return schemas


def _partitions(topics: list[AddPartitionsToTxnTopic]) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for topic in topics:
        for partition in topic.partitions:
            found.append((topic.name, partition))
    return found


def _results(
    topics: list[AddPartitionsToTxnTopic], error: int, errors: dict[tuple[str, int], int]
) -> list[AddPartitionsToTxnTopicResult]:
    """The results of a request: `error` for each partition without one of its own."""
    found: list[AddPartitionsToTxnTopicResult] = []
    for topic in topics:
        results: list[AddPartitionsToTxnPartitionResult] = []
        for partition in topic.partitions:
            results.append(AddPartitionsToTxnPartitionResult(partition, errors.get((topic.name, partition), error)))
        found.append(AddPartitionsToTxnTopicResult(topic.name, results))
    return found


def _reply(
    request: Request,
    response: AddPartitionsToTxnResponse | AddOffsetsToTxnResponse,
    txn: Transaction | None,
    error: int,
    out: Outcome,
) -> None:
    """Answer when the records are durable, or the earlier ones that a success shows."""
    if out.records or txn is None or error != NONE:
        out.reply(request.request_id, response)
    else:
        out.replies.append(Reply(request.request_id, response, txn.log, txn.end_offset))
