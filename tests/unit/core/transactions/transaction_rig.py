"""Drives the core's transaction coordinator without an engine: logs are lists, and commits are made by hand."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import Any

from kcoord.core.config import CoreConfig
from kcoord.core.coordinator import Core
from kcoord.core.dispatch import handle_request
from kcoord.core.outcome import (
    METADATA_TOPIC,
    TRANSACTION_TOPIC,
    CoordinatorRecord,
    Event,
    Fact,
    LogId,
    Marker,
    Now,
    Outcome,
    Reply,
    Request,
    Timer,
    TimerFired,
)
from kcoord.core.transactions.state import Transaction
from kcoord.log.serde import decode_transaction_record, encode_record
from kcoord.protocol import apis, errors
from kcoord.protocol.add_offsets_to_txn import AddOffsetsToTxnRequest
from kcoord.protocol.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.find_coordinator import FindCoordinatorRequest
from kcoord.protocol.init_producer_id import GroupAssignment, InitProducerIdRequest
from kcoord.protocol.records.transaction_group_assignment import TransactionGroupAssignmentKey
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, Reader

START_MS = 1_700_000_000_000
# A record of a coordinator log, or a marker, in the commit that stores it.
Item = tuple[LogId, CoordinatorRecord] | Marker


class Rig:
    """`commit` makes everything durable that came before; `ask` does so until the answer is there."""

    def __init__(self, topics: dict[str, int] | None = None, find: bool = True, **settings: Any) -> None:
        self.config = CoreConfig()
        self.config.cluster_id = "a-cluster-id-of-22-chr"
        for name, value in settings.items():
            assert hasattr(self.config, name), name
            setattr(self.config, name, value)
        self.mono_ms = 1000
        self.wall_ms = START_MS
        self.last_request = 0
        self.commits: list[list[Item]] = [[]]
        self.open()
        self.commit()
        for name, count in (topics or {"t": 3}).items():
            self.ask(apis.CREATE_TOPICS, 7, CreateTopicsRequest([CreatableTopic(name, count, 1)], 1000))
        if find:
            self.ask(apis.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=1, coordinator_keys=["x"]))

    # --- the engine's part -----------------------------------------------------------------------------------

    def open(self, commits: list[list[Item]] | None = None) -> None:
        """Start over with what some commits have stored, all of them by default."""
        if commits is not None:
            self.commits = [list(commit) for commit in commits]
        if self.commits[-1]:
            self.commits.append([])
        self.core = Core(self.config)
        self.ends: dict[str, int] = {}
        self.answers: dict[int, Message | None] = {}
        self.held: list[Reply] = []
        self.parked: set[int] = set()
        self.once_durable: deque[Event] = deque()
        self.timers: list[tuple[int, int, Timer]] = []
        self.armed = 0
        self.facts: list[Fact] = []
        items = [item for commit in self.commits for item in commit]
        for metadata in (True, False):
            for item in items:
                if not isinstance(item, Marker) and (item[0].topic == METADATA_TOPIC) == metadata:
                    self.replay(item[0], item[1])
            if metadata:
                self.apply(self.core.loaded_topics(self.entropy()))
        self.apply(self.core.loaded(self.now()))

    def now(self) -> Now:
        return Now(self.mono_ms, self.wall_ms)

    def entropy(self) -> bytes:
        self.last_request += 1
        return self.last_request.to_bytes(4, "big") * 4

    def replay(self, log: LogId, record: CoordinatorRecord) -> None:
        offset = self.ends.get(repr(log), 0)
        self.ends[repr(log)] = offset + 1
        value = record.value
        if isinstance(record.key, (TransactionLogKey, TransactionGroupAssignmentKey)):
            # The bytes must have all that counts.
            value = decode_transaction_record(*encode_record(record.key, value))[1]
            log = next(own for own in self.core.transactions.logs() if repr(own) == repr(log))
        self.core.replay(log, offset, record.key, value, self.wall_ms)

    def apply(self, out: Outcome) -> None:
        events: deque[Event] = deque()
        while True:
            for record in out.records:
                assert out.log is not None
                assert out.log.topic == METADATA_TOPIC or out.log in self.core.transactions.logs()
                self.replay(out.log, record)
                self.commits[-1].append((out.log, record))
            self.commits[-1].extend(out.markers or [])
            self.once_durable.extend(out.once_durable or [])
            for reply in out.replies:
                if out.records or self.is_open(reply):
                    self.held.append(reply)
                else:
                    self.answers[reply.request_id] = reply.response
            for timer in out.timers:
                self.armed += 1
                heapq.heappush(self.timers, (timer.deadline_ms, self.armed, timer))
            self.facts.extend(out.facts)
            events.extendleft(reversed(out.follow_ups))
            if not events:
                break
            out = self.core.handle(events.popleft(), self.now())

    def is_open(self, reply: Reply) -> bool:
        """Whether what a reply waits for is not durable yet."""
        if reply.wait_log is None:
            return False
        name = repr(reply.wait_log)
        pending = sum(not isinstance(item, Marker) and repr(item[0]) == name for item in self.commits[-1])
        return reply.wait_offset > self.ends[name] - pending

    def commit(self) -> None:
        """Everything so far is durable. What waited for that is handled."""
        self.commits.append([])
        for reply in self.held:
            self.answers[reply.request_id] = reply.response
        self.held = []
        events = list(self.once_durable)
        self.once_durable.clear()
        for event in events:
            self.apply(self.core.handle(event, self.now()))

    def settle(self) -> None:
        """Commit until nothing is left to do."""
        while self.commits[-1] or self.once_durable or self.held:
            self.commit()

    def advance(self, ms: int) -> None:
        """Let time pass, and fire the timers that are due."""
        end_ms = self.mono_ms + ms
        while self.timers and self.timers[0][0] <= end_ms:
            deadline_ms, _, timer = heapq.heappop(self.timers)
            self.wall_ms += max(deadline_ms - self.mono_ms, 0)
            self.mono_ms = max(deadline_ms, self.mono_ms)
            self.apply(self.core.handle(TimerFired(timer), self.now()))
        self.wall_ms += end_ms - self.mono_ms
        self.mono_ms = end_ms

    # --- a client's part -------------------------------------------------------------------------------------

    def send(self, api_key: int, version: int, body: Message, connection: int = 1) -> int:
        """Send a request; its number."""
        entropy = self.entropy()
        number = self.last_request
        request = Request(number, connection, api_key, version, "app", "10.0.0.1", body, entropy, "127.0.0.1", 9092)
        self.apply(handle_request(self.core, request, self.now()))
        return number

    def ask(self, api_key: int, version: int, body: Message, connection: int = 1) -> Any:
        """The answer as a client of that version reads it, with everything durable that it needs."""
        number = self.send(api_key, version, body, connection)
        while number not in self.answers:
            assert self.commits[-1] or self.once_durable, "nothing leads to an answer"
            self.commit()
        response = self.answers[number]
        assert response is not None
        w = BytesWriter()
        apis.encode_response(w, api_key, response, version)
        return apis.decode_response(api_key, Reader(w.getvalue()), version)

    def init(
        self,
        name: str | None = "x",
        producer: tuple[int, int] = (-1, -1),
        version: int = 5,
        timeout_ms: int = 60000,
        assignment: GroupAssignment | None = None,
    ) -> tuple[int, int, int]:
        """Error, producer id and epoch."""
        body = InitProducerIdRequest(name, timeout_ms, *producer, assignment)
        answer = self.ask(apis.INIT_PRODUCER_ID, version, body)
        return answer.error_code, answer.producer_id, answer.producer_epoch

    def begin(self, name: str = "x", timeout_ms: int = 60000) -> tuple[int, int]:
        """A producer: its id and epoch."""
        error, producer_id, epoch = self.init(name, timeout_ms=timeout_ms)
        assert error == errors.NONE
        return producer_id, epoch

    def add(
        self,
        producer: tuple[int, int],
        *partitions: tuple[str, int],
        name: str = "x",
        version: int = 3,
        connection: int = 1,
    ) -> int:
        """The error of the first partition."""
        topics = [AddPartitionsToTxnTopic(topic, [partition]) for topic, partition in partitions]
        body = AddPartitionsToTxnRequest([], name, *producer, topics)
        answer = self.ask(apis.ADD_PARTITIONS_TO_TXN, version, body, connection)
        error: int = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        return error

    def add_offsets(self, producer: tuple[int, int], group: str = "g", name: str = "x", version: int = 3) -> int:
        body = AddOffsetsToTxnRequest(name, *producer, group)
        error: int = self.ask(apis.ADD_OFFSETS_TO_TXN, version, body).error_code
        return error

    def write(self, producer: tuple[int, int], *partitions: tuple[str, int], name: str = "x") -> int:
        """A write of version 2, which adds its partitions."""
        out, error = self.core.transaction_partitions.handle_implicit_add(name, *producer, list(partitions), self.now())
        self.apply(out)
        return error

    def end(
        self, producer: tuple[int, int], commit: bool = True, name: str = "x", version: int = 3, connection: int = 1
    ) -> tuple[int, int, int]:
        """Error, producer id and epoch. Ends with the whole chain done."""
        answer = self.ask(apis.END_TXN, version, EndTxnRequest(name, *producer, commit), connection)
        return answer.error_code, answer.producer_id, answer.producer_epoch

    # --- what is stored --------------------------------------------------------------------------------------

    def txn(self, name: str = "x") -> Transaction:
        return self.core.transactions.by_id[name]

    def records(self, name: str = "x") -> list[CoordinatorRecord]:
        """The records of a transactional id."""
        found = []
        for item in itertools.chain.from_iterable(self.commits):
            if not isinstance(item, Marker) and item[0].topic == TRANSACTION_TOPIC:
                key = item[1].key
                if isinstance(key, TransactionLogKey) and key.transactional_id == name:
                    found.append(item[1])
        return found

    def last(self, name: str = "x") -> TransactionLogValue:
        value = self.records(name)[-1].value
        assert isinstance(value, TransactionLogValue)
        return value

    def states(self, name: str = "x") -> list[int]:
        values = [record.value for record in self.records(name)]
        return [value.transaction_status for value in values if isinstance(value, TransactionLogValue)]

    def markers(self) -> list[tuple[str, int, int, int, bool]]:
        """Topic, partition, producer id, epoch and result of all markers."""
        return [
            (item.topic, item.partition, item.producer_id, item.producer_epoch, item.is_commit)
            for item in itertools.chain.from_iterable(self.commits)
            if isinstance(item, Marker)
        ]

    def check_replay(self) -> None:
        """A core that only replays the records has the same state."""
        digest = self.core.digest()
        fresh = Rig.__new__(Rig)
        fresh.config = self.config
        fresh.mono_ms, fresh.wall_ms, fresh.last_request = self.mono_ms, self.wall_ms, self.last_request
        fresh.open(self.commits)
        assert fresh.core.digest() == digest
