"""ListOffsets: the start and the end of a partition, and the offset of a time.

Only offsets below the high watermark (or the last stable offset) are returned; a later time has no offset yet. There is
no tiered storage, so the local start is the start, and nothing is in remote storage (KIP-405).

A time is looked up in the files. A request for many times waits with its connection, and each turn makes as many
look-ups as its budget allows. If a batch has to be searched that is too large for a turn, a job does that in a thread.
The look-up is made again when the job is done, because the partition may have changed in between. Jobs that wait keep
their batches in memory, so an address has only so many (`SearchRoom`); its further requests wait without a batch, and
for a limited time.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from kcoord.core.outcome import BUG, ERROR, Fact, Job, Now, Reply, Request, StepJob
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

# Special times, and the request version from which each is valid.
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
# The cost of looking up a time, in bytes of the turn's budget: reading an index and some kilobytes of a file.
LOOKUP_COST: Final = 4096
# Times that a request may name without waiting: a turn's budget is enough for these.
LOOKUPS_AT_ONCE: Final = TURN_COST_MAX // LOOKUP_COST
# Decompressed bytes of batches that one look-up may search within a turn; more is a job. They take about 2 ms and are
# charged: this many bytes count as one byte of a request.
LOOKUP_CONTENT_BYTES: Final = 256 * 1024
CONTENT_BYTES_PER_COST: Final = 4
# Records that a job visits before it releases the GIL: about a millisecond.
STEP_RECORDS: Final = 16 * 1024
# Includes the time in the queue, and once more the time in which a request waits for room for its batch. Clients wait
# 30 s for an answer by default.
SEARCH_DEADLINE_MS: Final = 30_000
# How many bytes of batches the jobs of one address may hold, and those of all addresses that have more than one job. A
# single job may always hold its batch.
SEARCH_BYTES_PER_ADDRESS_MAX: Final = 8 << 20
SEARCH_BYTES_MAX: Final = 64 << 20
NO_TIMESTAMP: Final = -1


def is_supported(timestamp: int, version: int) -> bool:
    """Whether a request of this version may use `timestamp`."""
    if timestamp >= 0:
        return True
    first = _VERSION_OF.get(timestamp)
    return first is not None and version >= first


def repeated_partitions(body: ListOffsetsRequest) -> dict[str, dict[int, bool]]:
    """The partitions that occur more than once in the request, by topic, in order of the repetition."""
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
    """One partition of a waiting request, and the answer that gets its offset."""

    def __init__(self, topic: ListOffsetsTopicResponse, partition: ListOffsetsPartition) -> None:
        self.topic = topic
        self.partition = partition
        # Results of jobs that searched batches, and the partition that they belong to.
        self.time: TimeLookup | None = None
        self.tp: TopicPartition | None = None
        # The error of a job that failed.
        self.error_code = NONE

    def time_of(self, tp: TopicPartition) -> TimeLookup:
        """The look-up in the partition, started now if necessary. The topic may have been replaced by another one
        meanwhile.
        """
        time = self.time
        if time is None or self.tp is not tp:
            time = TimeLookup(tp.log.config.decompressed_bytes_max, LOOKUP_CONTENT_BYTES)
            self.time = time
            self.tp = tp
        time.content_bytes = 0
        return time


@final
class SearchJob(StepJob):
    """Searches a batch in a thread."""

    def __init__(self, work: ListOffsetsWork, search: RecordSearch, content_bytes_max: int) -> None:
        super().__init__(f"list-offsets-{work.request_id}", SEARCH_DEADLINE_MS)
        self.kind = "list-offsets"
        self.client_host = work.client_host
        self.connection_id = work.connection_id
        self.outlives_connection = False
        self.search = search
        self.content_bytes_max = content_bytes_max
        # The problem of the batch, if it is damaged.
        self.damage = ""

    def step(self) -> bool:
        search = self.search
        try:
            if search.reader is None:
                search.open(self.content_bytes_max, INT64_MAX)
                return False
            return search.step(STEP_RECORDS)
        # Each `except` uses its own variable: in compiled code one variable would keep the type of the first.
        except DecompressionError as broken:
            self.damage = str(broken)
        except DecodeError as malformed:
            self.damage = str(malformed)
        return True


@final
class ListOffsetsWork:
    """A request from its arrival to its answer. The look-ups before `position` are done."""

    def __init__(self, request: Request, isolation_level: int) -> None:
        self.request_id = request.request_id
        self.connection_id = request.connection_id
        self.client_host = request.client_host
        self.version = request.version
        self.isolation_level = isolation_level
        self.response = ListOffsetsResponse()
        self.lookups: list[Lookup] = []
        self.position = 0
        # How many look-ups need files.
        self.times = 0
        # The bytes of the batch that is searched for this request.
        self.search_bytes = 0
        # While it waits for room: the bytes that it needs, and the end of its patience. 0 if it has never waited.
        self.held_bytes = 0
        self.deadline_ms = 0
        # Whether it has waited for too long.
        self.is_late = False


@final
class SearchRoom:
    """How much memory the batches of searches take, by the address of the client, and the requests that wait for room.

    An address whose requests wait has a search under way, or a request that `next_held` returned and that is about to
    try again. Call `next_held` after either of these.
    """

    def __init__(self) -> None:
        self.bytes = 0
        # Addresses with searches: how many there are, and their bytes.
        self.counts: dict[str, int] = {}
        self.bytes_of: dict[str, int] = {}
        self.held: dict[str, deque[ListOffsetsWork]] = {}

    def take(self, work: ListOffsetsWork, size: int, now: Now) -> bool:
        """Reserve the bytes of a batch. If there is no room, the request is held, and False is returned."""
        address = work.client_host
        if not self._has_room(address, size):
            held = self.held.get(address)
            if held is None:
                held = deque()
                self.held[address] = held
            work.held_bytes = size
            if work.deadline_ms:
                # It keeps its place.
                held.appendleft(work)
            else:
                work.deadline_ms = now.mono_ms + SEARCH_DEADLINE_MS
                held.append(work)
            return False
        self.counts[address] = self.counts.get(address, 0) + 1
        self.bytes_of[address] = self.bytes_of.get(address, 0) + size
        self.bytes += size
        work.search_bytes = size
        return True

    def _has_room(self, address: str, size: int) -> bool:
        if address not in self.counts:
            return True
        return self.bytes_of[address] + size <= SEARCH_BYTES_PER_ADDRESS_MAX and self.bytes + size <= SEARCH_BYTES_MAX

    def free(self, work: ListOffsetsWork) -> None:
        """The search for this request has ended."""
        address = work.client_host
        self.bytes -= work.search_bytes
        left = self.counts[address] - 1
        if left:
            self.counts[address] = left
            self.bytes_of[address] -= work.search_bytes
        else:
            del self.counts[address]
            del self.bytes_of[address]
        work.search_bytes = 0

    def next_held(self, address: str, now: Now) -> ListOffsetsWork | None:
        """The first held request of the address, if there is room for it now or it has waited for too long."""
        held = self.held.get(address)
        if held is None:
            return None
        work = held[0]
        work.is_late = now.mono_ms >= work.deadline_ms
        if not work.is_late and not self._has_room(address, work.held_bytes):
            return None
        held.popleft()
        if not held:
            del self.held[address]
        return work

    def drop(self, connection_id: int) -> None:
        """Discard the held requests of a connection."""
        for address, held in list(self.held.items()):
            left = deque([work for work in held if work.connection_id != connection_id])
            if left:
                self.held[address] = left
            else:
                del self.held[address]


@final
class ListOffsetsHandler:
    def __init__(self, table: PartitionTable, budget: TurnBudget | None = None) -> None:
        self.table = table
        self.budget = TurnBudget() if budget is None else budget
        # Requests that wait for later turns, in order of arrival; and those that wait for a job, by the job's key.
        self.waiting: deque[ListOffsetsWork] = deque()
        self.searching: dict[str, ListOffsetsWork] = {}
        self.room = SearchRoom()
        # Jobs for the engine to take.
        self.jobs: list[Job] = []

    def handle_list_offsets(self, request: Request, body: ListOffsetsRequest, now: Now) -> ListOffsetsResponse | None:
        """An answer for every partition, or None: it then comes from answer_next.

        A partition that occurs twice gets INVALID_REQUEST, once.
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
            if not self._look_up(work, work.lookups[work.position], now):
                return None
            work.position += 1
        return work.response

    def has_due(self) -> bool:
        """Whether a request can continue in this or a later turn."""
        return len(self.waiting) > 0

    def answer_next(self, now: Now) -> Reply | None:
        """Continue the first request within the turn's budget, by one look-up at least. Returns the answer once
        complete.
        """
        work = self.waiting[0]
        while work.position < len(work.lookups):
            if not self._look_up(work, work.lookups[work.position], now):
                self.waiting.popleft()
                self._let_in(work.client_host, now)
                return None
            work.position += 1
            if self.budget.is_spent:
                break
        if work.position < len(work.lookups):
            return None
        self.waiting.popleft()
        self._let_in(work.client_host, now)
        return Reply(work.request_id, work.response)

    def _let_in(self, address: str, now: Now) -> None:
        """Let the next held request of the address try again, if that may help."""
        if self.room.held:
            work = self.room.next_held(address, now)
            if work is not None:
                self.waiting.append(work)

    def take_jobs(self) -> list[Job]:
        jobs = self.jobs
        if jobs:
            self.jobs = []
        return jobs

    def job_done(self, job: SearchJob, error: str | None, now: Now) -> None:
        """The job is done or has timed out: its request continues in answer_next."""
        work = self.searching.pop(job.key, None)
        if work is None:
            # Its connection is closed.
            return
        self.room.free(work)
        self._let_in(work.client_host, now)
        lookup = work.lookups[work.position]
        time = lookup.time
        if error is None and not job.damage and time is not None:
            time.note(job.search)
        else:
            lookup.time = None
            lookup.error_code = self._failure(lookup, job, error)
        self.waiting.append(work)

    def _failure(self, lookup: Lookup, job: SearchJob, error: str | None) -> int:
        """The error code for a failed job."""
        if job.damage:
            tp = lookup.tp
            if tp is not None and not tp.is_dropped:
                base_offset = job.search.header.base_offset
                self.table.note_damage(tp, LogDamaged(tp.log.name, base_offset, 0, job.damage))
            return KAFKA_STORAGE_ERROR
        if job.is_abandoned:
            return REQUEST_TIMED_OUT
        self.table.facts.append(Fact(ERROR, "internal_error", {"reason": f"searching for ListOffsets: {error}"}, BUG))
        return UNKNOWN_SERVER_ERROR

    def on_disconnect(self, connection_id: int, now: Now) -> None:
        """Discard the waiting requests of the connection."""
        if self.waiting:
            self.waiting = deque([work for work in self.waiting if work.connection_id != connection_id])
        self.room.drop(connection_id)
        for key, work in list(self.searching.items()):
            if work.connection_id == connection_id:
                del self.searching[key]
                self.room.free(work)
        for address in list(self.room.held):
            self._let_in(address, now)

    def _plan(self, request: Request, body: ListOffsetsRequest) -> ListOffsetsWork:
        """Check the request without reading any partition."""
        work = ListOffsetsWork(request, body.isolation_level)
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

    def _look_up(self, work: ListOffsetsWork, lookup: Lookup, now: Now) -> bool:
        """Answer for one partition. Returns False if a job has to search a batch first."""
        p = lookup.partition
        if needs_files(p.timestamp):
            self.budget.spent += LOOKUP_COST
        answer = self._list_partition(work, lookup.topic.name, lookup)
        time = lookup.time
        if time is not None:
            self.budget.spent += time.content_bytes // CONTENT_BYTES_PER_COST
            search = time.search
            if search is not None:
                time.search = None
                if not self.room.take(work, len(search.data), now):
                    return False
                job = SearchJob(work, search, time.decompressed_bytes_max)
                self.searching[job.key] = work
                self.jobs.append(job)
                return False
        lookup.topic.partitions.append(answer)
        return True

    def _list_partition(self, work: ListOffsetsWork, topic: str, lookup: Lookup) -> ListOffsetsPartitionResponse:
        version = work.version
        p = lookup.partition
        if not is_supported(p.timestamp, version):
            return ListOffsetsPartitionResponse(p.partition_index, UNSUPPORTED_VERSION)
        tp = self.table.find(topic, p.partition_index)
        if tp is None:
            return ListOffsetsPartitionResponse(p.partition_index, UNKNOWN_TOPIC_OR_PARTITION)
        error = tp.check_leader_epoch(p.current_leader_epoch)
        if error == NONE:
            error = lookup.error_code
        if error == NONE and work.is_late and needs_files(p.timestamp):
            error = REQUEST_TIMED_OUT
        if error != NONE:
            return ListOffsetsPartitionResponse(p.partition_index, error)
        try:
            answer = look_up(tp, p.timestamp, lookup, tp.readable_end(work.isolation_level))
        except LogDamaged as damage:
            self.table.note_damage(tp, damage)
            return ListOffsetsPartitionResponse(p.partition_index, KAFKA_STORAGE_ERROR)
        except OSError:
            return ListOffsetsPartitionResponse(p.partition_index, KAFKA_STORAGE_ERROR)
        if version < LEADER_EPOCH_FROM:
            answer.leader_epoch = -1
        return answer


def look_up(tp: TopicPartition, timestamp: int, lookup: Lookup, end: int) -> ListOffsetsPartitionResponse:
    """Look up `timestamp` (or a special time) in the partition below `end`. The offset is -1 if there is none, or if a
    job has to search a batch first.
    """
    log = tp.log
    index = tp.partition
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
