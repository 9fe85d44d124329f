"""Two engines that live through the same random history of offsets, one of them without the direct paths."""

from __future__ import annotations

import random
from typing import Any

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.log.storage import MemoryDirectory, MemoryFile, MemoryStorage
from kcoord.protocol import apis, errors
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, OwnedTopicPartitions
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_groups import DeleteGroupsRequest
from kcoord.protocol.delete_topics import DeleteTopicsRequest
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kcoord.protocol.metadata import MetadataRequest
from kcoord.protocol.offset_commit import (
    MAX_VERSION,
    MIN_VERSION,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.harness.engine import (
    Client,
    decode_answer,
    finish_turn,
    open_engine,
    read_answers,
    request_frame,
    take_output,
)

TOPICS = ("a", "topic.with-a_longer.name")
GROUPS = ("simple", "gruppe-\u00e4\u00f6", "classic", "consumer", "absent", "")
METADATA = ("", "", "", None, "m", "\u00fc\U0001f600" * 20, "x" * 200)


def memory_files(storage: MemoryStorage) -> dict[str, bytes]:
    found: dict[str, bytes] = {}

    def walk(path: str, node: MemoryDirectory) -> None:
        for name, entry in node.entries.items():
            if isinstance(entry, MemoryFile):
                found[f"{path}/{name}"] = bytes(entry.data)
            elif isinstance(entry, MemoryDirectory):
                walk(f"{path}/{name}", entry)

    walk("", storage._root)
    return found


class Twin:
    """One of two engines that live through the same random history. `seed` decides everything."""

    def __init__(self, seed: int, is_direct: bool, partitions: int, commit_share: float = 0.8) -> None:
        # How many of the steps commit, and how many commit or fetch.
        self.commit_share = commit_share
        self.fetch_share = 0.84
        self.rng = random.Random(seed)
        self.storage = MemoryStorage()
        self.mono_ms = 1
        config = CoreConfig()
        config.group_events_enable = False
        config.offsets_topic_num_partitions = partitions
        config.coordinator_batch_bytes_max = 4000
        self.engine: Engine = open_engine(self.storage, self.now(), random.Random(seed), "memory", config)
        self.commits = self.engine.turn.direct_commits
        self.fetches = self.engine.turn.direct_fetches
        self.commits.is_on = self.fetches.is_on = is_direct
        self.client = Client(self.engine)
        self.said: list[bytes] = []
        self.ask(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic(name, 4, 1) for name in TOPICS]))
        topics = self.ask(apis.METADATA, 12, MetadataRequest(None)).topics
        self.topic_ids = {topic.name: topic.topic_id for topic in topics}
        self.members = {"classic": ("", -1), "consumer": ("", -1)}
        self.join_classic()
        self.join_consumer()

    def now(self) -> Now:
        return Now(self.mono_ms, 1_800_000_000_000 + self.mono_ms)

    def ask(self, api_key: int, version: int, body: object) -> Any:
        correlation_id = self.client.send(api_key, version, body, self.now())
        finish_turn(self.engine, self.now())
        # A first member waits for a timer.
        self.engine.fire_timers(self.now())
        finish_turn(self.engine, self.now())
        ((answered, rest),) = read_answers(take_output(self.client.session))
        assert answered == correlation_id
        return decode_answer(api_key, version, rest)

    # --- members

    def join_classic(self) -> None:
        protocols = [
            JoinGroupRequestProtocol("range", b"\x00\x01\x00\x00\x00\x01\x00\x01a\xff\xff\xff\xff\x00\x00\x00\x00")
        ]
        join = JoinGroupRequest("classic", 30_000, 30_000, "", "static", "consumer", protocols)
        joined = self.ask(apis.JOIN_GROUP, 5, join)
        sync = SyncGroupRequest(
            "classic", joined.generation_id, joined.member_id, "static", None, None,
            [SyncGroupRequestAssignment(joined.member_id, b"")],
        )  # fmt: skip
        assert self.ask(apis.SYNC_GROUP, 3, sync).error_code == errors.NONE
        self.members["classic"] = (joined.member_id, joined.generation_id)

    def join_consumer(self) -> None:
        member_id = "member-0123456789abcdefg"
        join = ConsumerGroupHeartbeatRequest("consumer", member_id, 0, None, None, 30_000, list(TOPICS))
        join.topic_partitions = []
        joined = self.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, join)
        assert joined.error_code == errors.NONE
        self.members["consumer"] = (member_id, joined.member_epoch)
        if joined.assignment is not None:
            owned = [OwnedTopicPartitions(one.topic_id, one.partitions) for one in joined.assignment.topic_partitions]
            beat = ConsumerGroupHeartbeatRequest("consumer", member_id, joined.member_epoch)
            beat.topic_partitions = owned
            self.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, beat)

    # --- requests

    def fetch(self) -> bytes:
        rng = self.rng
        version = rng.randint(7, 10)
        if version < 8:
            topics = [OffsetFetchRequestTopic(rng.choice(TOPICS), [0, 1, 2])]
            body = OffsetFetchRequest(rng.choice(GROUPS), topics, require_stable=rng.random() < 0.3)
        else:
            groups = [self.fetch_group(version) for _ in range(rng.choice((0, 1, 1, 1, 1, 1, 1, 2)))]
            body = OffsetFetchRequest(groups=groups, require_stable=rng.random() < 0.3)
        frame = request_frame(apis.OFFSET_FETCH, version, body, rng.randint(0, 1 << 30))
        if rng.random() < 0.02:
            cut = rng.randint(14, len(frame) - 4)
            frame = cut.to_bytes(4, "big") + frame[4 : 4 + cut]
        return frame

    def fetch_group(self, version: int) -> OffsetFetchRequestGroup:
        rng = self.rng
        group = rng.choices(GROUPS, (4, 2, 4, 4, 1, 1))[0]
        member_id, epoch = self.members.get(group, ("", -1))
        if version < 9 or rng.random() < 0.3:
            one = OffsetFetchRequestGroup(group)
        elif rng.random() < 0.1:
            one = OffsetFetchRequestGroup(group, rng.choice((None, "nobody", member_id)), epoch + 1)
        else:
            one = OffsetFetchRequestGroup(group, member_id or None, epoch)
        if rng.random() < 0.1:
            one.topics = None
            return one
        one.topics = []
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            name = rng.choice((*TOPICS, "unknown")) if rng.random() < 0.2 else rng.choice(TOPICS)
            indexes = [rng.choice((0, 1, 2, 3, 4, -1)) for _ in range(rng.choice((0, 1, 2, 4, 8)))]
            one.topics.append(OffsetFetchRequestTopics(name, self.topic_ids.get(name, bytes([9]) * 16), indexes))
        return one

    def commit(self) -> bytes:
        rng = self.rng
        version = rng.randint(MIN_VERSION, MAX_VERSION)
        group = rng.choices(GROUPS, (4, 2, 4, 4, 1, 1))[0]
        member_id, epoch = self.members.get(group, ("", -1))
        if rng.random() < 0.1:
            member_id, epoch = rng.choice([("", -1), (member_id, epoch + 1), (member_id, 0), ("nobody", epoch)])
        body = OffsetCommitRequest(group, epoch, member_id)
        if version >= 7 and rng.random() < 0.2:
            body.group_instance_id = rng.choice(("static", "other"))
        if version <= 4 and rng.random() < 0.2:
            body.retention_time_ms = rng.choice((0, 1000, 1 << 62))
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
            name = rng.choice((*TOPICS, TOPICS[0], "unknown")) if rng.random() < 0.2 else rng.choice(TOPICS)
            partitions = [self.partition() for _ in range(rng.choice((0, 1, 1, 2, 4, 8)))]
            body.topics.append(OffsetCommitRequestTopic(name, self.topic_ids.get(name, b"\x09" * 16), partitions))
        frame = request_frame(apis.OFFSET_COMMIT, version, body, rng.randint(0, 1 << 30))
        if rng.random() < 0.02:
            # Cut short, with a size that fits: the connection is closed.
            cut = rng.randint(14, len(frame) - 4)
            frame = cut.to_bytes(4, "big") + frame[4 : 4 + cut]
        return frame

    def partition(self) -> OffsetCommitRequestPartition:
        rng = self.rng
        index = rng.choice((0, 1, 2, 3, 3, 4, -1)) if rng.random() < 0.1 else rng.randrange(4)
        metadata = "y" * 5000 if rng.random() < 0.01 else rng.choice(METADATA)
        offset = rng.choice((0, 1, rng.randrange(1 << 40), -1, (1 << 63) - 1))
        return OffsetCommitRequestPartition(index, offset, rng.choice((-1, -5, 0, 7)), metadata)

    def step(self) -> None:
        rng = self.rng
        self.mono_ms += rng.choice((0, 1, 700))
        kind = rng.random()
        if self.client.session.close_reason:
            self.said.append(self.client.session.close_reason.encode())
            self.engine.close_session(self.client.session, self.now())
            self.client = Client(self.engine)
        elif self.engine.disk_full and rng.random() < 0.5:
            self.engine.set_disk_full(False)
        if kind < self.commit_share:
            data = b"".join(self.commit() for _ in range(rng.choice((1, 1, 3, 10))))
            self.engine.receive(self.client.session, data, self.now())
        elif kind < self.fetch_share:
            data = b"".join(self.fetch() for _ in range(rng.choice((1, 3))))
            self.engine.receive(self.client.session, data, self.now())
        elif kind < 0.86:
            self.send(apis.DELETE_GROUPS, 2, DeleteGroupsRequest([rng.choice(GROUPS[:2])]))
        elif kind < 0.88:
            self.send(apis.DELETE_TOPICS, 4, DeleteTopicsRequest(topic_names=[TOPICS[1]]))
            finish_turn(self.engine, self.now())
            self.send(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic(TOPICS[1], rng.randint(1, 4), 1)]))
        elif kind < 0.9:
            self.engine.set_disk_full(True)
        elif kind < 0.95:
            self.mono_ms += 5000
            self.engine.fire_timers(self.now())
        if rng.random() < 0.7:
            finish_turn(self.engine, self.now())
        self.said.append(take_output(self.client.session))

    def send(self, api_key: int, version: int, body: object) -> None:
        self.client.send(api_key, version, body, self.now())

    def state(self) -> dict[str, object]:
        """All that must be the same in both twins."""
        return {
            "digest": self.engine.core.digest(),
            "files": memory_files(self.storage),
            "deadline": self.engine.next_deadline_ms(),
            "open bytes": self.engine.commits.open_bytes,
            "offsets": {str(log_id): log.next_offset for log_id, log in self.engine.commits.logs.items()},
        }

    def end(self) -> None:
        self.engine.set_disk_full(False)
        finish_turn(self.engine, self.now())
        self.said.append(take_output(self.client.session))


def frame_of(twin: Twin, group: str, version: int, offset: int) -> bytes:
    """A commit of four partitions by the group's member."""
    member_id, epoch = twin.members.get(group, ("", -1))
    partitions = [OffsetCommitRequestPartition(index, offset, 0, "") for index in range(4)]
    topics = [OffsetCommitRequestTopic("a", twin.topic_ids["a"], partitions)]
    return request_frame(apis.OFFSET_COMMIT, version, OffsetCommitRequest(group, epoch, member_id, topics=topics))


def usual() -> Twin:
    """A twin whose groups have committed offsets."""
    twin = Twin(1, True, 1)
    for group in ("simple", "classic", "consumer"):
        twin.engine.receive(twin.client.session, frame_of(twin, group, 9, 1), twin.now())
    assert twin.commits.handled == 0
    assert not twin.client.session.close_reason
    return twin
