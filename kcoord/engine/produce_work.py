"""A Produce request that is being processed: the checks of its batches, and the progress of its appends.

Checking a batch reads only its bytes, so it may run in any thread. Appending runs in a turn, after the check, and reads
everything that may have changed meanwhile. A request whose check takes more than a turn's budget becomes a job, and its
connection waits: later requests of that connection are handled after it, as in Kafka.

If the connection is closed before its job begins, the job is dropped, unless the producer wants no answer (acks=0). A
broker would store the records. But a producer that waits for an answer and gets none cannot know whether it did.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.outcome import Request, StepJob
from kcoord.engine.partitions import ServedTopic, TopicSettings
from kcoord.protocol.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kcoord.wire.produced_batch import CHECKED, OVER_BUDGET, UNFINISHED, BatchCheck, CheckBudget

# Records and headers that a job checks before it releases the GIL: about a millisecond of compiled code, which is the
# delay that a job adds to a turn.
STEP_ELEMENTS: Final = 4096
# Includes the time in the queue. Clients wait 30 s for an answer by default.
CHECK_DEADLINE_MS: Final = 30_000


@final
class PartitionWrite:
    """The records for one partition: refused (`response`), or with a check that has the batch to append."""

    def __init__(self, index: int, records: bytes | None) -> None:
        self.index = index
        self.records = records
        self.served: ServedTopic | None = None
        # The settings that the check uses.
        self.settings: TopicSettings | None = None
        self.check: BatchCheck | None = None
        self.response: PartitionProduceResponse | None = None

    def refuse(self, error_code: int, message: str | None = None) -> None:
        """Refuse the records of this partition."""
        self.response = PartitionProduceResponse(self.index, error_code, -1, error_message=message)
        self.check = None
        self.records = None


@final
class ProduceWork:
    """One request. `writes` has its partitions in the order of the request, `topics` the answer
    they are filled into.
    """

    def __init__(self, request: Request, acks: int, transactional_id: str | None) -> None:
        self.request_id = request.request_id
        self.connection_id = request.connection_id
        self.client_host = request.client_host
        self.version = request.version
        self.acks = acks
        self.transactional_id = transactional_id
        self.topics: list[TopicProduceResponse] = []
        # How many of `writes` belong to each of `topics`.
        self.counts: list[int] = []
        self.writes: list[PartitionWrite] = []
        # The first partition that is not checked, and the first that is neither appended nor refused.
        self.next_check = 0
        self.next_append = 0
        # The memory of the request while it waits.
        self.records_bytes = 0

    def check(self, budget: CheckBudget) -> int:
        """Continue the checks. Returns CHECKED when all are done, otherwise why not."""
        writes = self.writes
        while self.next_check < len(writes):
            check = writes[self.next_check].check
            if check is not None:
                found = check.step(budget)
                if found == UNFINISHED or found == OVER_BUDGET:
                    return found
            self.next_check += 1
        return CHECKED

    def refuse_rest(self, error_code: int, message: str | None = None) -> None:
        """Refuse everything that is not appended yet."""
        for write in self.writes[self.next_append :]:
            if write.response is None:
                write.refuse(error_code, message)
        self.next_append = len(self.writes)

    def answer(self) -> ProduceResponse:
        """The answer, once every partition has its own."""
        response = ProduceResponse()
        position = 0
        for number, topic in enumerate(self.topics):
            end = position + self.counts[number]
            for write in self.writes[position:end]:
                found = write.response
                if found is None:
                    raise RuntimeError(f"partition {write.index} has no answer")
                topic.partition_responses.append(found)
            position = end
            response.responses.append(topic)
        return response


@final
class CheckJob(StepJob):
    """Checks the rest of a request in a thread. Until the job is done, no other code may use the request."""

    def __init__(self, work: ProduceWork, content_bytes_max: int) -> None:
        super().__init__(f"produce-{work.request_id}", CHECK_DEADLINE_MS)
        self.kind = "produce"
        self.client_host = work.client_host
        self.connection_id = work.connection_id
        # A producer with acks=0 may close its connection right after the request. Others know that a request without
        # an answer may not be in the log.
        self.outlives_connection = work.acks == 0
        self.work = work
        self.budget = CheckBudget(content_bytes_max)
        self.is_over_budget = False

    def step(self) -> bool:
        self.budget.elements = STEP_ELEMENTS
        found = self.work.check(self.budget)
        if found == UNFINISHED:
            return False
        self.is_over_budget = found == OVER_BUDGET
        return True
