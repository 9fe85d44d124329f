"""DescribeTransactions and ListTransactions (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from kcoord.core.outcome import Now, Outcome, Reply, Request
from kcoord.core.topics import regex
from kcoord.core.transactions.state import STATE_NAMES, Transaction, Transactions, state_name
from kcoord.protocol.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from kcoord.protocol.describe_transactions import TransactionState as DescribedTransaction
from kcoord.protocol.errors import (
    COORDINATOR_LOAD_IN_PROGRESS,
    INVALID_REGULAR_EXPRESSION,
    INVALID_REQUEST,
    NONE,
    NOT_COORDINATOR,
    TRANSACTIONAL_ID_NOT_FOUND,
)
from kcoord.protocol.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kcoord.protocol.list_transactions import TransactionState as ListedTransaction

# The partitions in one answer of DescribeTransactions, besides those of its first transaction. A request may name many
# transactions, or one of them many times.
DESCRIBED_PARTITIONS_MAX: Final = 10_000
# The cost of examining one transactional id, and of compiling a pattern, in bytes of the turn's budget.
LISTED_COST: Final = 16
PATTERN_COST: Final = 128 * 1024


@final
class TransactionDescribe:
    def __init__(self, transactions: Transactions) -> None:
        self.transactions = transactions
        self.described_partitions_max = DESCRIBED_PARTITIONS_MAX
        # The cost of listings since the last call of Core.take_cost.
        self.cost = 0

    def handle_describe(self, request: Request, body: DescribeTransactionsRequest, now: Now) -> Outcome:
        """State, producer and partitions of transactions. The partitions are those without a complete end.

        Transactions that would make the answer too large get COORDINATOR_LOAD_IN_PROGRESS, so that clients ask again.
        """
        out = Outcome()
        response = DescribeTransactionsResponse()
        partitions = 0
        for transactional_id in body.transactional_ids:
            txn = self.transactions.by_id.get(transactional_id)
            count = 0 if txn is None else txn.partition_count()
            if partitions and partitions + count > self.described_partitions_max:
                response.transaction_states.append(DescribedTransaction(COORDINATOR_LOAD_IN_PROGRESS, transactional_id))
                continue
            partitions += count
            response.transaction_states.append(self._described(transactional_id))
        self._reply(request, response, out)
        return out

    def _described(self, transactional_id: str) -> DescribedTransaction:
        if not transactional_id:
            return DescribedTransaction(INVALID_REQUEST, transactional_id)
        if not self.transactions.logs():
            return DescribedTransaction(NOT_COORDINATOR, transactional_id)
        txn = self.transactions.by_id.get(transactional_id)
        if txn is None:
            return DescribedTransaction(TRANSACTIONAL_ID_NOT_FOUND, transactional_id)
        return DescribedTransaction(
            NONE,
            transactional_id,
            state_name(txn.status),
            txn.timeout_ms,
            txn.start_ms,
            txn.producer_id,
            txn.producer_epoch,
            [TopicData(topic, list(txn.partitions[topic])) for topic in txn.partitions],
        )

    def handle_list(self, request: Request, body: ListTransactionsRequest, now: Now) -> Outcome:
        """The transactional ids that pass all filters."""
        out = Outcome()
        response = ListTransactionsResponse()
        states: dict[str, bool] = {}
        for name in body.state_filters:
            if name not in STATE_NAMES:
                response.unknown_state_filters.append(name)
            states[name] = True
        producers = dict.fromkeys(body.producer_id_filters, True)
        matches: Callable[[str], object] | None = None
        if body.transactional_id_pattern:
            if regex.check(body.transactional_id_pattern) is not None:
                response.error_code = INVALID_REGULAR_EXPRESSION
                response.unknown_state_filters = []
                out.reply(request.request_id, response)
                return out
            matches = regex.full_match_of(body.transactional_id_pattern)
            self.cost += PATTERN_COST
        self.cost += LISTED_COST * len(self.transactions.by_id)
        for txn in self.transactions.by_id.values():
            if states and state_name(txn.status) not in states:
                continue
            if producers and txn.producer_id not in producers:
                continue
            if not _is_older(txn, body.duration_filter, now):
                continue
            if matches is not None and matches(txn.transactional_id) is None:
                continue
            response.transaction_states.append(
                ListedTransaction(txn.transactional_id, txn.producer_id, state_name(txn.status))
            )
        self._reply(request, response, out)
        return out

    def _reply(
        self, request: Request, response: DescribeTransactionsResponse | ListTransactionsResponse, out: Outcome
    ) -> None:
        """Answer when all that was stored is durable."""
        transactions = self.transactions
        reply = Reply(request.request_id, response, transactions.newest_log, transactions.newest_offset)
        out.replies.append(reply)


def _is_older(txn: Transaction, duration_ms: int, now: Now) -> bool:
    """Whether the transaction began longer ago than the filter says. One that never began did so long ago."""
    return duration_ms < 0 or now.wall_ms - txn.start_ms > duration_ms
