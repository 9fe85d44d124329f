"""Topics that come and go under load, connections that break and power that fails, in any order.

Whatever happens, answers come in the order of the requests, every request of an open connection is answered in the
end, and a directory that a power cut left behind opens again and holds all that a client has seen of it.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.log.journal import CommitTicket, sync_one
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_groups import DeleteGroupsRequest
from kcoord.protocol.delete_topics import DeleteTopicsRequest
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kcoord.protocol.metadata import MetadataRequest
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.testing.state.disk import ForgetfulStorage
from kcoord.wire.record_batch import BatchBuilder
from tests.harness.engine import Client, decode_answer, finish_turn, open_engine, read_answers, take_output

WALL_MS = 1_700_000_000_000
NAMES = ("a", "b", "c")
FETCH_WAIT_MS = 50


def fetch_request(name: str, offset: int, max_wait_ms: int) -> FetchRequest:
    partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
    wanted = [FetchTopic(name, partitions=[partition])]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=wanted)


class Chaos:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.storage = ForgetfulStorage()
        self.mono_ms = 0
        # What a client saw when all was quiet, and that nobody has touched since: topic -> (id, high watermark).
        self.seen: dict[str, tuple[bytes, int]] = {}

    def now(self) -> Now:
        return Now(self.mono_ms, WALL_MS + self.mono_ms)

    def live(self, turns: int) -> None:
        config = CoreConfig()
        config.offsets_topic_num_partitions = 3
        self.engine: Engine = open_engine(self.storage, self.now(), self.rng, config=config)
        self.ticket: CommitTicket | None = None
        self.left_to_sync: list[Any] = []
        for name, (topic_id, end) in self.look().items():
            if name in self.seen:
                assert topic_id == self.seen[name][0]
                assert end >= self.seen.pop(name)[1]
        assert not self.seen, "topics are gone"
        self.clients = [Client(self.engine) for _ in range(3)]
        self.pending: list[list[int]] = [[], [], []]
        for _ in range(turns):
            self.mono_ms += self.rng.randrange(5)
            self.send()
            self.turn()
        if self.rng.random() < 0.5:
            self.calm_down()
            self.seen = self.look()
            if self.rng.random() < 0.3:
                self.engine.stop()
        self.storage = self.storage.crash(self.rng.choice((0, 0, 1, 37, 512)))

    def send(self) -> None:
        for index in range(3):
            if self.rng.random() < 0.03:
                self.engine.close_session(self.clients[index].session, self.now())
                self.clients[index] = Client(self.engine)
                self.pending[index] = []
            for _ in range(self.rng.randrange(3)):
                api_key, version, message = self.request()
                self.pending[index].append(self.clients[index].send(api_key, version, message, self.now()))

    def request(self) -> tuple[int, int, Any]:
        name = self.rng.choice(NAMES)
        group = self.rng.choice(("x", "y", "z"))
        choice = self.rng.randrange(7)
        if choice == 0:
            return apis.CREATE_TOPICS, 7, CreateTopicsRequest([CreatableTopic(name, 2, 1)])
        if choice == 1:
            return apis.DELETE_TOPICS, 3, DeleteTopicsRequest(topic_names=[name])
        if choice == 2:
            return apis.FETCH, 11, fetch_request(name, self.rng.randrange(3), FETCH_WAIT_MS)
        if choice == 3:
            return apis.DELETE_GROUPS, 2, DeleteGroupsRequest(["x", "y", "z"])
        if choice == 4:
            topics = [OffsetCommitRequestTopic(name, bytes(16), [OffsetCommitRequestPartition(0, 5, -1, "")])]
            return apis.OFFSET_COMMIT, 8, OffsetCommitRequest(group, -1, "", None, -1, topics)
        builder = BatchBuilder()
        builder.append(WALL_MS, None, b"value")
        data = [PartitionProduceData(0, builder.build(0, -1))]
        return apis.PRODUCE, 9, ProduceRequest(None, -1, 1000, [TopicProduceData(name, partition_data=data)])

    def turn(self) -> None:
        """A turn of the engine; the disk syncs a few files of the commit in flight."""
        self.engine.fire_timers(self.now())
        for _ in range(self.rng.randrange(6)):
            if self.left_to_sync:
                sync_one(self.left_to_sync.pop())
        if self.ticket is not None and not self.left_to_sync:
            self.engine.commit_done(self.ticket, self.now())
            self.ticket = None
        ticket = self.engine.end_turn(self.now())
        if ticket is not None:
            assert self.ticket is None
            self.ticket = ticket
            self.left_to_sync = list(ticket.syncs)
            self.rng.shuffle(self.left_to_sync)
        self.collect()

    def collect(self) -> None:
        self.engine.take_ready()
        for client, pending in zip(self.clients, self.pending, strict=True):
            assert not client.session.close_reason, client.session.close_reason
            for correlation_id, _ in read_answers(take_output(client.session)):
                assert correlation_id == pending.pop(0)

    def calm_down(self) -> None:
        """Nothing new is asked until everything is answered, which each poll may put off."""
        for _ in range(10 * FETCH_WAIT_MS):
            if self.ticket is None and not any(self.pending):
                break
            self.mono_ms += FETCH_WAIT_MS
            self.turn()
        assert not any(self.pending), "requests were never answered"

    def look(self) -> dict[str, tuple[bytes, int]]:
        client = Client(self.engine)
        found: dict[str, tuple[bytes, int]] = {}
        for topic in client.ask(apis.METADATA, 12, MetadataRequest(None), self.now()).topics:
            if topic.name in NAMES:
                client.send(apis.FETCH, 11, fetch_request(topic.name, 0, 0), self.now())
                finish_turn(self.engine, self.now())
                ((_, rest),) = read_answers(take_output(client.session))
                data = decode_answer(apis.FETCH, 11, rest).responses[0].partitions[0]
                assert data.error_code == 0
                found[topic.name] = (topic.topic_id, data.high_watermark)
        self.engine.close_session(client.session, self.now())
        return found


@pytest.mark.parametrize("seed", range(60))
def test_chaos(seed: int) -> None:
    chaos = Chaos(seed)
    for _ in range(4):
        chaos.live(chaos.rng.randrange(5, 60))
        if chaos.seen and chaos.rng.random() < 0.5:
            # Once more without anybody doing anything.
            chaos.live(0)
