"""The reference workload of the crash tests: a whole engine, its clients, and an account of what they were told.

It does a little of everything that touches files: topics created and deleted, records of several per batch, commits
of two partitions at once, producer ids, DeleteRecords, segments that roll, durable marks, snapshots of the metadata
log that shorten it, a clean stop and a start after it. Commits overlap with new requests, and their files are synced
one by one, as on a real server.

What clients sent and were told is a list of events that only grows, so "what was promised by then" is its length.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.log.directory import open_directory
from kcoord.log.errors import SyncFailed
from kcoord.log.journal import SYNC_ALWAYS, CommitTicket, Journal, sync_one
from kcoord.log.log_config import LogConfig
from kcoord.log.storage import Storage
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kcoord.protocol.delete_topics import DeleteTopicsRequest
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.server.listen.limits import frame_limits
from kcoord.server.settings.load import load as load_config
from kcoord.wire.record_batch import BatchBuilder
from tests.harness.engine import CLUSTER_ID, Client, decode_answer, read_answers, take_output
from tests.harness.log import checkpoint
from tests.harness.metadata import shorten, write_at_end

VERSIONS = {
    apis.CREATE_TOPICS: 7,
    apis.DELETE_TOPICS: 5,
    apis.DELETE_RECORDS: 1,
    apis.PRODUCE: 9,
    apis.OFFSET_COMMIT: 8,
    apis.INIT_PRODUCER_ID: 2,
}
WALL_MS = 1_700_000_000_000
SEGMENT_BYTES = 700
# Of at most a fourth, a write makes a log preallocate.
PREALLOCATED_BYTES = 800
PARTITIONS = 2
KEEPS_ALL = 1 << 20
LIMITS = frame_limits(load_config().server)


class Event(NamedTuple):
    """Something a client did (`sent`) or was told. `what` identifies the request in both."""

    kind: str
    is_sent: bool
    what: tuple[Any, ...]
    answer: Any = None


def open_small(storage: Storage, now: Now, rng: random.Random) -> Engine:
    """An engine over `storage` as tests/harness opens it, with segments of a few batches."""
    directory = open_directory(storage, 1, CLUSTER_ID, CLUSTER_ID, config=LogConfig(segment_bytes=SEGMENT_BYTES))
    config = CoreConfig()
    config.cluster_id = CLUSTER_ID
    engine = Engine(config, directory, Journal(directory, SYNC_ALWAYS), rng.randbytes, LIMITS)
    engine.outbox.strict = True
    engine.load(now)
    return engine


class Reference:
    """Runs the workload on a storage. The same seed does the same things.

    A `busy` one has commits that overlap with new requests, and preallocates its logs. The other waits for every
    answer.
    """

    def __init__(
        self, storage: Storage, seed: int = 1, busy: bool = True, sync: Callable[[Any], None] = sync_one
    ) -> None:
        self.storage = storage
        self.busy = busy
        self.rng = random.Random(seed)
        self.sync = sync
        self.events: list[Event] = []
        self.mono_ms = 0
        self.number = 0
        self.rounds: dict[str, int] = {}
        self.ticket: CommitTicket | None = None
        self.engine: Engine
        self.clients: list[Client]
        self.waiting: dict[tuple[int, int], tuple[int, Event]] = {}

    def now(self) -> Now:
        return Now(self.mono_ms, WALL_MS + self.mono_ms)

    # --- the story

    def run(self) -> None:
        self.start()
        self.create("a")
        self.create("b")
        self.drain()
        self.traffic(4)
        self.mark()
        self.new_producer()
        self.traffic(3)
        self.delete("b")
        self.traffic(2)
        self.shorten_metadata(KEEPS_ALL)
        self.create("b")
        self.drain()
        self.delete_records("a", 0, 3)
        self.delete_records("a", 1, 2)
        self.shorten_metadata(0)
        self.trim()
        self.traffic(3)
        self.stop()
        self.start()
        self.traffic(3)
        self.delete_records("a", 1, 7)
        self.traffic(1)
        self.trim()
        self.mark()
        self.new_producer()
        self.shorten_metadata(0)
        self.delete("b")
        self.traffic(2)

    def start(self) -> None:
        self.engine = open_small(self.storage, self.now(), self.rng)
        self.clients = [Client(self.engine) for _ in range(2)]
        self.ticket = None
        self.waiting = {}
        self.turn()
        self.drain()

    def stop(self) -> None:
        self.drain()
        self.engine.stop()
        self.events.append(Event("stop", False, ()))

    def mark(self) -> None:
        checkpoint(self.engine.journal, self.mono_ms)

    def shorten_metadata(self, retention_bytes: int) -> None:
        """As a server does it: what fails before a file goes costs it a line in its log, and no more."""
        metadata = self.engine.metadata
        assert metadata is not None
        self.engine.journal.roll(metadata.log)
        self.drain()
        try:
            write_at_end(self.engine, self.now())
            shorten(self.engine, self.now(), retention_bytes=retention_bytes)
        except OSError as error:
            metadata.failed(str(error))

    def trim(self) -> None:
        """As a server does it: what cannot be removed now stays until a later start."""
        try:
            for segment in self.engine.data_plane.delete_records.take_waste(""):
                segment.remove()
        except OSError:
            return

    def traffic(self, turns: int) -> None:
        for _ in range(turns):
            for client in self.clients:
                for topic in self.served():
                    self.produce(client, topic, self.rng.randrange(PARTITIONS))
                    self.settle()
                self.commit(client, f"group-{self.rng.randrange(2)}")
                self.settle()
            self.turn()
        self.drain()

    def settle(self) -> None:
        if not self.busy:
            self.drain()

    def served(self) -> list[str]:
        return [name for name in ("a", "b") if self.rounds.get(name, 0) > 0]

    # --- requests

    def send(self, client: Client, api_key: int, request: Any, event: Event) -> None:
        self.events.append(event)
        correlation_id = client.send(api_key, VERSIONS[api_key], request, self.now())
        self.waiting[client.session.id, correlation_id] = (api_key, event)

    def create(self, name: str) -> None:
        # Positive while the topic may be produced to; the instances of a name are numbered by it.
        self.rounds[name] = abs(self.rounds.get(name, 0)) + 1
        request = CreateTopicsRequest([CreatableTopic(name, PARTITIONS, 1)])
        event = Event("create", True, (name, self.rounds[name]))
        self.send(self.clients[0], apis.CREATE_TOPICS, request, event)

    def delete(self, name: str) -> None:
        round_ = self.rounds[name]
        self.rounds[name] = -round_
        request = DeleteTopicsRequest(topic_names=[name])
        self.send(self.clients[0], apis.DELETE_TOPICS, request, Event("delete", True, (name, round_)))

    def produce(self, client: Client, topic: str, partition: int) -> None:
        builder = BatchBuilder()
        values = []
        for _ in range(self.rng.choice((1, 3))):
            self.number += 1
            values.append(b"%s-%d " % (topic.encode(), self.number) + b"x" * self.rng.choice((5, 60, 300)))
            builder.append(WALL_MS, b"k", values[-1])
        data = PartitionProduceData(partition, builder.build(0, -1))
        request = ProduceRequest(None, -1, 1000, [TopicProduceData(topic, partition_data=[data])])
        event = Event("produce", True, (topic, self.rounds[topic], partition, tuple(values)))
        self.send(client, apis.PRODUCE, request, event)

    def commit(self, client: Client, group: str) -> None:
        self.number += 1
        partitions = [OffsetCommitRequestPartition(partition, self.number, -1, "") for partition in range(PARTITIONS)]
        topics = [OffsetCommitRequestTopic("a", bytes(16), partitions)]
        request = OffsetCommitRequest(group, -1, "", None, -1, topics)
        self.send(client, apis.OFFSET_COMMIT, request, Event("commit", True, (group, self.number)))

    def delete_records(self, topic: str, partition: int, offset: int) -> None:
        request = DeleteRecordsRequest([DeleteRecordsTopic(topic, [DeleteRecordsPartition(partition, offset)])], 1000)
        event = Event("delete_records", True, (topic, partition, offset))
        self.send(self.clients[0], apis.DELETE_RECORDS, request, event)

    def new_producer(self) -> None:
        request = InitProducerIdRequest(None, 1000)
        self.send(self.clients[1], apis.INIT_PRODUCER_ID, request, Event("producer", True, ()))

    # --- turns

    def turn(self) -> None:
        """End a turn; of a commit on its way one file is synced."""
        self.mono_ms += 1
        for log in self.engine.directory:
            log.config.segment_bytes = SEGMENT_BYTES
            log.config.preallocated_bytes = PREALLOCATED_BYTES if self.busy else 0
        ticket = self.engine.end_turn(self.now())
        if ticket is not None:
            self.ticket = ticket
        self.collect()
        if self.ticket is not None:
            if self.ticket.syncs:
                try:
                    self.sync(self.ticket.syncs.pop(self.rng.randrange(len(self.ticket.syncs))))
                except SyncFailed as error:
                    self.engine.journal.fail(error)
                    raise
            if not self.ticket.syncs:
                done, self.ticket = self.ticket, None
                self.engine.commit_done(done, self.now())
        self.collect()

    def drain(self) -> None:
        while self.ticket is not None or self.engine.has_unwritten():
            self.turn()

    def collect(self) -> None:
        """Take the answers: from here on the server has promised."""
        for session in self.engine.take_ready():
            assert not session.close_reason, session.close_reason
            for correlation_id, rest in read_answers(take_output(session)):
                api_key, event = self.waiting.pop((session.id, correlation_id))
                answer = decode_answer(api_key, VERSIONS[api_key], rest)
                self.events.append(Event(event.kind, False, event.what, answer))
