"""Produce: checking record batches, giving them offsets and handing them to the log.

Batches are stored as they came, with base offset and leader epoch filled in, unless the topic asks for another codec
or stamps them with its own time. Every partition is checked and answered on its own; one bad batch costs the others
nothing. Sequences of idempotent producers are checked against the last five batches of each producer (KIP-98); a
repeated batch is answered with the offsets it got the first time.

A batch is checked, then appended. Checks of one turn have a budget; a request that needs more becomes a job, waits
with its connection, and is appended in a later turn (produce_work.py). A request for very many partitions, or with very
many bytes, is appended over several turns.

An answer leaves when all that was appended before it is durable, for acks=1 as for acks=-1, since there is only one
disk to trust. That covers a repeated batch whose first copy is still on its way there; the engine sees to it.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import GROUP_EVENTS_TOPIC, INTERNAL_TOPICS, WARNING, Fact, Job, Now, Request
from kcoord.engine.budget import TurnBudget
from kcoord.engine.partitions import PartitionTable, ServedTopic, TopicPartition, TopicSettings
from kcoord.engine.produce_work import CheckJob, PartitionWrite, ProduceWork
from kcoord.log.journal import Journal
from kcoord.protocol.errors import (
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_RECORD,
    INVALID_REQUIRED_ACKS,
    INVALID_TIMESTAMP,
    INVALID_TOPIC_EXCEPTION,
    KAFKA_STORAGE_ERROR,
    MESSAGE_TOO_LARGE,
    NONE,
    RECORD_LIST_TOO_LARGE,
    REQUEST_TIMED_OUT,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_SERVER_ERROR,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kcoord.protocol.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kcoord.wire.primitives import read_i32_be
from kcoord.wire.produced_batch import CHECKED, BatchCheck, CheckBudget, ProducedBatch
from kcoord.wire.record_batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC_V2,
    TRANSACTIONAL_FLAG,
    parse_header,
    with_log_append_time,
    with_offsets,
)

TOPIC_IDS_FROM: Final = 13
NO_TIMESTAMP: Final = -1
NO_OFFSET: Final = -1
# Where a batch has its attributes (low byte), and where its length, which counts from there, ends.
ATTRIBUTES_AT: Final = 22
LENGTH_END: Final = 12
MAGIC_AT: Final = 16
# Faults inside of a batch, which are told with the log's start.
TOLD_THE_START: Final = frozenset((INVALID_PRODUCER_EPOCH, INVALID_RECORD, INVALID_TIMESTAMP))

# What all Produce requests of a turn may spend on checks before the next one becomes a job: about 3 ms of compiled
# code for the elements (170 ns for a record, 20 ns for a header), a millisecond or two for the bytes (zstd 1 ms per
# MiB, gzip 4 ms), 4 ms to compress again (gzip 30 ms per MiB).
TURN_CONTENT_BYTES: Final = 1024 * 1024
TURN_ELEMENTS: Final = 16 * 1024
TURN_RECOMPRESSED_BYTES: Final = 128 * 1024
# What a request may spend even so: handing it to a thread costs the loop as much.
SMALL_CONTENT_BYTES: Final = 16 * 1024
SMALL_ELEMENTS: Final = 128
# Partitions that requests which waited append for in a turn, and of a request that need not wait: about 5 ms.
APPENDS_PER_TURN: Final = 500
# Partitions that get their directory and files in a turn, with their first records: about 10 ms.
FIRST_APPENDS_PER_TURN: Final = 50
# Bytes of records that are appended in a turn, with the batch that goes beyond: some 20 ms on a busy machine, for they
# are copied three times on their way into the file.
APPEND_BYTES_PER_TURN: Final = 2 * 1024 * 1024
# The share of each append in the turn's budget, and that of its bytes.
APPEND_COST: Final = 128
APPEND_BYTES_PER_COST: Final = 8
# Records of requests that wait for a check or for their append. They are beside queued.max.request.bytes, since closing
# their connections would not free them. Above it no Produce is handled on any connection; it waits in its connection's
# backlog, which counts there. With one request more, and what the threads at work decompress, that is all the memory
# that such requests may take.
WAITING_BYTES_MAX: Final = 64 * 1024 * 1024


def refused(index: int, error_code: int, message: str | None = None) -> PartitionProduceResponse:
    """The answer for a partition that took nothing."""
    return PartitionProduceResponse(index, error_code, NO_OFFSET, error_message=message)


def is_transactional(records: bytes | None) -> bool:
    """Whether the first batch says that it belongs to a transaction."""
    return (
        records is not None
        and len(records) >= HEADER_BYTES
        and (records[ATTRIBUTES_AT] & TRANSACTIONAL_FLAG) != 0
    )


def has_transactional_records(body: ProduceRequest) -> bool:
    for topic in body.topic_data:
        for data in topic.partition_data:
            if is_transactional(data.records):
                return True
    return False


def without_torn_end(records: bytes) -> bytes:
    """The records without what follows the first batch, where that is less than a whole batch.

    Brokers have always passed over a batch that is cut off at the end.
    """
    if len(records) < HEADER_BYTES:
        return records
    first = batch_bytes(records, 0)
    if first < HEADER_BYTES or first >= len(records):
        return records
    rest = len(records) - first
    if rest < LENGTH_END or batch_bytes(records, first) > rest:
        return records[:first]
    return records


def batch_bytes(records: bytes, pos: int) -> int:
    """The size that the batch at `pos` claims to have."""
    # Not in 32 bits, where a hostile length could wrap.
    length: int = read_i32_be(records, pos + 8)
    return length + LENGTH_END


def is_one_batch(records: bytes | None) -> bool:
    """Whether the records look like exactly one batch of format version 2."""
    return (
        records is not None
        and len(records) >= HEADER_BYTES
        and records[MAGIC_AT] == MAGIC_V2
        and batch_bytes(records, 0) == len(records)
    )


def bad_batch(index: int, checked: ProducedBatch, log_start_offset: int) -> PartitionProduceResponse:
    """The answer for a batch that did not pass. Bad records are named by their index in the batch (KIP-467)."""
    # Brokers leave the message out where the error code says it all, and clients show their own text then.
    answer = refused(index, checked.error_code, checked.message if checked.record_errors else None)
    answer.log_start_offset = log_start_offset
    for number, message in checked.record_errors:
        answer.record_errors.append(BatchIndexAndErrorMessage(number, message))
    return answer


@final
class ProduceRoom:
    """Writes of clients."""

    def __init__(
        self, config: CoreConfig, table: PartitionTable, journal: Journal, budget: TurnBudget
    ) -> None:
        self.config = config
        self.budget = budget
        self.table = table
        self.journal = journal
        # What requests may still spend on checks in this turn.
        self.turn = CheckBudget(TURN_CONTENT_BYTES, TURN_ELEMENTS, TURN_RECOMPRESSED_BYTES)
        # A small request is not worth a thread, however much others used in this turn.
        self.small = CheckBudget(SMALL_CONTENT_BYTES, SMALL_ELEMENTS, 0)
        # Partitions that requests which waited appended for in this turn.
        self.appends = 0
        self.first_appends = 0
        # Bytes that any requests appended in this turn.
        self.append_bytes = 0
        self.append_bytes_max = APPEND_BYTES_PER_TURN
        # Jobs that nobody has taken yet.
        self.jobs: list[Job] = []
        # Requests whose checks are done, and that go on with appending.
        self.ready: deque[ProduceWork] = deque()
        # How many requests wait for a check or for their append, and what they hold in memory.
        self.waiting = 0
        self.waiting_bytes = 0

    def begin_turn(self) -> None:
        self.appends = 0
        self.first_appends = 0
        self.append_bytes = 0
        self.turn.content_bytes = TURN_CONTENT_BYTES
        self.turn.elements = TURN_ELEMENTS
        self.turn.recompressed_bytes = TURN_RECOMPRESSED_BYTES

    def handle_produce(self, request: Request, body: ProduceRequest, now: Now) -> ProduceResponse | None:
        """Append what is good and answer for every partition, or None: the request waits, see `jobs` and `ready`.

        With acks=0 the answer is not to be sent, but an error in it closes the connection.
        """
        work = self._plan(request, body, now)
        turn = self.turn
        turn.content_bytes = max(turn.content_bytes, self.small.content_bytes)
        turn.elements = max(turn.elements, self.small.elements)
        is_checked = work.check(turn) == CHECKED
        if is_checked and len(work.writes) <= APPENDS_PER_TURN:
            self._append_some(work, len(work.writes), now)
            if work.next_append == len(work.writes):
                return work.answer()
        self.waiting += 1
        self.waiting_bytes += work.records_bytes
        if is_checked:
            self.ready.append(work)
        else:
            self._start_job(work)
        return None

    def _start_job(self, work: ProduceWork) -> None:
        self.jobs.append(CheckJob(work, self.config.produce_decompressed_bytes_max))

    # --- what waits

    @property
    def is_crowded(self) -> bool:
        """Whether requests that wait hold so much that no more may join them."""
        return self.waiting_bytes > WAITING_BYTES_MAX

    def job_done(self, job: CheckJob, error: str | None) -> None:
        """The job ended, or will not in time: its request goes on with append_more."""
        work = job.work
        if error is not None and job.is_abandoned:
            # It may still be at work on the checks. None of them is looked at any more.
            work.refuse_rest(REQUEST_TIMED_OUT, error)
        elif error is not None:
            work.refuse_rest(UNKNOWN_SERVER_ERROR)
            self.table.facts.append(Fact(WARNING, "internal_error", {"reason": f"checking Produce: {error}"}))
        elif job.is_over_budget:
            limit = self.config.produce_decompressed_bytes_max
            work.refuse_rest(
                MESSAGE_TOO_LARGE, f"the request becomes more than {limit} bytes (produce.decompressed.max.bytes)"
            )
        self.ready.append(work)

    def take_jobs(self) -> list[Job]:
        jobs = self.jobs
        if jobs:
            self.jobs = []
        return jobs

    def next_ready(self) -> ProduceWork | None:
        """The request to go on with; None when there is none, or none in this turn."""
        if not self.ready or self.appends >= APPENDS_PER_TURN or (self.appends and self.budget.is_spent):
            return None
        if self.first_appends >= FIRST_APPENDS_PER_TURN or self.append_bytes >= self.append_bytes_max:
            return None
        return self.ready.popleft()

    def append_more(self, work: ProduceWork, disk_full: bool, now: Now) -> bool:
        """Append for a request that waited, as much as this turn may; whether that is all of it."""
        if disk_full:
            work.refuse_rest(KAFKA_STORAGE_ERROR)
        before = work.next_append
        bytes_before = self.append_bytes
        is_checked = self._append_some(work, APPENDS_PER_TURN - self.appends, now)
        count = work.next_append - before
        self.appends += count + 1
        appended_bytes = self.append_bytes - bytes_before
        self.budget.spent += count * APPEND_COST + appended_bytes // APPEND_BYTES_PER_COST
        if not is_checked:
            self._start_job(work)
            return False
        if work.next_append < len(work.writes):
            self.ready.appendleft(work)
            return False
        self.drop(work)
        return True

    def drop(self, work: ProduceWork) -> None:
        """The request does not wait any more."""
        self.waiting -= 1
        self.waiting_bytes -= work.records_bytes

    # --- the request

    def _plan(self, request: Request, body: ProduceRequest, now: Now) -> ProduceWork:
        """What is known before any batch is looked into."""
        work = ProduceWork(request, body.acks)
        # Kafka asks for the right to write under the transactional id, and there is none.
        refuse_all = body.transactional_id is None and has_transactional_records(body)
        for topic in body.topic_data:
            work.topics.append(TopicProduceResponse(topic.name, topic.topic_id))
            work.counts.append(len(topic.partition_data))
            served = self._topic(request.version, topic)
            for data in topic.partition_data:
                write = PartitionWrite(data.index, data.records)
                work.writes.append(write)
                if refuse_all:
                    write.refuse(TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
                else:
                    self._plan_write(work, write, served, now)
        return work

    def _topic(self, version: int, topic: TopicProduceData) -> ServedTopic | None:
        if version >= TOPIC_IDS_FROM:
            return self.table.topic_by_id(topic.topic_id)
        return self.table.topic(topic.name)

    def _plan_write(
        self, work: ProduceWork, write: PartitionWrite, served: ServedTopic | None, now: Now
    ) -> None:
        if served is None:
            write.refuse(UNKNOWN_TOPIC_ID if work.version >= TOPIC_IDS_FROM else UNKNOWN_TOPIC_OR_PARTITION)
        elif self.table.find(served.name, write.index) is None:
            write.refuse(UNKNOWN_TOPIC_OR_PARTITION)
        elif work.acks < -1 or work.acks > 1:
            write.refuse(INVALID_REQUIRED_ACKS)
        elif served.name in INTERNAL_TOPICS or served.name == GROUP_EVENTS_TOPIC:
            write.refuse(INVALID_TOPIC_EXCEPTION)
        elif is_transactional(write.records):
            # No transactional id was ever given out by us, so none maps to this producer.
            write.refuse(INVALID_PRODUCER_ID_MAPPING, "the transactional id is not known")
        else:
            if write.records is not None:
                work.records_bytes += len(write.records)
                write.records = without_torn_end(write.records)
            write.served = served
            self._begin_check(work, write, served.settings, now)

    def _begin_check(
        self, work: ProduceWork, write: PartitionWrite, settings: TopicSettings, now: Now
    ) -> None:
        write.settings = settings
        write.check = BatchCheck(write.records, work.version, now.wall_ms, settings.limits, settings.codec)

    # --- the log

    def _append_some(self, work: ProduceWork, count: int, now: Now) -> bool:
        """Append for up to `count` more partitions; False if something has to be checked once more first.

        It ends early, too, when enough partitions got their first records in this turn, or enough bytes were
        appended; one partition gets its records in any case.
        Between the check and now there may have been other turns: the topic may be gone, or have become another one,
        its settings may ask for something else, and the producer may have written on another connection.
        """
        start = work.next_append
        end = min(start + count, len(work.writes))
        while work.next_append < end:
            if self.append_bytes >= self.append_bytes_max and work.next_append > start:
                return True
            write = work.writes[work.next_append]
            served = write.served
            if write.response is None and served is not None:
                tp = self.table.find(served.name, write.index)
                if tp is None or self.table.topic(served.name) is not served:
                    write.refuse(
                        UNKNOWN_TOPIC_ID if work.version >= TOPIC_IDS_FROM else UNKNOWN_TOPIC_OR_PARTITION
                    )
                elif write.settings is not served.settings and self._check_again(work, now):
                    return False
                else:
                    if not tp.log.has_files and not tp.log.end_offset:
                        if self.first_appends >= FIRST_APPENDS_PER_TURN:
                            return True
                        self.first_appends += 1
                    write.response = self._append(write, served.settings, tp, now)
                # Its bytes are in the log, or nowhere.
                write.check = None
                write.records = None
            work.next_append += 1
        return True

    def _check_again(self, work: ProduceWork, now: Now) -> bool:
        """Check what is not appended yet by the settings that its topics have now; whether there is such."""
        found = False
        for write in work.writes[work.next_append :]:
            served = write.served
            old = write.settings
            if write.response is not None or served is None or old is None:
                continue
            if not old.checks_as(served.settings):
                self._begin_check(work, write, served.settings, now)
                found = True
            write.settings = served.settings
        if found:
            work.next_check = work.next_append
        return found

    def _append(
        self, write: PartitionWrite, settings: TopicSettings, tp: TopicPartition, now: Now
    ) -> PartitionProduceResponse:
        index = write.index
        log = tp.log
        check = write.check
        checked = None if check is None else check.result
        if checked is None:
            raise RuntimeError(f"records for {log.name} are not checked")
        header = checked.header
        if checked.error_code != NONE or header is None:
            # What is wrong inside of a batch is told with the log's start, what is wrong with the whole without.
            inside = checked.error_code in TOLD_THE_START and is_one_batch(write.records)
            return bad_batch(index, checked, log.log_start_offset if inside else NO_OFFSET)
        batch = checked.batch
        is_stamped = settings.limits.timestamp_type == LOG_APPEND_TIME
        if is_stamped and header.max_timestamp != now.wall_ms:
            # It waited. Others were stamped meanwhile, and the log's own times go up.
            batch = with_log_append_time(batch, now.wall_ms)
            header = parse_header(batch, 0)
        if header.size > settings.limits.max_batch_bytes:
            # Only in the topic's own codec: what came is not larger than allowed.
            return refused(index, MESSAGE_TOO_LARGE)
        if header.size > settings.segment_bytes:
            return refused(index, RECORD_LIST_TOO_LARGE)
        base_offset: int = log.end_offset
        last_offset: int = base_offset + header.last_offset_delta
        has_producer = header.producer_id >= 0
        if has_producer:
            sequences = tp.producers.check(header)
            if sequences.error_code != NONE:
                answer = refused(index, sequences.error_code)
                answer.log_start_offset = log.log_start_offset
                return answer
            seen = sequences.duplicate
            if seen is not None:
                return PartitionProduceResponse(
                    index, NONE, seen.first_offset, seen.timestamp_ms, log.log_start_offset
                )
        batch = with_offsets(batch, base_offset, tp.leader_epoch)
        self.journal.append(log, batch, base_offset, last_offset, header.max_timestamp, tp.leader_epoch)
        self.append_bytes += len(batch)
        if has_producer:
            tp.producers.note(header, last_offset, now.wall_ms)
        self.table.note_append(tp)
        append_time = now.wall_ms if is_stamped else NO_TIMESTAMP
        return PartitionProduceResponse(index, NONE, base_offset, append_time, log.log_start_offset)
