"""Drives a whole engine with scripted events under a virtual clock and says what it did: the scenarios of transactions.

Commands, besides the requests of `requests.py`, `consumer_requests.py` and `transaction_requests.py`:

    config name=value ...         settings of the core, before anything else
    topic NAME [partitions=N]     a new topic
    advance 10s                   time passes, and timers fire
    read t:0                      what a consumer reads from the beginning, by default `isolation=committed`
    disconnect client=NAME        a connection ends; its client goes on with a new one
    waiting                       requests that were not answered yet
    spend txn=x epoch=32765       the producer has come to this epoch in earlier years
    restart [crash=yes]           a clean stop and a start, or a power cut and a start; `down=1m` lies in between

A client has one connection, and with `connection=NAME` in a request or in `disconnect` further ones.

Records are shown as they stand in the logs, with the producer and its epoch where they belong to a transaction.

After every command a second engine starts from what a power cut would leave at that moment. It must have the same hard
state, the same last stable offsets and the same ends of its logs. `restart` goes on with such an engine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from kcoord.core.config import CoreConfig
from kcoord.core.groups.cause_header import decode_cause
from kcoord.core.outcome import METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTION_TOPIC, Now, Outcome
from kcoord.engine.engine import Engine
from kcoord.engine.session import Session
from kcoord.log.partition_log import PartitionLog
from kcoord.log.serde import decode_record, decode_transaction_record
from kcoord.log.transaction_index import marker_type
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kcoord.protocol.find_coordinator import FindCoordinatorRequest
from kcoord.protocol.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue
from kcoord.testing.state.disk import ForgetfulStorage
from kcoord.wire.message import Message
from kcoord.wire.record_batch import BatchHeader, Record, decode_records, parse_header
from tests.harness.engine import (
    Client,
    decode_answer,
    finish_turn,
    open_engine,
    read_answers,
    request_frame,
    run_jobs,
    take_output,
)
from tests.harness.log import batches_of
from tests.harness.record_batches import parse_batches
from tests.scenarios.actor import Actor
from tests.scenarios.printing import START_WALL_MS, Printer, duration, milliseconds
from tests.scenarios.requests import REQUESTS
from tests.scenarios.script import Command, parse_command
from tests.scenarios.transaction_requests import TRANSACTION_REQUESTS, VERSIONS

RECORD_BYTES_MAX: Final = 1 << 20
COMMITTED: Final = 1
LATEST: Final = -1
COORDINATOR_TOPICS: Final = (OFFSETS_TOPIC, TRANSACTION_TOPIC)
KEY_TYPES: Final = (0, 1)
TOPIC_IDS_FROM: Final = 7
NO_PRODUCER: Final = -1
# By their numbers in the records.
STATES: Final = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence",
)  # fmt: skip


class Waiting:
    """A request that was not answered yet."""

    def __init__(self, actor: Actor, connection: str, api_key: int, version: int) -> None:
        self.actor = actor
        self.connection = connection
        self.api_key = api_key
        self.version = version


class EngineScenario:
    def __init__(self) -> None:
        self.config = CoreConfig()
        self.config.group_events_enable = False
        self.mono_ms = 0
        self.printer = Printer()
        self.actors: dict[str, Actor] = {}
        self.storage = ForgetfulStorage()
        self.sessions: dict[str, Session] = {}
        self.waiting: dict[int, Waiting] = {}
        self.requests = 0
        # How far each log was shown.
        self.shown: dict[str, int] = {}
        self.lines: list[str] = []
        self._engine: Engine | None = None
        self._commands: dict[str, Callable[[Command], None]] = {
            "config": self._configure,
            "topic": self._create_topic,
            "advance": self._advance,
            "read": self._read,
            "disconnect": self._disconnect,
            "waiting": self._show_waiting,
            "spend": self._spend,
            "restart": self._restart,
        }

    # --- commands --------------------------------------------------------------------------------------------

    def run(self, line: str) -> list[str]:
        """Run one command and return what happened, one line each."""
        command = parse_command(line)
        self.lines = []
        if command.name in self._commands:
            self._commands[command.name](command)
        elif command.name in REQUESTS or command.name in TRANSACTION_REQUESTS:
            self._request(command)
        else:
            raise ValueError(f"no such command: {command.name}")
        command.done()
        if command.name != "config":
            self.lines += self.disagreements()
        return self.lines or ["ok"]

    def _configure(self, command: Command) -> None:
        assert self._engine is None, "settings come before anything else"
        for name in list(command.options):
            text = command.text(name)
            if isinstance(getattr(self.config, name), int):
                setattr(self.config, name, int(text) if text.lstrip("-").isdigit() else milliseconds(text))
            else:
                setattr(self.config, name, text)

    def _create_topic(self, command: Command) -> None:
        name = command.words[0]
        body = CreateTopicsRequest([CreatableTopic(name, command.number("partitions", 1), 1)])
        answer = Client(self.engine).ask(apis.CREATE_TOPICS, TOPIC_IDS_FROM, body, self.now())
        assert answer.topics[0].error_code == 0, answer.topics[0].error_code
        self.printer.add_topic(name, answer.topics[0].topic_id)
        self.engine.take_facts()

    def _advance(self, command: Command) -> None:
        """Move time on, from one deadline to the next."""
        by_ms = milliseconds(command.words[0])
        engine = self.engine
        start_ms, end_ms = self.mono_ms, self.mono_ms + by_ms
        while engine.next_deadline_ms() <= end_ms:
            self.mono_ms = max(self.mono_ms, engine.next_deadline_ms())
            before = len(self.lines)
            engine.fire_timers(self.now())
            self._settle()
            if len(self.lines) > before:
                self.lines.insert(before, f"at +{duration(self.mono_ms - start_ms)}:")
        self.mono_ms = end_ms

    def _disconnect(self, command: Command) -> None:
        name = command.text("connection", command.text("client"))
        session = self.sessions.pop(name, None)
        if session is not None:
            self.engine.close_session(session, self.now())
        self.waiting = {key: waiting for key, waiting in self.waiting.items() if waiting.connection != name}
        self._settle()

    def _show_waiting(self, command: Command) -> None:
        self.lines += [f"waiting {w.actor.name}: {apis.APIS[w.api_key].name}" for w in self.waiting.values()]

    def _spend(self, command: Command) -> None:
        """A record of the producer with another epoch, as many starts of it would leave."""
        transactional_id = command.text("txn")
        txn = self.engine.core.transactions.by_id[transactional_id]
        epoch = command.number("epoch", txn.producer_epoch)
        now_ms = self.now().wall_ms
        value = TransactionLogValue(txn.producer_id, -1, -1, epoch, -1, txn.timeout_ms, txn.status, None, now_ms, -1, 0)
        outcome = Outcome()
        outcome.add(txn.log, TransactionLogKey(transactional_id), value)
        self.engine.applier.apply(outcome, self.now())
        self._settle()
        for actor in self.actors.values():
            if actor.transactional_id == transactional_id:
                actor.producer = (txn.producer_id, epoch)

    def _restart(self, command: Command) -> None:
        engine = self.engine
        if not command.flag("crash"):
            engine.stop()
        self.mono_ms += milliseconds(command.text("down", "0s"))
        self.waiting.clear()
        self.sessions.clear()
        self.storage = self.storage.crash()
        self._engine = open_engine(self.storage, self.now(), random.Random(7), config=self.config)
        self._settle()

    def _request(self, command: Command) -> None:
        actor = self._actor(command.text("client", "cli"))
        if "tv" in command.options:
            actor.transaction_version = command.number("tv", 2)
        api_key, build = TRANSACTION_REQUESTS.get(command.name) or REQUESTS[command.name]
        default = apis.APIS[api_key].max_version
        if api_key in VERSIONS:
            default = VERSIONS[api_key][actor.transaction_version - 1]
        version = command.number("version", default)
        body = build(command, actor, version, self.printer, self.actors)
        client_id = command.text("client_id", actor.name)
        connection = command.text("connection", actor.name)
        command.done()
        self.requests += 1
        self.waiting[self.requests] = Waiting(actor, connection, api_key, version)
        session = self._session(connection)
        self.engine.receive(session, request_frame(api_key, version, body, self.requests, client_id), self.now())
        self._settle()

    def _read(self, command: Command) -> None:
        """A consumer without a position reads the partition to its end."""
        isolation = command.text("isolation", "committed")
        level = ("uncommitted", "committed").index(isolation)
        for word in command.words:
            topic, _, index = word.rpartition(":")
            values = " ".join(self._values(topic, int(index), level)) or "nothing"
            stable = self._latest(topic, int(index), COMMITTED)
            end = self._latest(topic, int(index), 0)
            self.lines.append(f"{topic}-{index}: {values}; last stable offset {stable}, high watermark {end}")

    def _values(self, topic: str, index: int, level: int) -> list[str]:
        values: list[str] = []
        offset = 0
        while True:
            ask_for = [FetchPartition(index, fetch_offset=offset, partition_max_bytes=RECORD_BYTES_MAX)]
            topics = [FetchTopic(topic, partitions=ask_for)]
            body = FetchRequest(max_wait_ms=0, isolation_level=level, topics=topics)
            data = Client(self.engine).ask(apis.FETCH, 11, body, self.now()).responses[0].partitions[0]
            assert data.error_code == 0, data.error_code
            end = returned_values(data, offset, values)
            if end == offset:
                return values
            offset = end

    def _latest(self, topic: str, index: int, level: int) -> int:
        topics = [ListOffsetsTopic(topic, [ListOffsetsPartition(index, timestamp=LATEST)])]
        body = ListOffsetsRequest(-1, level, topics)
        answer = Client(self.engine).ask(apis.LIST_OFFSETS, 6, body, self.now())
        partition = answer.topics[0].partitions[0]
        assert partition.error_code == 0, partition.error_code
        offset: int = partition.offset
        return offset

    # --- the server's part -----------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            self._engine = open_engine(self.storage, self.now(), random.Random(7), config=self.config)
            client = Client(self._engine)
            for key_type in KEY_TYPES:
                client.ask(apis.FIND_COORDINATOR, 2, FindCoordinatorRequest("x", key_type), self.now())
            self._engine.take_facts()
        return self._engine

    def now(self) -> Now:
        return Now(self.mono_ms, START_WALL_MS + self.mono_ms)

    def _actor(self, name: str) -> Actor:
        if name not in self.actors:
            self.actors[name] = Actor(name, len(self.actors) + 1)
        return self.actors[name]

    def _session(self, name: str) -> Session:
        if name not in self.sessions:
            self.sessions[name] = self.engine.open_session("127.0.0.1", "127.0.0.1", 9092)
        return self.sessions[name]

    def _settle(self) -> None:
        """End the turn, with jobs and timers that are due, and show what is new: records, answers, facts."""
        finish_turn(self.engine, self.now())
        run_jobs(self.engine, self.now())
        while self.engine.next_deadline_ms() <= self.mono_ms:
            self.engine.fire_timers(self.now())
            finish_turn(self.engine, self.now())
        self._show_records()
        for session in self.sessions.values():
            assert not session.close_reason, session.close_reason
            for correlation_id, rest in read_answers(take_output(session)):
                waiting = self.waiting.pop(correlation_id)
                response: Message = decode_answer(waiting.api_key, waiting.version, rest)
                self.lines.append(self.printer.reply(waiting.actor.name, response))
                waiting.actor.learn(response)
        self.lines += [self.printer.fact(fact) for fact in self.engine.take_facts()]

    def _show_records(self) -> None:
        for name, log in sorted(logs_of(self.engine).items()):
            for position, data in batches_of(log, self.shown.get(name, 0), log.end_offset):
                self._show_batch(name, log.topic, data, parse_header(data, position))
            self.shown[name] = log.end_offset

    def _show_batch(self, name: str, topic: str, data: bytes, header: BatchHeader) -> None:
        producer = f" producer={header.producer_id}/{header.producer_epoch}" if header.is_transactional else ""
        if header.is_control:
            kind = "commit" if marker_type(data, header) == COMMITTED else "abort"
            self.lines.append(f"marker {name}@{header.base_offset} {kind}{producer}")
            return
        for record in decode_records(data, header.pos, header, RECORD_BYTES_MAX):
            if topic in COORDINATOR_TOPICS:
                self.lines.append(self._typed(f"{name}@{record.offset}", topic, record) + producer)
            else:
                value = (record.value or b"").decode()
                self.lines.append(f"record {name}@{record.offset} {value}{producer}")

    def _typed(self, place: str, topic: str, record: Record) -> str:
        decode = decode_transaction_record if topic == TRANSACTION_TOPIC else decode_record
        key, value = decode(record.key or b"", record.value)
        if isinstance(key, TransactionLogKey) and isinstance(value, TransactionLogValue):
            return " ".join([f"record {place} {key.transactional_id}", *transaction_fields(value),
                             *self.printer.cause(decode_cause(record.headers))])  # fmt: skip
        return self.printer.record(place, key, value, decode_cause(record.headers))

    def ends(self) -> dict[str, tuple[int, int]]:
        """The last stable offset and the end of every partition."""
        return ends_of(self.engine)

    # --- checks ----------------------------------------------------------------------------------------------

    def disagreements(self) -> list[str]:
        """How an engine that starts after a power cut at this moment differs."""
        engine = self.engine
        other = open_engine(self.storage.crash(), self.now(), random.Random(7), config=self.config)
        problems = []
        if other.core.digest() != engine.core.digest():
            problems.append("DIGEST differs after a power cut")
        here, there = ends_of(engine), ends_of(other)
        for name in sorted(here.keys() | there.keys()):
            if here.get(name) != there.get(name):
                problems.append(f"OFFSETS of {name}: {here.get(name)}, after a power cut {there.get(name)}")
        return problems


def logs_of(engine: Engine) -> dict[str, PartitionLog]:
    return {log.name: log for log in engine.directory if log.topic != METADATA_TOPIC}


def ends_of(engine: Engine) -> dict[str, tuple[int, int]]:
    ends: dict[str, tuple[int, int]] = {}
    for name, log in logs_of(engine).items():
        tp = engine.data_plane.table.find(log.topic, log.partition)
        if tp is not None:
            ends[name] = (tp.last_stable_offset, log.end_offset)
    return ends


def transaction_fields(value: TransactionLogValue) -> list[str]:
    """A transaction as its record describes it; fields that have their usual value are left out."""
    parts = [STATES[value.transaction_status], f"producer={value.producer_id}/{value.producer_epoch}"]
    if value.previous_producer_id not in (NO_PRODUCER, value.producer_id):
        parts.append(f"previous={value.previous_producer_id}")
    if value.next_producer_id != NO_PRODUCER:
        parts.append(f"next={value.next_producer_id}/{value.next_producer_epoch}")
    parts.append(f"timeout={duration(value.transaction_timeout_ms)}")
    parts.append(f"version={value.client_transaction_version}")
    if value.transaction_start_timestamp_ms >= START_WALL_MS:
        parts.append(f"since=t+{duration(value.transaction_start_timestamp_ms - START_WALL_MS)}")
    for topic in value.transaction_partitions or []:
        parts += [f"{topic.topic}-{index}" for index in topic.partition_ids]
    return parts


def returned_values(data: Any, offset: int, values: list[str]) -> int:
    """Add what a client returns to its caller from one answer, and say where it goes on."""
    aborted = sorted((one.first_offset, one.producer_id) for one in data.aborted_transactions or [])
    skipped: set[int] = set()
    records = data.records or b""
    for header in parse_batches(records):
        while aborted and aborted[0][0] <= header.last_offset:
            skipped.add(aborted.pop(0)[1])
        if header.is_control:
            skipped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipped):
            for record in decode_records(records, header.pos, header, RECORD_BYTES_MAX):
                if record.offset >= offset:
                    values.append((record.value or b"").decode())
        offset = max(offset, header.last_offset + 1)
    return offset
