"""Power cuts: what was acknowledged under log.sync = always is there after everything unsynced is gone.

A kill leaves the page cache, so only a storage that forgets can show that answers wait for the disk. The same workload
with the sync left out must lose something, or this test would prove nothing.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.log.journal import CommitTicket, sync_one
from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersionsRequest
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.testing.state.disk import ForgetfulStorage
from kcoord.wire.record_batch import BatchBuilder, decode_records
from tests.harness.engine import Client, decode_answer, open_engine, read_answers, take_output
from tests.harness.record_batches import parse_batches

PARTITIONS = 3
GROUPS = 4
COMMIT_VERSION = 8
PRODUCE_VERSION = 9


class Workload:
    """Clients that produce and commit, and an account of what the server told them."""

    def __init__(self, seed: int, does_sync: bool = True) -> None:
        self.rng = random.Random(seed)
        self.does_sync = does_sync
        self.storage = ForgetfulStorage()
        self.mono_ms = 0
        self.topics = 0
        # (topic, partition, offset) -> value, as acknowledged; group -> list of committed numbers in order sent.
        self.records: dict[tuple[str, int, int], bytes] = {}
        self.sent: dict[tuple[str, str], list[int]] = {}
        self.acked: dict[tuple[str, str], int] = {}
        self.existing: list[str] = []
        self.number = 0
        self.acknowledged = 0

    def now(self) -> Now:
        return Now(self.mono_ms, 1_700_000_000_000 + self.mono_ms)

    # --- one life of the server

    def live(self, turns: int) -> None:
        """Run the server and its clients, then cut the power at a random moment of a turn."""
        self.engine = open_engine(self.storage, self.now(), self.rng)
        self.clients = [Client(self.engine) for _ in range(3)]
        self.waiting: dict[tuple[int, int], Any] = {}
        self.ticket: CommitTicket | None = None
        self.left_to_sync: list[Any] = []
        for _ in range(turns):
            self.mono_ms += self.rng.randrange(4)
            for client in self.clients:
                for _ in range(self.rng.randrange(3)):
                    self.send(client)
            self.turn()
        torn = self.rng.choice((0, 0, 1, 37, 512, 4096))
        self.storage = self.storage.crash(torn)

    def turn(self) -> None:
        if self.ticket is None:
            self.ticket = self.engine.end_turn(self.now())
            self.left_to_sync = list(self.ticket.syncs) if self.ticket is not None else []
        else:
            self.engine.end_turn(self.now())
            self.sync_some()
        self.collect()

    def sync_some(self) -> None:
        """The disk takes its time: a few files of the commit in flight are synced in each turn."""
        self.rng.shuffle(self.left_to_sync)
        for _ in range(self.rng.randrange(1, 4)):
            if self.left_to_sync:
                item = self.left_to_sync.pop()
                if self.does_sync:
                    sync_one(item)
        if not self.left_to_sync and self.ticket is not None:
            self.engine.commit_done(self.ticket, self.now())
            self.ticket = None

    def send(self, client: Client) -> None:
        choice = self.rng.random()
        if choice < 0.08 or not self.existing:
            name = f"topic-{self.topics}"
            self.topics += 1
            request: Any = CreateTopicsRequest([CreatableTopic(name, PARTITIONS, 1)])
            self.remember(client, apis.CREATE_TOPICS, 5, request, name)
        elif choice < 0.5:
            self.number += 1
            value = b"value-%d" % self.number + bytes(self.rng.randrange(300))
            builder = BatchBuilder()
            builder.append(1_700_000_000_000, b"k", value)
            where = (self.rng.choice(self.existing), self.rng.randrange(PARTITIONS))
            data = TopicProduceData(where[0], partition_data=[PartitionProduceData(where[1], builder.build(0, -1))])
            request = ProduceRequest(None, -1, 1000, [data])
            self.remember(client, apis.PRODUCE, PRODUCE_VERSION, request, (*where, value))
        else:
            self.number += 1
            group = f"group-{self.rng.randrange(GROUPS)}"
            topic = self.rng.choice(self.existing)
            partition = OffsetCommitRequestPartition(0, self.number, -1, "")
            topics = [OffsetCommitRequestTopic(topic, bytes(16), [partition])]
            request = OffsetCommitRequest(group, -1, "", None, -1, topics)
            self.sent.setdefault((group, topic), []).append(self.number)
            self.remember(client, apis.OFFSET_COMMIT, COMMIT_VERSION, request, (group, topic, self.number))

    def remember(self, client: Client, api_key: int, version: int, request: Any, what: Any) -> None:
        correlation_id = client.send(api_key, version, request, self.now())
        self.waiting[client.session.id, correlation_id] = (api_key, version, what)

    def collect(self) -> None:
        """Take the answers: from here on the server has promised."""
        for session in self.engine.take_ready():
            assert not session.close_reason, session.close_reason
            for correlation_id, rest in read_answers(take_output(session)):
                api_key, version, what = self.waiting.pop((session.id, correlation_id))
                self.account(api_key, decode_answer(api_key, version, rest), what)
                self.acknowledged += 1

    def account(self, api_key: int, answer: Any, what: Any) -> None:
        if api_key == apis.CREATE_TOPICS:
            assert answer.topics[0].error_code == 0, answer
            self.existing.append(what)
        elif api_key == apis.PRODUCE:
            result = answer.responses[0].partition_responses[0]
            assert result.error_code == 0, answer
            self.records[what[0], what[1], result.base_offset] = what[2]
        else:
            assert answer.topics[0].partitions[0].error_code == 0, answer
            self.acked[what[0], what[1]] = what[2]

    # --- what must hold after a cut

    def check(self) -> list[str]:
        """Everything that was promised and is not there."""
        engine = open_engine(self.storage, self.now(), self.rng)
        missing = self.missing_records(engine) + self.missing_commits(engine)
        for name in self.existing:
            if engine.core.topics.get(name) is None:
                missing.append(f"topic {name}")
        engine.stop()
        return missing

    def missing_records(self, engine: Engine) -> list[str]:
        client = Client(engine)
        found: dict[tuple[str, int, int], bytes] = {}
        for topic in self.existing:
            for partition in range(PARTITIONS):
                ask = FetchTopic(
                    topic, partitions=[FetchPartition(partition, fetch_offset=0, partition_max_bytes=1 << 24)]
                )
                request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 24, topics=[ask])
                answer = client.ask(apis.FETCH, 11, request, self.now())
                data = answer.responses[0].partitions[0].records or b""
                for header in parse_batches(data):
                    for record in decode_records(data, header.pos, header, 1 << 20):
                        found[topic, partition, record.offset] = record.value or b""
        return [f"record {key}" for key, value in self.records.items() if found.get(key) != value]

    def missing_commits(self, engine: Engine) -> list[str]:
        client = Client(engine)
        missing = []
        for (group, topic), number in self.acked.items():
            request = OffsetFetchRequest(group, [OffsetFetchRequestTopic(topic, [0])])
            answer = client.ask(apis.OFFSET_FETCH, 7, request, self.now())
            stored = answer.topics[0].partitions[0].committed_offset
            # One that was sent later may have become durable without its answer getting out.
            sent = self.sent[group, topic]
            if stored not in sent[sent.index(number) :]:
                missing.append(f"commit {group} {topic}: {number} acknowledged, {stored} found")
        return missing


@pytest.mark.parametrize("seed", range(25))
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    workload = Workload(seed)
    for _ in range(4):
        workload.live(workload.rng.randrange(1, 60))
        assert workload.check() == [], f"seed {seed}"
    assert workload.acknowledged > 0


def test_without_the_sync_something_is_lost() -> None:
    lost = 0
    for seed in range(10):
        workload = Workload(seed, does_sync=False)
        workload.live(40)
        assert workload.acknowledged > 0
        lost += len(workload.check())
    assert lost > 0


def test_an_answer_waits_for_the_sync() -> None:
    now = Now(0, 1_700_000_000_000)
    engine = open_engine(ForgetfulStorage(), now)
    client = Client(engine)
    client.ask(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic("t", 1, 1)]), now)
    partition = OffsetCommitRequestPartition(0, 5, -1, "")
    commit = OffsetCommitRequest("g", -1, "", None, -1, [OffsetCommitRequestTopic("t", bytes(16), [partition])])
    client.send(apis.OFFSET_COMMIT, COMMIT_VERSION, commit, now)
    ticket = engine.end_turn(now)
    assert ticket is not None
    assert take_output(client.session) == b""
    # A reader must not be shown what a power cut could take back, and a heartbeat waits for nothing.
    reader = Client(engine)
    reader.send(apis.OFFSET_FETCH, 7, OffsetFetchRequest("g", [OffsetFetchRequestTopic("t", [0])]), now)
    other = Client(engine)
    other.send(apis.API_VERSIONS, 0, ApiVersionsRequest(), now)
    assert engine.end_turn(now) is None
    assert take_output(reader.session) == b""
    assert take_output(other.session) != b""
    ticket.sync()
    engine.commit_done(ticket, now)
    assert take_output(client.session) != b""
    answers = read_answers(take_output(reader.session))
    found = decode_answer(apis.OFFSET_FETCH, 7, answers[0][1])
    assert found.topics[0].partitions[0].committed_offset == 5


def test_producer_ids_are_given_out_once_also_without_syncs() -> None:
    """Under `os` a power cut may keep a partition's records and lose the block of ids that they are from.

    Then another producer would get the same id, and its first batch would count as a repeat of one that is stored.
    """
    now = Now(0, 1_700_000_000_000)
    storage = ForgetfulStorage()
    engine = open_engine(storage, now, sync="os")
    client = Client(engine)
    client.ask(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic("t", 1, 1)]), now)
    engine.stop()
    ids: list[int] = []
    for _ in range(3):
        engine = open_engine(storage, now, sync="os")
        client = Client(engine)
        ids.append(client.ask(apis.INIT_PRODUCER_ID, 4, InitProducerIdRequest(None, 1000, -1, -1), now).producer_id)
        storage = storage.crash()
    assert len(set(ids)) == 3
