"""`__group_events`: what it says, and that it has neither gaps nor repeats whenever the power goes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from kcoord.core import cause as group_cause
from kcoord.core.config import CoreConfig
from kcoord.core.groups.cause_header import CAUSE_HEADER, decode_cause
from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.engine.group_events import decode_marks, encode_event, event_document
from kcoord.engine.state_checkpoint import write_state
from kcoord.history.timeline import GroupEvent, GroupTimeline
from kcoord.log.partition_log import PartitionLog
from kcoord.log.serde import decode_record
from kcoord.log.storage import MemoryStorage, Storage
from kcoord.protocol import apis
from kcoord.protocol.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    OwnedTopicPartitions,
)
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kcoord.protocol.delete_topics import DeleteTopicsRequest
from kcoord.protocol.errors import INVALID_TOPIC_EXCEPTION, NONE, UNKNOWN_TOPIC_OR_PARTITION
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kcoord.protocol.leave_group import LeaveGroupRequest, MemberIdentity
from kcoord.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.protocol.records.consumer_group_metadata import ConsumerGroupMetadataKey
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kcoord.testing.state.disk import ForgetfulStorage
from kcoord.wire.record_batch import BatchBuilder, Record, decode_records
from tests.harness.engine import Client, decode_answer, finish_turn, open_engine, read_answers, take_output
from tests.harness.record_batches import parse_batches

WALL = 1_700_000_000_000
TOPIC = "__group_events"
OFFSETS = "__consumer_offsets"


def at(ms: int) -> Now:
    return Now(ms, WALL + ms)


def records_of(engine: Engine, topic: str) -> list[Record]:
    """Everything in partition 0 of a topic, as a client may read it."""
    log = engine.directory.get(topic, 0)
    if log is None:
        return []
    found: list[Record] = []
    for extent in log.extents(0, log.durable_end):
        data = log.storage.open(extent.path).read_at(extent.start, extent.end - extent.start)
        for header in parse_batches(data):
            if header.base_offset < log.durable_end:
                found += decode_records(data, header.pos, header, 1 << 24)
    return found


def events_of(engine: Engine) -> list[dict[str, Any]]:
    return [json.loads(record.value or b"") for record in records_of(engine, TOPIC)]


def short(event: dict[str, Any]) -> str:
    text = f"{event['event']} {event['group']} {event['epoch']}"
    if event["event"] == "rebalance_finished":
        return f"{text} {event['duration_ms']} ms: {event['members']} have {event['partitions']}"
    return f"{text} {event['cause']} {event['member']} after {event['members']} had {event['partitions']}"


class Groups:
    """Clients of the groups of an engine."""

    def __init__(self, storage: Storage, config: CoreConfig | None = None) -> None:
        self.storage = storage
        self.config = config or CoreConfig()
        self.config.group_consumer_assignment_interval_ms = 0
        self.ms = 0
        self.epochs: dict[tuple[str, str], int] = {}
        self.owned: dict[tuple[str, str], Any] = {}
        self.open()

    def open(self) -> None:
        self.engine = open_engine(self.storage, at(self.ms), random.Random(self.ms), "always", self.config)
        self.client = Client(self.engine)

    def ask(self, api_key: int, version: int, message: Any) -> Any:
        correlation_id = self.client.send(api_key, version, message, at(self.ms))
        self.engine.fire_timers(at(self.ms))
        finish_turn(self.engine, at(self.ms))
        answers = read_answers(take_output(self.client.session))
        assert [answer[0] for answer in answers] == [correlation_id], self.client.session.close_reason
        return decode_answer(api_key, version, answers[0][1])

    def topic(self, name: str, partitions: int) -> None:
        self.ask(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic(name, partitions, 1)]))

    def beat(self, group: str, member: str, topics: list[str] | None = None, epoch: int | None = None) -> Any:
        """A heartbeat of a member that gives up at once what it is to give up."""
        known = self.epochs.get((group, member), 0) if epoch is None else epoch
        request = ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=member, member_epoch=known, rebalance_timeout_ms=20000 if known == 0 else -1,
            subscribed_topic_names=topics,
            topic_partitions=[] if known == 0 else self.owned.get((group, member)),
        )  # fmt: skip
        answer = self.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, request)
        if answer.error_code == NONE and answer.member_epoch > 0:
            self.epochs[group, member] = answer.member_epoch
            if answer.assignment is not None:
                self.owned[group, member] = [
                    OwnedTopicPartitions(topic.topic_id, topic.partitions)
                    for topic in answer.assignment.topic_partitions
                ]
        else:
            self.epochs.pop((group, member), None)
            self.owned.pop((group, member), None)
        return answer

    def settle(self, group: str, *members: str) -> None:
        for _ in range(4):
            for member in members:
                self.beat(group, member)

    def join_classic(self, group: str, member_id: str = "", reason: str | None = None) -> Any:
        request = JoinGroupRequest(
            group, 10000, 10000, member_id, None, "consumer",
            [JoinGroupRequestProtocol("range", b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\0")], reason,
        )  # fmt: skip
        return self.ask(apis.JOIN_GROUP, 9, request)

    def sync_classic(self, group: str, member_id: str, generation: int) -> None:
        parts = b"\0\1\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\1\xff\xff\xff\xff"
        request = SyncGroupRequest(
            group, generation, member_id, None, "consumer", "range", [SyncGroupRequestAssignment(member_id, parts)]
        )
        assert self.ask(apis.SYNC_GROUP, 5, request).error_code == NONE


def story(groups: Groups) -> None:
    """A consumer group and a classic one."""
    groups.topic("t", 4)
    groups.beat("c", "a", ["t"])
    groups.ms += 10
    groups.beat("c", "b", ["t"])
    groups.ms += 20
    groups.settle("c", "a", "b")
    groups.ms += 70
    groups.beat("c", "b", epoch=-1)
    groups.ms += 5
    groups.settle("c", "a")
    member = groups.join_classic("k").member_id
    joined = groups.join_classic("k", member, "started")
    groups.ms += 30
    groups.sync_classic("k", member, joined.generation_id)
    groups.ask(apis.LEAVE_GROUP, 5, LeaveGroupRequest("k", "", [MemberIdentity(member, None, "closed")]))
    finish_turn(groups.engine, at(groups.ms))


def test_the_story_of_two_groups() -> None:
    groups = Groups(MemoryStorage())
    story(groups)
    member = events_of(groups.engine)[-1]
    lines = [short(event) for event in events_of(groups.engine)]
    classic = next(event["member"] for event in events_of(groups.engine) if event["group"] == "k")
    assert lines == [
        "epoch_changed c 2 member_joined a after 0 had 0",
        "rebalance_finished c 2 0 ms: 1 have 4",
        "epoch_changed c 3 member_joined b after 1 had 4",
        "rebalance_finished c 3 20 ms: 2 have 4",
        "epoch_changed c 4 member_left b after 2 had 4",
        "rebalance_finished c 4 5 ms: 1 have 4",
        f"epoch_changed k 1 member_joined {classic} after 0 had 0",
        "rebalance_finished k 1 30 ms: 1 have 2",
        f"epoch_changed k 2 member_left {classic} after 1 had 2",
        "rebalance_finished k 2 0 ms: 0 have 0",
    ]
    assert member["log"] == "__consumer_offsets-0"
    details = [event["detail"] for event in events_of(groups.engine) if event["group"] == "k" and "cause" in event]
    assert details == ["client reason: started", "client reason: closed"]


def test_keys_times_and_offsets() -> None:
    groups = Groups(MemoryStorage())
    story(groups)
    written = {record.offset: record for record in records_of(groups.engine, OFFSETS)}
    for record in records_of(groups.engine, TOPIC):
        event = json.loads(record.value or b"")
        group, epoch, offset = (record.key or b"").decode().rsplit("|", 2)
        assert (group, int(epoch), int(offset)) == (event["group"], event["epoch"], event["offset"])
        assert record.timestamp == event["time_ms"]
        source = written[event["offset"]]
        if event["event"] == "epoch_changed":
            cause = decode_cause(source.headers)
            assert cause is not None and cause.kind == event["cause"]
    marks = [r.headers for r in records_of(groups.engine, TOPIC) if r.headers]
    assert decode_marks(marks[-1][0][1] or b"") == {0: events_of(groups.engine)[-1]["offset"] + 1}


def test_the_cause_is_a_header_of_the_groups_own_record() -> None:
    groups = Groups(MemoryStorage())
    story(groups)
    kinds = []
    for record in records_of(groups.engine, OFFSETS):
        key, _ = decode_record(record.key or b"", record.value)
        has_cause = any(name == CAUSE_HEADER for name, _ in record.headers)
        assert has_cause == isinstance(key, ConsumerGroupMetadataKey) or type(key).__name__ == "GroupMetadataKey"
        kinds.append(has_cause)
    assert kinds.count(True) == 5


def test_a_log_without_events_gets_them_at_the_next_start() -> None:
    config = CoreConfig()
    config.group_events_enable = False
    groups = Groups(MemoryStorage(), config)
    story(groups)
    assert groups.engine.core.topics.get(TOPIC) is None
    expected = projected(groups.engine)
    groups.engine.stop()
    config.group_events_enable = True
    groups.open()
    finish_turn(groups.engine, at(groups.ms))
    assert [record.value for record in records_of(groups.engine, TOPIC)] == expected
    assert len(expected) == 10


def test_what_is_older_than_the_retention_is_not_written_again() -> None:
    config = CoreConfig()
    config.group_events_enable = False
    groups = Groups(MemoryStorage(), config)
    story(groups)
    groups.engine.stop()
    config.group_events_enable = True
    groups.ms += config.group_events_retention_ms - 40
    groups.open()
    finish_turn(groups.engine, at(groups.ms))
    # The rebalance that began before counts by its end.
    lines = [short(event).split(" after")[0] for event in events_of(groups.engine)]
    assert [line.split(" ")[1] for line in lines] == ["k", "k", "k", "k"] or "c 4" in lines[0]
    assert 0 < len(lines) < 10


def test_a_deleted_topic_is_recreated() -> None:
    groups = Groups(MemoryStorage())
    story(groups)
    answer = groups.ask(apis.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=[TOPIC]))
    assert answer.responses[0].error_code == NONE
    groups.beat("c", "b", ["t"])
    groups.settle("c", "a", "b")
    lines = [short(event) for event in events_of(groups.engine)]
    assert lines[0] == "epoch_changed c 5 member_joined b after 1 had 4"


def test_clients_cannot_write_and_do_not_make_it() -> None:
    config = CoreConfig()
    config.group_events_enable = False
    groups = Groups(MemoryStorage(), config)
    asked = MetadataRequest([MetadataRequestTopic(bytes(16), TOPIC)], True)
    answer = groups.ask(apis.METADATA, 9, asked)
    assert answer.topics[0].error_code == UNKNOWN_TOPIC_OR_PARTITION
    config.group_events_enable = True
    groups = Groups(MemoryStorage())
    story(groups)
    builder = BatchBuilder()
    builder.append(WALL, b"k", b"v")
    data = TopicProduceData(TOPIC, partition_data=[PartitionProduceData(0, builder.build(0, -1))])
    produced = groups.ask(apis.PRODUCE, 9, ProduceRequest(None, -1, 1000, [data]))
    assert produced.responses[0].partition_responses[0].error_code == INVALID_TOPIC_EXCEPTION
    answer = groups.ask(apis.METADATA, 9, asked)
    assert answer.topics[0].error_code == NONE and answer.topics[0].is_internal


def projected(engine: Engine) -> list[bytes]:
    """The events that the coordinator log as a whole leads to."""
    timeline = GroupTimeline()
    for record in records_of(engine, OFFSETS):
        key, value = decode_record(record.key or b"", record.value)
        timeline.replay(record.offset, record.timestamp, key, value, decode_cause(record.headers))
    return [encode_event(event, 0) for event in timeline.take()]


def write_checkpoint(engine: Engine, log: PartitionLog) -> None:
    state = engine.states.logs[log.name]
    state.records_min = 1
    plan = state.plan(False)
    if plan is not None:
        state.end_offset = plan.end_offset
        state.records = write_state(log.storage, plan)


@pytest.mark.parametrize("seed", range(12))
def test_power_cuts_leave_neither_gaps_nor_repeats(seed: int) -> None:
    rng = random.Random(seed)
    storage = ForgetfulStorage()
    groups = Groups(storage)
    groups.topic("t", 5)
    lost = 0
    for _ in range(6):
        for _ in range(rng.randrange(1, 25)):
            step(groups, rng)
        # A turn under way: what is appended is written and perhaps synced, in part.
        groups.client.send(apis.CONSUMER_GROUP_HEARTBEAT, 1, ConsumerGroupHeartbeatRequest(
            group_id="g0", member_id="late", member_epoch=0, rebalance_timeout_ms=20000,
            subscribed_topic_names=["t"], topic_partitions=[],
        ), at(groups.ms))  # fmt: skip
        ticket = groups.engine.end_turn(at(groups.ms))
        if ticket is not None and rng.random() < 0.7:
            ticket.sync()
            groups.engine.commit_done(ticket, at(groups.ms))
            if rng.random() < 0.5:
                # The coordinator's records are durable, and their events are not.
                late = groups.engine.end_turn(at(groups.ms))
                lost += late is not None
        if rng.random() < 0.3:
            log = groups.engine.directory.get(OFFSETS, 0)
            assert log is not None
            write_checkpoint(groups.engine, log)
        storage = storage.crash(rng.choice((0, 0, 60, 4096)))
        groups.storage = storage
        groups.ms += 50
        groups.epochs.clear()
        groups.owned.clear()
        groups.open()
        finish_turn(groups.engine, at(groups.ms))
        expected = [comparable(value) for value in projected(groups.engine)]
        assert [comparable(record.value) for record in records_of(groups.engine, TOPIC)] == expected, seed
    assert events_of(groups.engine)


def comparable(value: bytes | None) -> dict[str, Any]:
    """An event without the one thing that a state checkpoint does not hold: when a rebalance under way began."""
    event: dict[str, Any] = json.loads(value or b"")
    event.pop("started_ms", None)
    event.pop("duration_ms", None)
    return event


def step(groups: Groups, rng: random.Random) -> None:
    group = f"g{rng.randrange(3)}"
    member = rng.choice("abc")
    groups.ms += rng.randrange(30)
    choice = rng.random()
    if choice < 0.15:
        groups.beat(group, member, epoch=-1)
    elif (group, member) not in groups.epochs:
        groups.beat(group, member, rng.choice([["t"], ["t", "u"]]), epoch=0)
    else:
        groups.beat(group, member, rng.choice([None, None, ["t"], ["u"]]))


def test_events_match_the_schema() -> None:
    path = Path(__file__).resolve().parents[3] / "schemas" / "records" / "json" / "GroupEvent.schema.json"
    schema = json.loads(path.read_text())
    types = {"string": str, "integer": int, "null": type(None)}
    kinds = {value for name, value in vars(group_cause).items() if name.isupper() and isinstance(value, str)}
    kinds -= set(group_cause.TRANSACTION_CAUSES)
    assert "member_left" in kinds and kinds <= set(schema["properties"]["cause"]["enum"])
    groups = Groups(MemoryStorage())
    story(groups)
    for event in events_of(groups.engine):
        is_end = event["event"] == "rebalance_finished"
        more = {"started_ms", "duration_ms"} if is_end else {"cause", "member", "detail"}
        assert set(event) == set(schema["required"]) | more
        for name, value in event.items():
            rule = schema["properties"][name]
            wanted = rule.get("type", [])
            wanted = [wanted] if isinstance(wanted, str) else wanted
            assert not wanted or isinstance(value, tuple(types[kind] for kind in wanted)), (name, value)
            assert value in rule.get("enum", [value]) and value == rule.get("const", value), (name, value)


def test_a_beginning_that_is_not_known_is_left_out() -> None:
    """Of a broker's classic group, or where compaction removed epochs: no time, rather than a wrong one."""
    event = GroupEvent("rebalance_finished", "g", "classic", 3, 1000, None, 1, 2, group_cause.NO_TIME, 7)
    path = Path(__file__).resolve().parents[3] / "schemas" / "records" / "json" / "GroupEvent.schema.json"
    assert set(event_document(event, 0)) == set(json.loads(path.read_text())["required"])


def test_events_wait_while_the_disk_is_full() -> None:
    groups = Groups(MemoryStorage())
    groups.topic("t", 4)
    groups.engine.set_disk_full(True)
    groups.beat("c", "a", ["t"])
    assert events_of(groups.engine) == []
    groups.engine.set_disk_full(False)
    groups.beat("c", "b", ["t"])
    groups.settle("c", "a", "b")
    assert [record.value for record in records_of(groups.engine, TOPIC)] == projected(groups.engine)
    assert len(events_of(groups.engine)) == 4


def test_too_much_that_waits_is_left_to_the_next_start() -> None:
    groups = Groups(MemoryStorage())
    groups.topic("t", 4)
    groups.engine.set_disk_full(True)
    groups.beat("c", "a", ["t"])
    groups.engine.group_events.events.has_overflowed = True
    groups.engine.set_disk_full(False)
    groups.beat("c", "b", ["t"])
    assert events_of(groups.engine) == []
    assert "group_events_stopped" in [fact.event for fact in groups.engine.data_plane.table.facts]
    groups.engine.stop()
    groups.open()
    finish_turn(groups.engine, at(groups.ms))
    assert [record.value for record in records_of(groups.engine, TOPIC)] == projected(groups.engine) != []


def test_events_that_a_client_removed_are_not_written_again() -> None:
    storage = ForgetfulStorage()
    groups = Groups(storage)
    story(groups)
    log = groups.engine.directory.get(TOPIC, 0)
    assert log is not None and log.end_offset > 0
    end = log.end_offset
    body = DeleteRecordsRequest([DeleteRecordsTopic(TOPIC, [DeleteRecordsPartition(0, -1)])], 5000)
    assert groups.ask(apis.DELETE_RECORDS, 2, body).topics[0].partitions[0].error_code == NONE
    groups.storage = storage.crash()
    groups.open()
    log = groups.engine.directory.get(TOPIC, 0)
    assert log is not None and (log.log_start_offset, log.end_offset) == (end, end)
    # What happens from now on is.
    groups.beat("g", "later", ["t"])
    assert log.end_offset > end
