"""ListOffsets: where a partition starts and ends, and which offset belongs to a time.

Only what lies below the high watermark (or the last stable offset) is told; a time beyond it has no offset yet.
Nothing is tiered here, so the local start is the start and nothing is in remote storage (KIP-405).

A time is looked up in the files. A request for many times waits with its connection, and each turn looks up as many as
its budget has room for. A job looks into a batch with much in it, and the lookup is made once more when that is done.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from kcoord.core.outcome import WARNING, Fact, Job, Now, Reply, Request, StepJob
from kcoord.engine.budget import TURN_COST_MAX, TurnBudget
from kcoord.engine.partitions import PartitionTable, TopicPartition
from kcoord.log.errors import LogDamaged
from kcoord.log.time_lookup import INT64_MAX, TimeLookup
from kcoord.protocol.errors import (
    INVALID_REQUEST,
    KAFKA_STORAGE_ERROR,
    NONE,
    REQUEST_TIMED_OUT,
    UNKNOWN_SERVER_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_VERSION,
)
from kcoord.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kcoord.wire.compression import DecompressionError
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_search import RecordSearch

# Times with a meaning, and the request version from which each is understood.
LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_VERSION_OF: Final[dict[int, int]] = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
LEADER_EPOCH_FROM: Final = 4
# What looking up a time counts for, in bytes of a request: reading an index and some kilobytes of a file.
LOOKUP_COST: Final = 4096
# Times that a request may ask for without having to wait: no more than a turn has room for.
LOOKUPS_AT_ONCE: Final = TURN_COST_MAX // LOOKUP_COST
# Content of batches, decompressed, that one lookup looks at in a turn; more is a job. It costs about 2 ms, and what it
# costs is charged: so many bytes count for one of a request.
LOOKUP_CONTENT_BYTES: Final = 256 * 1024
CONTENT_BYTES_PER_COST: Final = 4
# Records that a job looks at before it lets other threads have the GIL: about a millisecond.
STEP_RECORDS: Final = 16 * 1024
# Time in the queue included. Clients wait 30 s for an answer by default.
SEARCH_DEADLINE_MS: Final = 30_000
NO_TIMESTAMP: Final = -1


def is_supported(timestamp: int, version: int) -> bool:
    """Whether a request of this version may ask for `timestamp`."""
    if timestamp >= 0:
        return True
    first = _VERSION_OF.get(timestamp)
    return first is not None and version >= first


def repeated_partitions(body: ListOffsetsRequest) -> dict[str, dict[int, bool]]:
    """The partitions that the request names more than once, by topic and in the order in which they repeat."""
    seen: dict[str, dict[int, bool]] = {}
    repeated: dict[str, dict[int, bool]] = {}
    for topic in body.topics:
        of_topic = seen.get(topic.name)
        if of_topic is None:
            of_topic = {}
            seen[topic.name] = of_topic
        for p in topic.partitions:
            if p.partition_index in of_topic:
                repeated.setdefault(topic.name, {})[p.partition_index] = True
            of_topic[p.partition_index] = True
    return repeated


def needs_files(timestamp: int) -> bool:
    """Whether the time has to be looked up in the partition's files."""
    return timestamp >= 0 or timestamp == MAX_TIMESTAMP


@final
class Lookup:
    """One partition of a request that waits, and the answer that its offset belongs to."""

    def __init__(self, topic: ListOffsetsTopicResponse, partition: ListOffsetsPartition) -> None:
        self.topic = topic
        self.partition = partition
        # What is known of batches that a job looked into, and whose they are.
        self.time: TimeLookup | None = None
        self.tp: TopicPartition | None = None
        # Why a job found nothing out.
        self.error_code = NONE

    def time_of(self, tp: TopicPartition) -> TimeLookup:
        """The lookup of the partition, begun or to begin. Meanwhile the topic may have become another one."""
        time = self.time
        if time is None or self.tp is not tp:
            time = TimeLookup(tp.log.config.decompressed_bytes_max, LOOKUP_CONTENT_BYTES)
            self.time = time
            self.tp = tp
        time.content_bytes = 0
        return time


@final
class SearchJob(StepJob):
    """Looks into a batch, in a thread."""

    def __init__(self, request_id: int, search: RecordSearch, content_bytes_max: int) -> None:
        super().__init__(f"list-offsets-{request_id}", SEARCH_DEADLINE_MS)
        self.search = search
        self.content_bytes_max = content_bytes_max
        # What is wrong with the batch.
        self.damage = ""

    def step(self) -> bool:
        search = self.search
        try:
            if search.reader is None:
                search.open(self.content_bytes_max, INT64_MAX)
                return False
            return search.step(STEP_RECORDS)
        # Each clause has a name of its own: compiled, one name would keep the type of the first.
        except DecompressionError as broken:
            self.damage = str(broken)
        except DecodeError as malformed:
            self.damage = str(malformed)
        return True


@final
class ListOffsetsWork:
    """A request from its arrival to its answer. What stands before `position` is looked up."""

    def __init__(self, request: Request) -> None:
        self.request_id = request.request_id
        self.connection_id = request.connection_id
        self.version = request.version
        self.response = ListOffsetsResponse()
        self.lookups: list[Lookup] = []
        self.position = 0
        # How many of the lookups need the files.
        self.times = 0


@final
class ListOffsetsRoom:
    def __init__(self, table: PartitionTable, budget: TurnBudget | None = None) -> None:
        self.table = table
        self.budget = TurnBudget() if budget is None else budget
        # Requests that wait for later turns, first come first served; and those that wait for a job, by its key.
        self.waiting: deque[ListOffsetsWork] = deque()
        self.searching: dict[str, ListOffsetsWork] = {}
        # Jobs that nobody has taken yet.
        self.jobs: list[Job] = []

    def handle_list_offsets(
        self, request: Request, body: ListOffsetsRequest, now: Now
    ) -> ListOffsetsResponse | None:
        """One answer per partition, or None: it comes with answer_next.

        A partition that is named twice gets INVALID_REQUEST, once.
        """
        work = self._plan(request, body)
        if work.times > LOOKUPS_AT_ONCE:
            self.waiting.append(work)
            return None
        before = self.budget.spent
        while work.position < len(work.lookups):
            if work.position and self.budget.spent - before >= TURN_COST_MAX:
                self.waiting.append(work)
                return None
            if not self._look_up(work, work.lookups[work.position]):
                return None
            work.position += 1
        return work.response

    def has_due(self) -> bool:
        """Whether a request goes on with this or a later turn."""
        return len(self.waiting) > 0

    def answer_next(self) -> Reply | None:
        """Go on with the first request as far as the turn goes, by one lookup at least; the answer once it is done."""
        work = self.waiting[0]
        while work.position < len(work.lookups):
            if not self._look_up(work, work.lookups[work.position]):
                self.waiting.popleft()
                return None
            work.position += 1
            if self.budget.is_spent:
                break
        if work.position < len(work.lookups):
            return None
        self.waiting.popleft()
        return Reply(work.request_id, work.response)

    def take_jobs(self) -> list[Job]:
        jobs = self.jobs
        if jobs:
            self.jobs = []
        return jobs

    def job_done(self, job: SearchJob, error: str | None) -> None:
        """The job ended, or will not in time: its request goes on with answer_next."""
        work = self.searching.pop(job.key, None)
        if work is None:
            # Its connection is gone.
            return
        lookup = work.lookups[work.position]
        time = lookup.time
        if error is None and not job.damage and time is not None:
            time.note(job.search)
        else:
            lookup.time = None
            lookup.error_code = self._failure(lookup, job, error)
        self.waiting.append(work)

    def _failure(self, lookup: Lookup, job: SearchJob, error: str | None) -> int:
        """The error code for a job that found nothing out."""
        if job.damage:
            tp = lookup.tp
            if tp is not None and not tp.is_dropped:
                base_offset = job.search.header.base_offset
                self.table.note_damage(tp, LogDamaged(tp.log.name, base_offset, 0, job.damage))
            return KAFKA_STORAGE_ERROR
        if job.is_abandoned:
            return REQUEST_TIMED_OUT
        self.table.facts.append(Fact(WARNING, "internal_error", {"reason": f"searching for ListOffsets: {error}"}))
        return UNKNOWN_SERVER_ERROR

    def on_disconnect(self, connection_id: int) -> None:
        """Nobody waits any more for what the connection asked."""
        if self.waiting:
            self.waiting = deque(work for work in self.waiting if work.connection_id != connection_id)
        for key, work in list(self.searching.items()):
            if work.connection_id == connection_id:
                del self.searching[key]

    def _plan(self, request: Request, body: ListOffsetsRequest) -> ListOffsetsWork:
        """What is known before any partition is looked at."""
        work = ListOffsetsWork(request)
        repeated = repeated_partitions(body)
        answers: dict[str, ListOffsetsTopicResponse] = {}
        for topic in body.topics:
            twice = repeated.get(topic.name)
            answer = answers.get(topic.name)
            if answer is None:
                answer = ListOffsetsTopicResponse(topic.name)
                answers[topic.name] = answer
                work.response.topics.append(answer)
                if twice is not None:
                    for index in twice:
                        answer.partitions.append(ListOffsetsPartitionResponse(index, INVALID_REQUEST))
            for p in topic.partitions:
                if twice is None or p.partition_index not in twice:
                    work.lookups.append(Lookup(answer, p))
                    if needs_files(p.timestamp):
                        work.times += 1
        return work

    def _look_up(self, work: ListOffsetsWork, lookup: Lookup) -> bool:
        """Answer for one partition; False if a job has to find something out first."""
        p = lookup.partition
        if needs_files(p.timestamp):
            self.budget.spent += LOOKUP_COST
        answer = self._list_partition(work.version, lookup.topic.name, lookup)
        time = lookup.time
        if time is not None:
            self.budget.spent += time.content_bytes // CONTENT_BYTES_PER_COST
            if time.search is not None:
                job = SearchJob(work.request_id, time.search, time.decompressed_bytes_max)
                self.searching[job.key] = work
                self.jobs.append(job)
                return False
        lookup.topic.partitions.append(answer)
        return True

    def _list_partition(self, version: int, topic: str, lookup: Lookup) -> ListOffsetsPartitionResponse:
        p = lookup.partition
        if not is_supported(p.timestamp, version):
            return ListOffsetsPartitionResponse(p.partition_index, UNSUPPORTED_VERSION)
        tp = self.table.find(topic, p.partition_index)
        if tp is None:
            return ListOffsetsPartitionResponse(p.partition_index, UNKNOWN_TOPIC_OR_PARTITION)
        error = tp.check_leader_epoch(p.current_leader_epoch)
        if error == NONE:
            error = lookup.error_code
        if error != NONE:
            return ListOffsetsPartitionResponse(p.partition_index, error)
        try:
            answer = look_up(tp, p.timestamp, lookup)
        except LogDamaged as damage:
            self.table.note_damage(tp, damage)
            return ListOffsetsPartitionResponse(p.partition_index, KAFKA_STORAGE_ERROR)
        except OSError:
            return ListOffsetsPartitionResponse(p.partition_index, KAFKA_STORAGE_ERROR)
        if version < LEADER_EPOCH_FROM:
            answer.leader_epoch = -1
        return answer


def look_up(tp: TopicPartition, timestamp: int, lookup: Lookup) -> ListOffsetsPartitionResponse:
    """What `timestamp` (or one of the special times) means in the partition; offset -1 for nothing, and where a job
    has to find something out first."""
    log = tp.log
    index = tp.partition
    end = log.durable_end
    if timestamp == LATEST:
        return ListOffsetsPartitionResponse(index, NONE, NO_TIMESTAMP, end, tp.leader_epoch)
    if timestamp == EARLIEST or timestamp == EARLIEST_LOCAL:
        return ListOffsetsPartitionResponse(index, NONE, NO_TIMESTAMP, log.log_start_offset, tp.leader_epoch)
    if timestamp < MAX_TIMESTAMP:
        return ListOffsetsPartitionResponse(index, NONE)
    time = lookup.time_of(tp)
    if timestamp == MAX_TIMESTAMP:
        found = log.max_timestamp(time)
    else:
        found = log.find_by_timestamp(timestamp, end, time)
    if found is None or found[1] >= end:
        return ListOffsetsPartitionResponse(index, NONE)
    return ListOffsetsPartitionResponse(index, NONE, found[0], found[1], found[2])
