"""Produce: checking record batches, assigning offsets and appending to the log.

Batches are stored as they came, with base offset and leader epoch filled in, unless the topic has another codec or uses
LogAppendTime. Every partition is checked and answered on its own; a bad batch does not affect the others. Sequences of
idempotent producers are checked against the last five batches of each producer (KIP-98); a repeated batch is answered
with its first offsets.

A batch is checked, then appended. The checks of one turn have a budget. A request that needs more becomes a job, waits
with its connection, and is appended in a later turn (produce_work.py). A request for very many partitions, or with very
many bytes, is appended over several turns.

An answer is sent when everything appended before it is durable, for acks=1 as for acks=-1, since there is only one
disk. That includes a repeated batch whose first copy is not durable yet; the engine takes care of that.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import BUG, ERROR, GROUP_EVENTS_TOPIC, INTERNAL_TOPICS, Fact, Job, Now, Request
from kcoord.engine.budget import TurnBudget
from kcoord.engine.partitions import PartitionTable, ServedTopic, TopicPartition, TopicSettings
from kcoord.engine.produce_work import CheckJob, PartitionWrite, ProduceWork
from kcoord.engine.transaction_gate import TransactionGate
from kcoord.engine.waiting_room import WaitingRoom
from kcoord.log.journal import Journal
from kcoord.protocol.errors import (
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_RECORD,
    INVALID_REQUIRED_ACKS,
    INVALID_TIMESTAMP,
    INVALID_TOPIC_EXCEPTION,
    INVALID_TXN_STATE,
    KAFKA_STORAGE_ERROR,
    MESSAGE_TOO_LARGE,
    NONE,
    NOT_ENOUGH_REPLICAS,
    RECORD_LIST_TOO_LARGE,
    REQUEST_TIMED_OUT,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
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
from kcoord.wire.primitives import read_i16_be, read_i32_be, read_i64_be
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
# Clients of these versions begin each transaction with a new producer epoch (KIP-890).
EPOCH_BUMPS_FROM: Final = 12
NO_TIMESTAMP: Final = -1
NO_OFFSET: Final = -1
# The position of a batch's attributes (low byte), and the position from which its length counts.
ATTRIBUTES_AT: Final = 22
LENGTH_END: Final = 12
MAGIC_AT: Final = 16
PRODUCER_ID_AT: Final = 43
PRODUCER_EPOCH_AT: Final = 51
# What a broker says about batches that are in no open transaction.
GATE_MESSAGES: Final[dict[int, str]] = {
    INVALID_TXN_STATE: "Partition was not added to the transaction",
    NOT_ENOUGH_REPLICAS: "Unable to verify the partition has been added to the transaction",
}
# Errors inside of a batch, which are answered with the log's start offset.
TOLD_THE_START: Final = frozenset((INVALID_PRODUCER_EPOCH, INVALID_RECORD, INVALID_TIMESTAMP))

# The budget of all Produce checks in a turn; beyond it a request becomes a job. About 3 ms of compiled code for the
# elements (170 ns per record, 20 ns per header), a millisecond or two for the bytes (zstd 1 ms per MiB, gzip 4 ms), 4
# ms to compress again (gzip 30 ms per MiB).
TURN_CONTENT_BYTES: Final = 1024 * 1024
TURN_ELEMENTS: Final = 16 * 1024
TURN_RECOMPRESSED_BYTES: Final = 128 * 1024
# What a request may spend in any case: passing it to a thread costs the event loop as much.
SMALL_CONTENT_BYTES: Final = 16 * 1024
SMALL_ELEMENTS: Final = 128
# Partitions that requests which waited append to in a turn, and those of a request that need not wait: about 5 ms.
APPENDS_PER_TURN: Final = 500
# Partitions that get their directory and files in a turn, with their first records: about 10 ms.
FIRST_APPENDS_PER_TURN: Final = 50
# Bytes of records that are appended in a turn, including the batch that exceeds it: some 20 ms on a busy machine,
# because they are copied three times on their way into the file.
APPEND_BYTES_PER_TURN: Final = 2 * 1024 * 1024
# The cost of each append in the turn's budget, and that of its bytes.
APPEND_COST: Final = 128
APPEND_BYTES_PER_COST: Final = 8
# Records of requests that wait for a check or for their append. They do not count for queued.max.request.bytes, because
# closing their connections would not free them. Above this limit, or above half of it for one address, a further
# Produce request waits in its connection's backlog, which does count. With one request more, those below, and what the
# threads decompress, this is all the memory that such requests may use.
WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
# Requests of up to this size have room of their own: a few large ones do not hold up everybody's.
SMALL_REQUEST_BYTES: Final = 64 * 1024
SMALL_WAITING_BYTES_MAX: Final = 16 * 1024 * 1024


def refused(index: int, error_code: int, message: str | None = None) -> PartitionProduceResponse:
    """The answer for a partition whose records were refused."""
    return PartitionProduceResponse(index, error_code, NO_OFFSET, error_message=message)


def is_transactional(records: bytes | None) -> bool:
    """Whether the first batch belongs to a transaction."""
    return records is not None and len(records) >= HEADER_BYTES and (records[ATTRIBUTES_AT] & TRANSACTIONAL_FLAG) != 0


def has_transactional_records(body: ProduceRequest) -> bool:
    for topic in body.topic_data:
        for data in topic.partition_data:
            if is_transactional(data.records):
                return True
    return False


def producer_of(records: bytes) -> tuple[int, int]:
    """The producer id and epoch of the first batch, whose header must be whole."""
    return int(read_i64_be(records, PRODUCER_ID_AT)), int(read_i16_be(records, PRODUCER_EPOCH_AT))


def has_several_producers(body: ProduceRequest) -> bool:
    """Whether transactional batches name different producers or epochs."""
    first: tuple[int, int] | None = None
    for topic in body.topic_data:
        for data in topic.partition_data:
            records = data.records
            if records is not None and is_transactional(records):
                producer = producer_of(records)
                if first is None:
                    first = producer
                elif producer != first:
                    return True
    return False


def without_torn_end(records: bytes) -> bytes:
    """The records without the bytes after the first batch, if these are less than a whole batch.

    Brokers have always ignored a batch that is truncated at the end.
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
    """The size that the header of the batch at `pos` claims."""
    # In 64 bits, since a malicious length could overflow 32.
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
    """The answer for a batch that failed the check. Bad records are listed by their index in the batch (KIP-467)."""
    # Brokers omit the message if the error code suffices; clients then show their own text.
    answer = refused(index, checked.error_code, checked.message if checked.record_errors else None)
    answer.log_start_offset = log_start_offset
    for number, message in checked.record_errors:
        answer.record_errors.append(BatchIndexAndErrorMessage(number, message))
    return answer


@final
class ProduceHandler:
    """The handler of Produce requests."""

    def __init__(self, config: CoreConfig, table: PartitionTable, journal: Journal, budget: TurnBudget) -> None:
        self.config = config
        self.budget = budget
        self.table = table
        self.journal = journal
        # Without a coordinator no transactional batch is appended.
        self.gate = TransactionGate()
        # What is left of this turn's budget for checks.
        self.turn = CheckBudget(TURN_CONTENT_BYTES, TURN_ELEMENTS, TURN_RECOMPRESSED_BYTES)
        # A small request is not worth a thread, however much others used in this turn.
        self.small = CheckBudget(SMALL_CONTENT_BYTES, SMALL_ELEMENTS, 0)
        # Partitions that requests which waited appended to in this turn.
        self.appends = 0
        self.first_appends = 0
        # Bytes that all requests appended in this turn.
        self.append_bytes = 0
        self.append_bytes_max = APPEND_BYTES_PER_TURN
        # Jobs for the engine to take.
        self.jobs: list[Job] = []
        # Requests whose checks are done, and which continue with appending.
        self.ready: deque[ProduceWork] = deque()
        # How many requests wait for a check or for their append, and their memory.
        self.waiting = 0
        self.large_room = WaitingRoom(WAITING_BYTES_MAX)
        self.small_room = WaitingRoom(SMALL_WAITING_BYTES_MAX)
        # Whether requests that stayed in the backlogs for lack of room may have some now.
        self.has_freed_room = False

    def begin_turn(self) -> None:
        self.appends = 0
        self.first_appends = 0
        self.append_bytes = 0
        self.turn.content_bytes = TURN_CONTENT_BYTES
        self.turn.elements = TURN_ELEMENTS
        self.turn.recompressed_bytes = TURN_RECOMPRESSED_BYTES

    def handle_produce(self, request: Request, body: ProduceRequest, now: Now) -> ProduceResponse | None:
        """Append valid records and answer for every partition, or return None: the request waits, see `jobs` and
        `ready`.

        With acks=0 the answer is not sent, but an error in it closes the connection.
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
        self._room(work.records_bytes).add(work.client_host, work.records_bytes)
        if is_checked:
            self.ready.append(work)
        else:
            self._start_job(work)
        return None

    def _start_job(self, work: ProduceWork) -> None:
        self.jobs.append(CheckJob(work, self.config.produce_decompressed_bytes_max))

    # --- waiting requests

    def _room(self, size: int) -> WaitingRoom:
        return self.small_room if size <= SMALL_REQUEST_BYTES else self.large_room

    @property
    def is_crowded(self) -> bool:
        """Whether waiting requests use so much memory that some have to stay in the backlogs of their connections."""
        return self.large_room.is_full or self.small_room.is_full

    def has_room_for(self, request_bytes: int, address: str) -> bool:
        """Whether another request of this size may be added to those that wait."""
        return self._room(request_bytes).has_space(address)

    def take_freed_room(self) -> bool:
        """Whether there is room again since the last call."""
        freed = self.has_freed_room
        self.has_freed_room = False
        return freed

    def job_done(self, job: CheckJob, error: str | None) -> None:
        """The job is done or has timed out: its request continues in append_more."""
        work = job.work
        if error is not None and job.is_abandoned:
            # The job may still be running. Its results are not used any more.
            work.refuse_rest(REQUEST_TIMED_OUT, error)
        elif error is not None:
            # Nothing was appended. After UNKNOWN_SERVER_ERROR producers would go on with another epoch, as if the batch
            # might be in the log, and write it twice (KAFKA-14034). After this error they repeat it.
            work.refuse_rest(KAFKA_STORAGE_ERROR)
            self.table.facts.append(Fact(ERROR, "internal_error", {"reason": f"checking Produce: {error}"}, BUG))
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
        """The request to continue with; None if there is none, or none in this turn."""
        if not self.ready or self.appends >= APPENDS_PER_TURN or (self.appends and self.budget.is_spent):
            return None
        if self.first_appends >= FIRST_APPENDS_PER_TURN or self.append_bytes >= self.append_bytes_max:
            return None
        return self.ready.popleft()

    def append_more(self, work: ProduceWork, disk_full: bool, now: Now) -> bool:
        """Append for a request that waited, as much as this turn allows. Returns whether that was all of it."""
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
        if self._room(work.records_bytes).remove(work.client_host, work.records_bytes):
            self.has_freed_room = True

    # --- the request

    def _plan(self, request: Request, body: ProduceRequest, now: Now) -> ProduceWork:
        """Check the request without looking into any batch."""
        work = ProduceWork(request, body.acks, body.transactional_id)
        # A broker requires authorization for the transactional id, and there is none. All records of a request come
        # from one producer.
        refuse_all = NONE
        message: str | None = None
        if has_transactional_records(body):
            if body.transactional_id is None:
                refuse_all = TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            elif has_several_producers(body):
                refuse_all = INVALID_PRODUCER_ID_MAPPING
                message = "Transactional records contained more than one producer ID"
        for topic in body.topic_data:
            work.topics.append(TopicProduceResponse(topic.name, topic.topic_id))
            work.counts.append(len(topic.partition_data))
            served = self._topic(request.version, topic)
            for data in topic.partition_data:
                write = PartitionWrite(data.index, data.records)
                work.writes.append(write)
                if refuse_all != NONE:
                    write.refuse(refuse_all, message)
                else:
                    self._plan_write(work, write, served, now)
        return work

    def _topic(self, version: int, topic: TopicProduceData) -> ServedTopic | None:
        if version >= TOPIC_IDS_FROM:
            return self.table.topic_by_id(topic.topic_id)
        return self.table.topic(topic.name)

    def _plan_write(self, work: ProduceWork, write: PartitionWrite, served: ServedTopic | None, now: Now) -> None:
        if served is None:
            write.refuse(UNKNOWN_TOPIC_ID if work.version >= TOPIC_IDS_FROM else UNKNOWN_TOPIC_OR_PARTITION)
        elif (tp := self.table.find(served.name, write.index)) is None:
            write.refuse(UNKNOWN_TOPIC_OR_PARTITION)
        elif work.acks < -1 or work.acks > 1:
            write.refuse(INVALID_REQUIRED_ACKS)
        elif served.name in INTERNAL_TOPICS or served.name == GROUP_EVENTS_TOPIC:
            write.refuse(INVALID_TOPIC_EXCEPTION)
        elif not self._may_write(work, write, served, tp):
            return
        else:
            if write.records is not None:
                work.records_bytes += len(write.records)
                write.records = without_torn_end(write.records)
            write.served = served
            self._begin_check(work, write, served.settings, now)

    def _may_write(self, work: ProduceWork, write: PartitionWrite, served: ServedTopic, tp: TopicPartition) -> bool:
        """Whether the batch is outside of transactions or belongs to an open one; if not, it is refused.

        A partition that knows a later epoch refuses the batch, whatever the coordinator would say about it.
        """
        records = write.records
        if records is None or not is_transactional(records):
            return True
        producer_id, epoch = producer_of(records)
        if tp.producers.is_fenced(producer_id, epoch):
            write.refuse(INVALID_PRODUCER_EPOCH)
            return False
        error = self.gate.check_write(work.transactional_id, producer_id, epoch, served.name, write.index, work.version)
        if error != NONE:
            write.refuse(error, GATE_MESSAGES.get(error))
        return error == NONE

    def _begin_check(self, work: ProduceWork, write: PartitionWrite, settings: TopicSettings, now: Now) -> None:
        write.settings = settings
        write.check = BatchCheck(write.records, work.version, now.wall_ms, settings.limits, settings.codec)

    # --- the log

    def _append_some(self, work: ProduceWork, count: int, now: Now) -> bool:
        """Append to up to `count` more partitions. Returns False if some batch has to be checked again first.

        It also stops when enough partitions got their first records in this turn, or enough bytes were appended; at
        least one partition is written.

        Other turns may have run since the check: the topic may be deleted or recreated, its settings may have changed,
        the transaction may have ended, and the producer may have written on another connection. So all of that is
        checked here, in the turn of the append.
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
                    write.refuse(UNKNOWN_TOPIC_ID if work.version >= TOPIC_IDS_FROM else UNKNOWN_TOPIC_OR_PARTITION)
                elif write.settings is not served.settings and self._check_again(work, now):
                    return False
                elif self._may_write(work, write, served, tp):
                    if not tp.log.has_files and not tp.log.end_offset:
                        if self.first_appends >= FIRST_APPENDS_PER_TURN:
                            return True
                        self.first_appends += 1
                    write.response = self._append(write, served.settings, tp, now, work.version)
                # The records are in the log or refused: free their memory.
                write.check = None
                write.records = None
            work.next_append += 1
        return True

    def _check_again(self, work: ProduceWork, now: Now) -> bool:
        """Check the remaining batches with the current settings of their topics. Returns whether there were any."""
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
        self, write: PartitionWrite, settings: TopicSettings, tp: TopicPartition, now: Now, version: int
    ) -> PartitionProduceResponse:
        index = write.index
        log = tp.log
        check = write.check
        checked = None if check is None else check.result
        if checked is None:
            raise RuntimeError(f"records for {log.name} are not checked")
        header = checked.header
        if checked.error_code != NONE or header is None:
            # Errors inside of a batch are answered with the log's start offset, errors of the whole batch without.
            inside = checked.error_code in TOLD_THE_START and is_one_batch(write.records)
            return bad_batch(index, checked, log.log_start_offset if inside else NO_OFFSET)
        batch = checked.batch
        is_stamped = settings.limits.timestamp_type == LOG_APPEND_TIME
        if is_stamped and header.max_timestamp != now.wall_ms:
            # The request waited and other batches were stamped meanwhile, but LogAppendTime must not decrease.
            batch = with_log_append_time(batch, now.wall_ms)
            header = parse_header(batch, 0)
        if header.size > settings.limits.max_batch_bytes:
            # Only if the topic has its own codec: what the client sent is within the limit.
            return refused(index, MESSAGE_TOO_LARGE)
        if header.size > settings.segment_bytes:
            return refused(index, RECORD_LIST_TOO_LARGE)
        base_offset: int = log.end_offset
        last_offset: int = base_offset + header.last_offset_delta
        has_producer = header.producer_id >= 0
        if has_producer:
            sequences = tp.producers.check(header, version >= EPOCH_BUMPS_FROM)
            if sequences.error_code != NONE:
                answer = refused(index, sequences.error_code)
                answer.log_start_offset = log.log_start_offset
                return answer
            seen = sequences.duplicate
            if seen is not None:
                return PartitionProduceResponse(index, NONE, seen.first_offset, seen.timestamp_ms, log.log_start_offset)
        batch = with_offsets(batch, base_offset, tp.leader_epoch)
        self.journal.append(log, batch, base_offset, last_offset, header.max_timestamp, tp.leader_epoch)
        self.append_bytes += len(batch)
        if has_producer:
            tp.producers.note(header, last_offset, now.wall_ms)
        self.table.note_append(tp)
        append_time = now.wall_ms if is_stamped else NO_TIMESTAMP
        return PartitionProduceResponse(index, NONE, base_offset, append_time, log.log_start_offset)
