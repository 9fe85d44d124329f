"""Start-up takes whatever compaction may leave (KAFKA-19862, KAFKA-17306, KAFKA-21117).

A workload of groups, commits and deletions gives a log of coordinator records. Compaction may have taken, of every
key, any of the records that have a later one, and a tombstone once nothing older of its key is there. Every such
subset has to load without a complaint and to the same state.
"""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from kcoord.core.coordinator import Core
from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.engine.loader import LogLoader
from kcoord.log.serde import decode_record
from kcoord.log.storage import MemoryStorage
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_groups import DeleteGroupsRequest
from kcoord.protocol.delete_topics import DeleteTopicsRequest
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kcoord.protocol.leave_group import LeaveGroupRequest, MemberIdentity
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kcoord.wire.record_batch import Record, decode_records, parse_header
from tests.harness.engine import Client, decode_answer, finish_turn, open_engine, read_answers, take_output
from tests.harness.log import batches_of

GROUPS = ["g0", "g1", "g2"]
TOPICS = ["t0", "t1"]


class Workload:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = Now(0, 1_700_000_000_000)
        self.engine: Engine = open_engine(MemoryStorage(), self.now, self.rng)
        self.client = Client(self.engine)
        self.members: dict[str, tuple[str, int]] = {}

    def ask(self, api_key: int, version: int, message: Any) -> Any:
        return self.client.ask(api_key, version, message, self.now)

    def step(self) -> None:
        self.now = Now(self.now.mono_ms + 50, self.now.wall_ms + 50)
        group = self.rng.choice(GROUPS)
        topic = self.rng.choice(TOPICS)
        choice = self.rng.randrange(10)
        if choice == 0:
            self.ask(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic(topic, 2, 1)]))
        elif choice == 1:
            self.ask(apis.DELETE_TOPICS, 5, DeleteTopicsRequest([], [topic], 1000))
        elif choice == 2 and group not in self.members:
            self.join(group)
        elif choice == 3 and group in self.members:
            member_id, _ = self.members.pop(group)
            self.ask(apis.LEAVE_GROUP, 4, LeaveGroupRequest(group, "", [MemberIdentity(member_id)]))
        elif choice == 4:
            self.ask(apis.DELETE_GROUPS, 2, DeleteGroupsRequest([group]))
        elif choice == 5:
            partitions = [OffsetDeleteRequestPartition(self.rng.randrange(2))]
            self.ask(apis.OFFSET_DELETE, 0, OffsetDeleteRequest(group, [OffsetDeleteRequestTopic(topic, partitions)]))
        else:
            member_id, generation = self.members.get(group, ("", -1))
            partition = OffsetCommitRequestPartition(self.rng.randrange(2), self.rng.randrange(1000), -1, "m")
            topics = [OffsetCommitRequestTopic(topic, bytes(16), [partition])]
            self.ask(apis.OFFSET_COMMIT, 8, OffsetCommitRequest(group, generation, member_id, None, -1, topics))

    def join(self, group: str) -> None:
        protocols = [JoinGroupRequestProtocol("range", b"x")]
        request = JoinGroupRequest(group, 600_000, 600_000, "", None, "consumer", protocols)
        self.client.send(apis.JOIN_GROUP, 3, request, self.now)
        finish_turn(self.engine, self.now)
        self.now = Now(self.now.mono_ms + 50, self.now.wall_ms + 50)
        self.engine.fire_timers(self.now)
        finish_turn(self.engine, self.now)
        ((_, rest),) = read_answers(take_output(self.client.session))
        answer = decode_answer(apis.JOIN_GROUP, 3, rest)
        assert answer.error_code == 0
        given = [SyncGroupRequestAssignment(answer.member_id, b"part")]
        sync = SyncGroupRequest(group, answer.generation_id, answer.member_id, None, None, None, given)
        assert self.ask(apis.SYNC_GROUP, 3, sync).error_code == 0
        self.members[group] = (answer.member_id, answer.generation_id)

    def records(self) -> list[Record]:
        log = self.engine.directory.get("__consumer_offsets", 0)
        assert log is not None
        found: list[Record] = []
        for position, data in batches_of(log, 0, log.end_offset):
            found += decode_records(data, position, parse_header(data, position), 1 << 24)
        return found

    def load(self, records: list[Record]) -> list[str]:
        """The state after loading the metadata log and these records."""
        core = Core(self.engine.config)
        metadata = self.engine.directory.get("__cluster_metadata", 0)
        assert metadata is not None
        LogLoader(core, core.metadata_log).load_log(metadata, 0)
        for record in records:
            assert record.key is not None
            key, value = decode_record(record.key, record.value)
            core.replay(core.offsets_logs()[0], record.offset, key, value)
        core.loaded(self.now)
        return state_of(core)


def state_of(core: Core) -> list[str]:
    """The hard state without the offset after a group's last record, which may have been a tombstone that went."""
    groups = [re.sub(r"^(group '.*?') \d+ ", r"\1 ", line) for line in core.groups.hard_state()]
    return core.topics.digest_lines() + groups + core.offsets.digest_lines()


def legal_subset(records: list[Record], rng: random.Random, share: float) -> list[Record]:
    newest = {record.key: record.offset for record in records}
    left = [record for record in records if record.offset == newest[record.key] or rng.random() > share]
    first = {record.key: record.offset for record in reversed(left)}
    return [
        record
        for record in left
        if record.value is not None or record.offset != first[record.key] or rng.random() > share
    ]


@pytest.mark.parametrize("seed", range(8))
def test_every_legal_subset_loads_to_the_same_state(seed: int) -> None:
    workload = Workload(seed)
    for _ in range(200):
        workload.step()
    records = workload.records()
    whole = workload.load(records)
    assert whole == state_of(workload.engine.core)
    assert any(line.startswith("group") for line in whole)
    assert any(record.value is None for record in records)
    rng = random.Random(seed)
    for share in [1.0, *(rng.uniform(0.2, 1) for _ in range(40))]:
        subset = legal_subset(records, rng, share)
        assert len(subset) < len(records)
        assert workload.load(subset) == whole
