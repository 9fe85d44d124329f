"""DescribeProducers: the producers that a partition remembers, and where their open transactions begin (KIP-664).

A partition may remember thousands of producers. What a turn describes is bounded; a request for more goes on in later
turns, while its connection waits.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from kcoord.core.outcome import Now, Reply, Request
from kcoord.core.producers import ProducerEntry
from kcoord.core.topics.registry import check_topic_name
from kcoord.engine.budget import TURN_COST_MAX, TurnBudget
from kcoord.engine.partitions import PartitionTable, ServedTopic
from kcoord.protocol.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from kcoord.protocol.errors import INVALID_TOPIC_EXCEPTION, NONE, UNKNOWN_TOPIC_OR_PARTITION

NO_SUCH_TOPIC: Final = "This server does not host this topic-partition."
# A message about a topic's name is repeated for each partition, and may have the name in it.
PROBLEM_CHARS_MAX: Final = 300
# The cost of a producer and of a partition in the turn's budget, besides the bytes of the answer.
PRODUCER_COST: Final = 16
PARTITION_COST: Final = 32


@final
class DescribeProducersWork:
    """A request from its arrival to its answer. `partitions` are answered before `next`, by (topic, index)."""

    def __init__(self, request: Request) -> None:
        self.request_id = request.request_id
        self.connection_id = request.connection_id
        self.response = DescribeProducersResponse()
        self.partitions: list[tuple[TopicResponse, int]] = []
        self.next = 0


@final
class DescribeProducersHandler:
    def __init__(self, table: PartitionTable, budget: TurnBudget | None = None) -> None:
        self.table = table
        self.budget = TurnBudget() if budget is None else budget
        # Requests that go on in later turns, in order of arrival.
        self.waiting: deque[DescribeProducersWork] = deque()

    def handle_describe_producers(
        self, request: Request, body: DescribeProducersRequest, now: Now
    ) -> DescribeProducersResponse | None:
        """An answer for every partition, or None: it then comes from answer_next.

        A partition that is asked for more than once is described once.
        """
        work = DescribeProducersWork(request)
        known: dict[str, dict[int, bool]] = {}
        for topic in body.topics:
            answer = TopicResponse(topic.name)
            work.response.topics.append(answer)
            seen = known.setdefault(topic.name, {})
            for index in topic.partition_indexes:
                if index not in seen:
                    seen[index] = True
                    work.partitions.append((answer, index))
        if self._go_on(work, self.budget.spent + TURN_COST_MAX):
            return work.response
        self.waiting.append(work)
        return None

    def has_due(self) -> bool:
        return len(self.waiting) > 0

    def answer_next(self) -> Reply | None:
        """Go on with the first request within the turn's budget. Returns the answer once it is complete."""
        work = self.waiting[0]
        if not self._go_on(work, TURN_COST_MAX):
            return None
        self.waiting.popleft()
        return Reply(work.request_id, work.response)

    def on_disconnect(self, connection_id: int) -> None:
        """Discard the waiting requests of the connection."""
        if self.waiting:
            self.waiting = deque([work for work in self.waiting if work.connection_id != connection_id])

    def _go_on(self, work: DescribeProducersWork, cost_max: int) -> bool:
        """Describe partitions, one at least, until the budget has spent `cost_max`. Returns whether that was all."""
        while work.next < len(work.partitions):
            answer, index = work.partitions[work.next]
            described = self._describe(answer.name, index)
            answer.partitions.append(described)
            work.next += 1
            self.budget.spent += PARTITION_COST + PRODUCER_COST * len(described.active_producers)
            if self.budget.spent >= cost_max:
                break
        return work.next >= len(work.partitions)

    def _describe(self, name: str, index: int) -> PartitionResponse:
        served: ServedTopic | None = self.table.topic(name)
        if served is None:
            problem = check_topic_name(name)
            if problem:
                return PartitionResponse(index, INVALID_TOPIC_EXCEPTION, problem[:PROBLEM_CHARS_MAX])
            return PartitionResponse(index, UNKNOWN_TOPIC_OR_PARTITION, NO_SUCH_TOPIC)
        tp = self.table.find(name, index)
        if tp is None:
            return PartitionResponse(index, UNKNOWN_TOPIC_OR_PARTITION)
        result = PartitionResponse(index, NONE)
        result.active_producers = [producer_state(entry) for entry in tp.producers.entries.values()]
        return result


def producer_state(entry: ProducerEntry) -> ProducerState:
    return ProducerState(
        entry.producer_id,
        entry.epoch,
        entry.last_sequence,
        entry.timestamp_ms,
        entry.coordinator_epoch,
        entry.txn_first_offset,
    )
