"""Fetch: reading record batches, and waiting for them.

A fetch that finds less than its minimum of bytes is parked, until enough bytes of its partitions are durable or its
time is up. Parked fetches are indexed by partition, so a commit checks only those that wait for a partition whose high
watermark moved. Nothing above the high watermark (the durable end) is ever returned, so a crash cannot take back what a
consumer has read.

Limits on bytes do not apply to the first batch, which is always returned whole: a consumer whose limit is smaller than
a batch still makes progress (KIP-74). Partitions are read in the order of the request, or in that of the session.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import TIMER_FETCH, Now, Reply, Request, Timer
from kcoord.engine.budget import TurnBudget
from kcoord.engine.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchItem,
    FetchSession,
    FetchSessionCache,
    PartitionKey,
    next_epoch,
)
from kcoord.engine.partitions import NO_EPOCH, READ_COMMITTED, PartitionTable, TopicPartition, epoch_end
from kcoord.engine.session import OutputPool
from kcoord.log.errors import LogDamaged
from kcoord.protocol.errors import (
    FENCED_LEADER_EPOCH,
    FETCH_SESSION_ID_NOT_FOUND,
    INCONSISTENT_TOPIC_ID,
    INVALID_FETCH_SESSION_EPOCH,
    KAFKA_STORAGE_ERROR,
    NONE,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kcoord.protocol.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from kcoord.wire.file_range import FileRanges
from kcoord.wire.primitives import ZERO_UUID, i64, read_i32_be, read_i64_be
from kcoord.wire.record_batch import HEADER_BYTES, LENGTH_OVERHEAD

# The versions from which a rule applies.
TOPIC_IDS_FROM: Final = 13
REPLICA_STATE_FROM: Final = 15
LEADER_HINTS_FROM: Final = 16
# Older clients do not know that KAFKA_STORAGE_ERROR is retriable.
STORAGE_ERROR_FROM: Final = 6

# The positions in the header of a batch of its length, and of the delta of its last offset.
LENGTH_AT: Final = 8
LAST_DELTA_AT: Final = 23

# One answer may take this part of the free bytes in the pool of answers: one n-th.
POOL_SHARES: Final = 16

SESSIONLESS: Final = 0
FULL: Final = 1
INCREMENTAL: Final = 2


@final
class Fetch:
    """A fetch from its arrival to its answer."""

    def __init__(self, request: Request, body: FetchRequest, max_bytes: int) -> None:
        self.request_id = request.request_id
        self.connection_id = request.connection_id
        self.version = request.version
        self.host = request.host
        self.port = request.port
        self.isolation_level = body.isolation_level
        self.max_bytes = max_bytes
        self.min_bytes = min(body.min_bytes, max_bytes)
        self.mode = SESSIONLESS
        self.session: FetchSession | None = None
        # The epoch that the session must still have when the answer is built.
        self.session_epoch = 0
        # Partitions to read, and partitions that are answered with an error.
        self.items: list[FetchItem] = []
        self.refused: list[tuple[FetchItem, int]] = []
        # While the fetch is parked: its key, and the bytes counted so far.
        self.token = 0
        self.bytes_available = 0


@final
class ReadResult:
    """The result of one pass over the partitions of a fetch."""

    def __init__(self) -> None:
        self.items: list[FetchItem] = []
        self.data: list[PartitionData] = []
        self.bytes = 0
        # An error or a diverging epoch: answer at once.
        self.is_urgent = False
        # The pool of answers had no bytes left for records.
        self.is_starved = False
        self.names_leader = False

    def add(self, item: FetchItem, data: PartitionData) -> None:
        self.items.append(item)
        self.data.append(data)


def error_data(partition: int, error_code: int) -> PartitionData:
    """The answer for a partition that cannot be read."""
    return PartitionData(partition, error_code, -1)


def read_error(partition: int, error_code: int) -> PartitionData:
    """The answer for a partition whose read failed."""
    data = PartitionData(partition, error_code, -1)
    data.aborted_transactions = None
    return data


def group_by_topic(items: list[FetchItem], data: list[PartitionData]) -> list[FetchableTopicResponse]:
    """Neighbours of the same topic share an entry. The order of partitions stays."""
    topics: list[FetchableTopicResponse] = []
    last: FetchableTopicResponse | None = None
    for i in range(len(items)):
        item = items[i]
        if last is None or last.topic_id != item.topic_id or last.topic != item.topic:
            last = FetchableTopicResponse(item.topic, item.topic_id)
            topics.append(last)
        last.partitions.append(data[i])
    return topics


@final
class FetchHandler:
    """All fetches. `session_seed` determines where session ids start; any number works."""

    def __init__(
        self,
        config: CoreConfig,
        table: PartitionTable,
        session_seed: int = 0,
        budget: TurnBudget | None = None,
        pool: OutputPool | None = None,
        ranges: FileRanges | None = None,
    ) -> None:
        self.config = config
        self.table = table
        # Where large records go that the answer does not hold as bytes; None: it holds all of them.
        self.ranges = ranges
        self.budget = TurnBudget() if budget is None else budget
        self.pool = OutputPool() if pool is None else pool
        # Tokens of parked fetches that can be answered, in the order in which that happened; and of those that found no
        # free bytes in the pool.
        self.due: dict[int, bool] = {}
        self.starved: dict[int, bool] = {}
        self.sessions = FetchSessionCache(config.fetch_session_slots, session_seed)
        self.parked: dict[int, Fetch] = {}
        self.waiters: dict[TopicPartition, dict[int, FetchItem]] = {}
        self.by_connection: dict[int, list[int]] = {}
        self.timers: list[Timer] = []
        self.last_token = 0

    def handle_fetch(self, request: Request, body: FetchRequest, now: Now) -> FetchResponse | None:
        """The answer, or None if the fetch was parked; its deadline is then in take_timers().

        Errors of the session are at the top level, all others in their partition.
        """
        max_bytes = max(0, min(body.max_bytes, self.config.fetch_max_bytes))
        fetch = Fetch(request, body, max_bytes)
        error = self._open(fetch, body, now)
        if error != NONE:
            return FetchResponse(0, error)
        self._sort_items(fetch, body)
        if not fetch.items:
            return self._respond(fetch, ReadResult(), now)
        result = self._read(fetch)
        if body.max_wait_ms <= 0 or result.bytes >= fetch.min_bytes or result.is_urgent:
            return self._respond(fetch, result, now)
        self._park(fetch, result, now.mono_ms + body.max_wait_ms)
        return None

    def take_timers(self) -> list[Timer]:
        """The timers of fetches parked since the last call."""
        timers = self.timers
        self.timers = []
        return timers

    def note_durable(self) -> None:
        """High watermarks moved: find the fetches that have enough bytes now."""
        for tp in self.table.take_moved():
            waiting = self.waiters.get(tp)
            if waiting is None:
                continue
            for token, item in waiting.items():
                fetch = self.parked.get(token)
                if fetch is not None and token not in self.due and self._has_enough(fetch, item, tp):
                    self.due[token] = True

    def has_due(self) -> bool:
        """Whether a parked fetch can be answered."""
        if self.starved and self.pool.free_bytes() * POOL_SHARES >= self.pool.bytes_max:
            self.due.update(self.starved)
            self.starved.clear()
        return len(self.due) > 0

    def answer_next(self, now: Now) -> Reply:
        """Answer the first fetch that is due. Only call this if has_due()."""
        token = next(iter(self.due))
        return self._finish(self.parked[token], now)

    def on_timer(self, timer: Timer, now: Now) -> list[Reply]:
        """The time of a parked fetch is up: it gets what there is."""
        fetch = self.parked.get(timer.token)
        if fetch is None:
            return []
        return [self._finish(fetch, now)]

    def on_disconnect(self, connection_id: int) -> None:
        """Discard the parked fetches of a connection. Its sessions stay, because the client may reconnect."""
        tokens = self.by_connection.get(connection_id)
        if tokens is None:
            return
        for token in list(tokens):
            fetch = self.parked.get(token)
            if fetch is not None:
                self._unpark(fetch)

    def note_deleted(self, dropped: list[TopicPartition]) -> None:
        """Partitions were deleted (see PartitionTable.drop_topic): find the fetches that wait for one."""
        for tp in dropped:
            waiting = self.waiters.get(tp)
            if waiting is not None:
                for token in waiting:
                    self.due[token] = True

    # ---- the partitions of a fetch

    def _open(self, fetch: Fetch, body: FetchRequest, now: Now) -> int:
        """Find or create the fetch's session. Returns an error code for the whole request."""
        session_id = body.session_id
        epoch = body.session_epoch
        if epoch == INITIAL_EPOCH or epoch == FINAL_EPOCH:
            # A full fetch closes the session that it names.
            if session_id != NO_SESSION:
                self.sessions.remove(session_id)
            fetch.mode = FULL if epoch == INITIAL_EPOCH else SESSIONLESS
            return NONE
        error = self.sessions.check(session_id, epoch, fetch.version >= TOPIC_IDS_FROM)
        session = self.sessions.find(session_id)
        if error != NONE or session is None:
            return error
        self._update_session(session, fetch.version, body)
        if not session.partitions:
            self.sessions.remove(session_id)
            return NONE
        if not self.sessions.touch(session, now.mono_ms):
            # The consumer starts over with a full fetch, which is answered without a session.
            return FETCH_SESSION_ID_NOT_FOUND
        session.epoch = next_epoch(session.epoch)
        fetch.mode = INCREMENTAL
        fetch.session = session
        fetch.session_epoch = session.epoch
        return NONE

    def _update_session(self, session: FetchSession, version: int, body: FetchRequest) -> None:
        partitions = session.partitions
        for item in self._requested(version, body):
            key = item.key()
            known = partitions.get(key)
            if known is None:
                partitions[key] = item
            else:
                known.update(item)
        for topic in body.forgotten_topics_data:
            for index in topic.partitions:
                gone: PartitionKey = (topic.topic, index)
                if topic.topic_id != ZERO_UUID:
                    gone = (topic.topic_id, index)
                partitions.pop(gone, None)

    def _requested(self, version: int, body: FetchRequest) -> list[FetchItem]:
        """The partitions of the request, each once; the last occurrence counts."""
        found: dict[PartitionKey, FetchItem] = {}
        for topic in body.topics:
            name = topic.topic
            if version >= TOPIC_IDS_FROM:
                served = self.table.topic_by_id(topic.topic_id)
                name = served.name if served is not None else ""
            for p in topic.partitions:
                item = new_item(name, topic.topic_id, p)
                found[item.key()] = item
        return list(found.values())

    def _sort_items(self, fetch: Fetch, body: FetchRequest) -> None:
        """Fill the lists of the fetch: partitions to read, and those with an error."""
        session = fetch.session
        if session is None:
            items = self._requested(fetch.version, body)
        else:
            items = list(session.partitions.values())
        replica_id = body.replica_state.replica_id if fetch.version >= REPLICA_STATE_FROM else body.replica_id
        for item in items:
            error = self._resolve(fetch.version, item, replica_id)
            if error == NONE:
                fetch.items.append(item)
            else:
                fetch.refused.append((item, error))

    def _resolve(self, version: int, item: FetchItem, replica_id: int) -> int:
        """Find the partition. Returns an error code."""
        if replica_id >= 0:
            # There are no other brokers. A client that claims to be one could read records that are not durable and
            # would count as a replica (CVE-2018-1288). It gets Kafka's answer to a client that may not replicate.
            return TOPIC_AUTHORIZATION_FAILED
        tp = item.tp
        if tp is not None and not tp.is_dropped:
            return NONE
        if version >= TOPIC_IDS_FROM and item.topic == "":
            served = self.table.topic_by_id(item.topic_id)
            if served is None:
                return UNKNOWN_TOPIC_ID
            item.topic = served.name
        item.tp = self.table.find(item.topic, item.partition)
        return NONE if item.tp is not None else UNKNOWN_TOPIC_OR_PARTITION

    # ---- reading

    def _read(self, fetch: Fetch) -> ReadResult:
        result = ReadResult()
        if self.ranges is not None:
            self.ranges.clear()
        # All answers share the pool: none may take all of it, and if it is empty even the first batch has to wait.
        free = self.pool.free_bytes()
        bytes_left = min(fetch.max_bytes, free // POOL_SHARES)
        result.is_starved = free == 0
        needs_one = free > 0
        for item in fetch.items:
            data = self._read_partition(fetch, item, bytes_left, needs_one, result)
            records = data.records
            if records:
                size = self._size_of(records)
                result.bytes += size
                bytes_left = max(0, bytes_left - size)
                needs_one = False
            result.add(item, data)
        self.budget.charge_read(result.bytes, len(fetch.items))
        return result

    def _read_partition(
        self, fetch: Fetch, item: FetchItem, bytes_left: int, needs_one: bool, result: ReadResult
    ) -> PartitionData:
        tp = item.tp
        if tp is None or tp.is_dropped:
            result.is_urgent = True
            return read_error(item.partition, UNKNOWN_TOPIC_OR_PARTITION)
        error = check_item(item, tp)
        if error != NONE:
            result.is_urgent = True
            data = read_error(item.partition, error)
            if error == FENCED_LEADER_EPOCH and fetch.version >= LEADER_HINTS_FROM:
                data.current_leader = LeaderIdAndEpoch(self.config.node_id, tp.leader_epoch)
                result.names_leader = True
            return data
        log = tp.log
        high_watermark = log.durable_end
        stable_end = tp.last_stable_offset
        data = PartitionData(item.partition, NONE, high_watermark, stable_end, log.log_start_offset)
        is_committed = fetch.isolation_level == READ_COMMITTED
        if not is_committed:
            data.aborted_transactions = None
        end = stable_end if is_committed else high_watermark
        diverging = diverging_epoch(item, tp)
        if diverging is not None:
            result.is_urgent = True
            data.diverging_epoch = diverging
        elif item.offset < end:
            limit = max(0, min(item.max_bytes, bytes_left))
            if limit > 0 or needs_one:
                try:
                    # Aborted transactions are looked for in the records.
                    if self.ranges is not None and not (is_committed and log.has_aborted(item.offset)):
                        in_file = log.locate(item.offset, limit, end)
                        if in_file is not None:
                            data.records = self.ranges.add(in_file)
                            return data
                    data.records = log.read(item.offset, limit, end, needs_one)
                    if is_committed and data.records:
                        data.aborted_transactions = aborted_in(tp, item.offset, data.records)
                except LogDamaged as damage:
                    self.table.note_damage(tp, damage)
                    result.is_urgent = True
                    old = fetch.version < STORAGE_ERROR_FROM
                    return read_error(item.partition, NOT_LEADER_OR_FOLLOWER if old else KAFKA_STORAGE_ERROR)
        return data

    def _size_of(self, records: bytes) -> int:
        return len(records) if self.ranges is None else self.ranges.size_of(records)

    # ---- waiting

    def _park(self, fetch: Fetch, result: ReadResult, deadline_ms: int) -> None:
        self.last_token += 1
        token = self.last_token
        fetch.token = token
        fetch.bytes_available = result.bytes
        self.parked[token] = fetch
        if result.is_starved:
            self.starved[token] = True
        for i in range(len(result.items)):
            item = result.items[i]
            tp = item.tp
            if tp is None:
                continue
            records = result.data[i].records
            item.counted_bytes = self._size_of(records) if records is not None else 0
            item.counted_offset = max(item.offset, tp.readable_end(fetch.isolation_level))
            waiting = self.waiters.get(tp)
            if waiting is None:
                waiting = {}
                self.waiters[tp] = waiting
            waiting[token] = item
        tokens = self.by_connection.get(fetch.connection_id)
        if tokens is None:
            self.by_connection[fetch.connection_id] = [token]
        else:
            tokens.append(token)
        self.timers.append(Timer(TIMER_FETCH, "", "", token, deadline_ms))

    def _unpark(self, fetch: Fetch) -> None:
        self.parked.pop(fetch.token, None)
        self.due.pop(fetch.token, None)
        self.starved.pop(fetch.token, None)
        for item in fetch.items:
            tp = item.tp
            if tp is None:
                continue
            waiting = self.waiters.get(tp)
            if waiting is not None:
                waiting.pop(fetch.token, None)
                if not waiting:
                    del self.waiters[tp]
        tokens = self.by_connection.get(fetch.connection_id)
        if tokens is not None:
            tokens.remove(fetch.token)
            if not tokens:
                del self.by_connection[fetch.connection_id]

    def _has_enough(self, fetch: Fetch, item: FetchItem, tp: TopicPartition) -> bool:
        """Whether the fetch has its minimum, now that the high watermark of `tp` moved.

        The last stable offset only moves with the high watermark: a marker ends a transaction once it is durable.
        """
        end = tp.readable_end(fetch.isolation_level)
        start = item.counted_offset
        if end <= start:
            return False
        if fetch.min_bytes > 1:
            bytes_left = max(0, item.max_bytes - item.counted_bytes)
            if start >= tp.log.log_start_offset:
                # Only new bytes are counted, so that a fetch with a large minimum does not read everything again.
                try:
                    size = len(tp.log.read(start, bytes_left, end, False))
                    self.budget.charge_read(size, 1)
                except LogDamaged:
                    # The answer runs into the same error and reports it.
                    return True
                if size == 0:
                    # Not even one more batch fits: the partition has contributed all it can.
                    size = bytes_left
                item.counted_bytes += size
                fetch.bytes_available += size
            item.counted_offset = end
            return fetch.bytes_available >= fetch.min_bytes
        return True

    def _finish(self, fetch: Fetch, now: Now) -> Reply:
        self._unpark(fetch)
        return Reply(fetch.request_id, self._respond(fetch, self._read(fetch), now))

    # ---- answers

    def _respond(self, fetch: Fetch, result: ReadResult, now: Now) -> FetchResponse:
        for item, error in fetch.refused:
            result.add(item, error_data(item.partition, error))
        response = FetchResponse()
        if fetch.mode == FULL:
            response.session_id = self._open_session(fetch, result, now)
        session = fetch.session
        if session is not None:
            response.session_id = session.id
            if session.epoch != fetch.session_epoch:
                # Another request used the session meanwhile: one of the two is a retry.
                response.error_code = INVALID_FETCH_SESSION_EPOCH
                return response
            result = keep_changed(session, result)
        response.responses = group_by_topic(result.items, result.data)
        if result.names_leader:
            config = self.config
            response.node_endpoints = [NodeEndpoint(config.node_id, fetch.host, fetch.port, config.rack)]
        return response

    def _open_session(self, fetch: Fetch, result: ReadResult, now: Now) -> int:
        session_id = self.sessions.maybe_create(result.items, fetch.version >= TOPIC_IDS_FROM, now.mono_ms)
        if session_id != NO_SESSION:
            for i in range(len(result.items)):
                remember(result.items[i], result.data[i])
        return session_id


def new_item(name: str, topic_id: bytes, p: FetchPartition) -> FetchItem:
    return FetchItem(
        name,
        topic_id,
        p.partition,
        p.fetch_offset,
        p.partition_max_bytes,
        p.current_leader_epoch,
        p.last_fetched_epoch,
    )


def check_item(item: FetchItem, tp: TopicPartition) -> int:
    """The error code for the consumer's view of the partition (topic id and leader epoch)."""
    if item.topic_id != ZERO_UUID and item.topic_id != tp.topic_id:
        # The topic was deleted and created again under the same name.
        return INCONSISTENT_TOPIC_ID
    error = tp.check_leader_epoch(item.leader_epoch)
    if error != NONE:
        return error
    if item.offset < tp.log.log_start_offset:
        return OFFSET_OUT_OF_RANGE
    if item.last_fetched_epoch == NO_EPOCH:
        return OFFSET_OUT_OF_RANGE if item.offset > tp.log.end_offset else NONE
    # With an epoch, an offset beyond the end is a diverging history. An epoch that never existed is neither.
    return OFFSET_OUT_OF_RANGE if epoch_end(tp, item.last_fetched_epoch).offset < 0 else NONE


def aborted_in(tp: TopicPartition, offset: int, records: bytes) -> list[AbortedTransaction]:
    """The aborted transactions that a consumer has to know for `records`, read from `offset` on. Raises LogDamaged."""
    if not tp.log.has_aborted(offset):
        return []
    last = offset
    pos: i64 = 0
    size: i64 = len(records)
    while size - pos >= HEADER_BYTES:
        last = int(read_i64_be(records, pos)) + int(read_i32_be(records, pos + LAST_DELTA_AT))
        pos += i64(read_i32_be(records, pos + LENGTH_AT)) + LENGTH_OVERHEAD
    found = tp.log.aborted_transactions(offset, last)
    return [AbortedTransaction(one.producer_id, one.first_offset) for one in found]


def diverging_epoch(item: FetchItem, tp: TopicPartition) -> EpochEndOffset | None:
    """Where the consumer's history diverges from the log (KIP-595), if it names the epoch that it fetched last."""
    epoch = item.last_fetched_epoch
    if epoch == NO_EPOCH:
        return None
    end = epoch_end(tp, epoch)
    if end.epoch == epoch and item.offset <= end.offset:
        return None
    return EpochEndOffset(end.epoch, min(end.offset, tp.log.durable_end))


def remember(item: FetchItem, data: PartitionData) -> None:
    """Store the offsets of the answer in the session."""
    # After an error the next answer must include the partition again.
    item.high_watermark = data.high_watermark if data.error_code == NONE else -1
    item.log_start_offset = data.log_start_offset


def keep_changed(session: FetchSession, result: ReadResult) -> ReadResult:
    """The content of an incremental answer: partitions with records, errors or changed offsets."""
    kept = ReadResult()
    kept.names_leader = result.names_leader
    for i in range(len(result.items)):
        item = result.items[i]
        data = result.data[i]
        if data.records:
            # Move it to the end, so that the other partitions get their turn.
            key = item.key()
            if session.partitions.pop(key, None) is not None:
                session.partitions[key] = item
        elif (
            data.error_code == NONE
            and data.high_watermark == item.high_watermark
            and data.log_start_offset == item.log_start_offset
            and data.diverging_epoch.end_offset < 0
        ):
            continue
        remember(item, data)
        kept.add(item, data)
    return kept
