"""Committed offsets without the rest of the coordinator: what is answered, what is stored, who waits for what."""

from __future__ import annotations

import pytest

from kcoord.core import choices
from kcoord.core.config import CoreConfig
from kcoord.core.groups.classic import STABLE
from kcoord.core.groups.records import TOMBSTONE_OVERHEAD_BYTES, tombstone_bytes
from kcoord.core.groups.store import GroupStore
from kcoord.core.hashing import coordinator_partition
from kcoord.core.offsets.commit import ILLEGAL_OFFSET_COMMIT, WARNED_CLIENTS_MAX, OffsetCommits
from kcoord.core.offsets.delete import STEP_ITEMS_MAX, OffsetDeletes
from kcoord.core.offsets.expiry import OffsetExpiry
from kcoord.core.offsets.fetch import METADATA_CHARS_PER_OFFSET, REPEATED_PARTITIONS_MAX, OffsetFetches
from kcoord.core.offsets.state import OffsetState
from kcoord.core.outcome import (
    OFFSETS_TOPIC,
    TIMER_TOPIC_OFFSETS,
    LogId,
    Now,
    Outcome,
    Request,
    TopicsDeleted,
)
from kcoord.core.topics.registry import TOPIC_NAME_CHARS_MAX, TopicRegistry
from kcoord.protocol import apis, errors
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kcoord.protocol.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from kcoord.protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey
from kcoord.protocol.records.legacy_offset_commit import LegacyOffsetCommitKey, LegacyOffsetCommitValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.remove_topic_record import RemoveTopicRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.wire.message import Message
from kcoord.wire.primitives import ZERO_UUID

WALL_MS = 1_600_000_000_000
ID_T = b"\x11" * 16
ID_U = b"\x22" * 16
DAY_MS = 86_400_000


class OffsetsRig:
    """Committed offsets with what they need, and an engine's minimum: replay what a handler returned."""

    def __init__(self, partitions: int = 1) -> None:
        self.config = CoreConfig()
        self.partitions = partitions
        self.log_ids = [LogId(OFFSETS_TOPIC, index) for index in range(partitions)]
        self.ends = [0] * partitions
        self.topics = TopicRegistry(self.config)
        self.groups = GroupStore(self.log_of)
        self.offsets = OffsetState(self.config, self.groups, self.topics, self.log_of)
        self.commits = OffsetCommits(self.offsets)
        self.fetches = OffsetFetches(self.offsets)
        self.deletes = OffsetDeletes(self.offsets)
        self.expiry = OffsetExpiry(self.offsets)
        self.now = Now(0, WALL_MS)
        self.requests = 0
        self.create("t", ID_T, 3)
        self.create("u", ID_U, 1)

    def log_of(self, group_id: str) -> LogId:
        return self.log_ids[coordinator_partition(group_id, self.partitions)]

    def create(self, name: str, topic_id: bytes, partitions: int) -> None:
        self.topics.replay_metadata(TopicRecord(name, topic_id), 0)
        for index in range(partitions):
            record = PartitionRecord(index, topic_id, [1], [1], [], [], 1, 0, 0)
            self.topics.replay_metadata(record, 0)

    def apply(self, outcome: Outcome) -> Outcome:
        for record in outcome.records:
            assert outcome.log is not None
            offset = self.ends[outcome.log.partition]
            self.ends[outcome.log.partition] += 1
            if isinstance(record.key, GroupMetadataKey):
                assert record.value is None
                self.groups.replay_group_metadata(record.key, None, offset, None, None)
            else:
                assert isinstance(record.key, OffsetCommitKey)
                assert record.value is None or isinstance(record.value, OffsetCommitValue)
                self.offsets.replay_offset_commit(record.key, record.value, offset)
        return outcome

    def pend(self, group: str, topic: str, partition: int, offset: int = 77, producer_id: int = 9) -> int:
        """A transaction commits this offset. Returns the offset of the record."""
        record = self.next_offset(group)
        key = OffsetCommitKey(group, topic, partition)
        value = OffsetCommitValue(offset, 3, "m", self.now.wall_ms)
        self.offsets.replay_transactional(self.log_of(group).partition, producer_id, key, value, record)
        return record

    def end(self, is_commit: bool, producer_id: int = 9, log_partition: int = 0) -> None:
        """The marker of the transaction."""
        offset = self.ends[log_partition]
        self.ends[log_partition] += 1
        self.offsets.replay_marker(log_partition, producer_id, is_commit, offset)

    def next_offset(self, group: str) -> int:
        partition = self.log_of(group).partition
        self.ends[partition] += 1
        return self.ends[partition] - 1

    def request(self, api_key: int, version: int, body: Message, client_id: str = "c") -> Request:
        self.requests += 1
        return Request(self.requests, 1, api_key, version, client_id, "/127.0.0.1", body)

    def commit(
        self, version: int, body: OffsetCommitRequest, client_id: str = "c"
    ) -> tuple[OffsetCommitResponse, Outcome]:
        request = self.request(apis.OFFSET_COMMIT, version, body, client_id)
        outcome = self.apply(self.commits.handle_offset_commit(request, body, self.now))
        response = outcome.replies[0].response
        assert isinstance(response, OffsetCommitResponse)
        return response, outcome

    def fetch(self, version: int, body: OffsetFetchRequest) -> tuple[OffsetFetchResponse, Outcome]:
        request = self.request(apis.OFFSET_FETCH, version, body)
        outcome = self.fetches.handle_offset_fetch(request, body)
        response = outcome.replies[0].response
        assert isinstance(response, OffsetFetchResponse)
        return response, outcome

    def delete(self, body: OffsetDeleteRequest) -> tuple[OffsetDeleteResponse, Outcome]:
        request = self.request(apis.OFFSET_DELETE, 0, body)
        outcome = self.apply(self.deletes.handle_offset_delete(request, body))
        response = outcome.replies[0].response
        assert isinstance(response, OffsetDeleteResponse)
        return response, outcome

    def advance(self, ms: int) -> None:
        self.now = Now(self.now.mono_ms + ms, self.now.wall_ms + ms)

    def expire(self) -> list[Outcome]:
        """One whole expiry pass."""
        outcomes = []
        timer = self.expiry.first_timer(Now(0, 0))
        while True:
            outcome = self.apply(self.expiry.handle_timer(timer, self.now))
            outcomes.append(outcome)
            due = [t for t in outcome.timers if t.deadline_ms <= self.now.mono_ms]
            if not due:
                return outcomes
            timer = due[0]


def asked(name: str, *partitions: int, topic_id: bytes = ZERO_UUID) -> OffsetCommitRequestTopic:
    return OffsetCommitRequestTopic(
        name, topic_id, [OffsetCommitRequestPartition(index, 10 + index) for index in partitions]
    )


def errors_of(response: OffsetCommitResponse) -> list[tuple[str, int, int]]:
    return [(t.name, p.partition_index, p.error_code) for t in response.topics for p in t.partitions]


def standalone(*topics: OffsetCommitRequestTopic, group: str = "g") -> OffsetCommitRequest:
    return OffsetCommitRequest(group, -1, "", None, -1, list(topics))


def all_of(group: str) -> OffsetFetchRequestGroup:
    return OffsetFetchRequestGroup(group, None, -1, None)


def test_a_standalone_commit_makes_a_simple_group_and_is_stored() -> None:
    rig = OffsetsRig()
    response, outcome = rig.commit(8, standalone(asked("t", 0, 1)))
    assert errors_of(response) == [("t", 0, 0), ("t", 1, 0)]
    assert [fact.event for fact in outcome.facts] == ["simple_group_created"]
    assert rig.groups.get("g") is not None
    value = outcome.records[0].value
    assert value == OffsetCommitValue(10, -1, "", WALL_MS, -1, ID_T)
    _, again = rig.commit(8, standalone(asked("t", 0)))
    assert not again.facts


@pytest.mark.parametrize(("version", "error"), [(8, errors.ILLEGAL_GENERATION), (9, errors.GROUP_ID_NOT_FOUND)])
def test_a_generation_of_an_unknown_group(version: int, error: int) -> None:
    rig = OffsetsRig()
    body = OffsetCommitRequest("g", 1, "m", None, -1, [asked("x", 0), asked("t", 0)])
    response, outcome = rig.commit(version, body)
    assert errors_of(response) == [("x", 0, errors.UNKNOWN_TOPIC_OR_PARTITION), ("t", 0, error)]
    assert not outcome.records
    assert rig.groups.get("g") is None


def test_refusals_by_topic_come_first_and_take_up_their_topics_other_partitions() -> None:
    rig = OffsetsRig()
    response, outcome = rig.commit(8, standalone(asked("u", 0), asked("t", 0, 9, 1), asked("x", 5)))
    assert errors_of(response) == [
        ("t", 9, errors.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 0, 0),
        ("t", 1, 0),
        ("x", 5, errors.UNKNOWN_TOPIC_OR_PARTITION),
        ("u", 0, 0),
    ]
    assert len(outcome.records) == 3


def test_negative_partitions_do_not_exist() -> None:
    rig = OffsetsRig()
    response, _ = rig.commit(8, standalone(asked("t", -1)))
    assert errors_of(response) == [("t", -1, errors.UNKNOWN_TOPIC_OR_PARTITION)]


def test_nothing_asked_is_nothing_answered() -> None:
    rig = OffsetsRig()
    assert rig.commit(8, standalone())[0].topics == []
    assert rig.commit(8, standalone(OffsetCommitRequestTopic("t")))[0].topics == []
    assert rig.groups.get("g") is None


def test_topic_ids_of_version_10() -> None:
    rig = OffsetsRig()
    unknown = b"\x33" * 16
    body = standalone(asked("", 0, topic_id=ID_T), asked("", 0, topic_id=unknown))
    response, outcome = rig.commit(10, body)
    assert [(t.topic_id, t.partitions[0].error_code) for t in response.topics] == [
        (unknown, errors.UNKNOWN_TOPIC_ID),
        (ID_T, errors.NONE),
    ]
    key = outcome.records[0].key
    assert key == OffsetCommitKey("g", "t", 0)


def test_metadata_is_measured_in_utf16_units_per_partition() -> None:
    rig = OffsetsRig()
    rig.config.offset_metadata_max_bytes = 4
    parts = [
        OffsetCommitRequestPartition(0, 1, -1, "abcd"),
        OffsetCommitRequestPartition(1, 1, -1, "abcde"),
        OffsetCommitRequestPartition(2, 1, -1, "a😀😀"),
    ]
    response, outcome = rig.commit(8, standalone(OffsetCommitRequestTopic("t", ZERO_UUID, parts)))
    too_large = errors.OFFSET_METADATA_TOO_LARGE
    assert errors_of(response) == [("t", 0, 0), ("t", 1, too_large), ("t", 2, too_large)]
    assert len(outcome.records) == 1
    # KAFKA-16371: what was refused leaves nothing behind.
    assert rig.offsets.count == 1


def test_null_metadata_is_stored_as_empty() -> None:
    rig = OffsetsRig()
    part = OffsetCommitRequestPartition(0, 1, 7, None)
    _, outcome = rig.commit(8, standalone(OffsetCommitRequestTopic("t", ZERO_UUID, [part])))
    assert outcome.records[0].value == OffsetCommitValue(1, 7, "", WALL_MS, -1, ID_T)


def test_a_retention_time_becomes_an_expiry_time_and_costs_epoch_and_id() -> None:
    rig = OffsetsRig()
    body = OffsetCommitRequest("g", -1, "", None, 5000, [asked("t", 0)])
    _, outcome = rig.commit(4, body)
    assert outcome.records[0].value == OffsetCommitValue(10, -1, "", WALL_MS, WALL_MS + 5000, ZERO_UUID)
    body = OffsetCommitRequest("g", -1, "", None, 2**63 - 1, [asked("t", 0)])
    _, outcome = rig.commit(4, body)
    assert outcome.records[0].value == OffsetCommitValue(10, -1, "", WALL_MS, 2**63 - 1, ZERO_UUID)


# --- KIP-289 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_old_versions_may_commit_for_the_empty_group_and_are_warned_once_per_client(version: int) -> None:
    rig = OffsetsRig()
    response, outcome = rig.commit(version, standalone(asked("t", 0), group=""))
    assert errors_of(response) == [("t", 0, 0)]
    assert outcome.facts[0].event == "empty_group_id_commit"
    assert outcome.facts[0].fields["accepted"] is True
    _, again = rig.commit(version, standalone(asked("t", 0), group=""))
    assert not again.facts
    _, other = rig.commit(version, standalone(asked("t", 0), group=""), client_id="other")
    assert [fact.event for fact in other.facts] == ["empty_group_id_commit"]


def test_warnings_about_the_empty_group_are_bounded() -> None:
    rig = OffsetsRig()
    facts = 0
    for index in range(WARNED_CLIENTS_MAX + 10):
        _, outcome = rig.commit(2, standalone(asked("t", 0), group=""), client_id=f"c{index}")
        facts += sum(fact.event == "empty_group_id_commit" for fact in outcome.facts)
    assert facts == WARNED_CLIENTS_MAX


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        (choices.EMPTY_GROUP_INVALID_GROUP_ID, errors.INVALID_GROUP_ID),
        (choices.EMPTY_GROUP_ILLEGAL_OFFSET_COMMIT, ILLEGAL_OFFSET_COMMIT),
        (choices.EMPTY_GROUP_ALLOW, errors.NONE),
    ],
)
@pytest.mark.parametrize("version", [4, 9])
def test_the_empty_group_from_version_4(mode: str, error: int, version: int) -> None:
    rig = OffsetsRig()
    rig.config.empty_group_id_commit = mode
    response, outcome = rig.commit(version, standalone(asked("t", 0), asked("u", 0), group=""))
    assert errors_of(response) == [("t", 0, error), ("u", 0, error)]
    assert bool(outcome.records) is (error == errors.NONE)


def test_fetching_for_the_empty_group_is_fetching() -> None:
    rig = OffsetsRig()
    rig.commit(2, standalone(asked("t", 0), group=""))
    response, _ = rig.fetch(5, OffsetFetchRequest("", None))
    assert [(t.name, t.partitions[0].committed_offset) for t in response.topics] == [("t", 10)]
    response, _ = rig.fetch(10, OffsetFetchRequest("", None, [all_of("")]))
    assert response.groups[0].topics[0].topic_id == ID_T


# --- OffsetFetch -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 5, 7])
def test_fetch_of_what_is_unknown_is_no_error(version: int) -> None:
    rig = OffsetsRig()
    body = OffsetFetchRequest("nobody", [OffsetFetchRequestTopic("t", [0]), OffsetFetchRequestTopic("x", [7])])
    response, _ = rig.fetch(version, body)
    assert response.error_code == 0
    parts = [(t.name, p) for t in response.topics for p in t.partitions]
    assert [(name, p.partition_index) for name, p in parts] == [("t", 0), ("x", 7)]
    for _, p in parts:
        assert (p.committed_offset, p.committed_leader_epoch, p.metadata, p.error_code) == (-1, -1, "", 0)


def test_an_unknown_group_has_no_offsets() -> None:
    rig = OffsetsRig()
    response, _ = rig.fetch(2, OffsetFetchRequest("nobody", None))
    assert (response.topics, response.error_code) == ([], 0)


def test_several_groups_at_once() -> None:
    rig = OffsetsRig(partitions=4)
    for group in ("a", "b"):
        rig.commit(8, standalone(asked("t", 0), group=group))
    groups = [all_of(name) for name in ("a", "nobody", "b")]
    response, outcome = rig.fetch(9, OffsetFetchRequest("", None, groups))
    assert [(g.group_id, len(g.topics), g.error_code) for g in response.groups] == [
        ("a", 1, 0),
        ("nobody", 0, 0),
        ("b", 1, 0),
    ]
    reply = outcome.replies[0]
    # The last record of all logs: commits are one sequence, so it stands for those before it.
    assert reply.wait_log is rig.log_of("b")


def test_an_answer_waits_for_its_group_and_no_other() -> None:
    rig = OffsetsRig()
    rig.commit(8, standalone(asked("t", 0), group="a"))
    rig.commit(8, standalone(asked("t", 0), group="b"))
    _, outcome = rig.fetch(5, OffsetFetchRequest("a", None))
    assert (outcome.replies[0].wait_log, outcome.replies[0].wait_offset) == (rig.log_ids[0], 1)
    _, outcome = rig.fetch(5, OffsetFetchRequest("nobody", None))
    assert (outcome.replies[0].wait_log, outcome.replies[0].wait_offset) == (rig.log_ids[0], 2)


def test_topic_ids_in_a_fetch() -> None:
    rig = OffsetsRig()
    rig.commit(8, standalone(asked("t", 0)))
    unknown = b"\x33" * 16
    topics = [OffsetFetchRequestTopics("", unknown, [0, 1]), OffsetFetchRequestTopics("", ID_T, [0])]
    response, _ = rig.fetch(10, OffsetFetchRequest("", None, [OffsetFetchRequestGroup("g", None, -1, topics)]))
    answers = response.groups[0].topics
    assert [(t.topic_id, [(p.committed_offset, p.error_code) for p in t.partitions]) for t in answers] == [
        (ID_T, [(10, 0)]),
        (unknown, [(-1, errors.UNKNOWN_TOPIC_ID), (-1, errors.UNKNOWN_TOPIC_ID)]),
    ]


def test_offsets_of_an_earlier_topic_of_the_same_name_are_not_shown_by_id() -> None:
    rig = OffsetsRig()
    rig.commit(8, standalone(asked("t", 0)))
    rig.topics.replay_metadata(RemoveTopicRecord(ID_T), 0)
    by_name, _ = rig.fetch(9, OffsetFetchRequest("", None, [all_of("g")]))
    assert by_name.groups[0].topics[0].name == "t"
    all_by_id, _ = rig.fetch(10, OffsetFetchRequest("", None, [all_of("g")]))
    assert all_by_id.groups[0].topics == []
    new_id = b"\x44" * 16
    rig.create("t", new_id, 1)
    topics = [OffsetFetchRequestTopics("", new_id, [0])]
    response, _ = rig.fetch(10, OffsetFetchRequest("", None, [OffsetFetchRequestGroup("g", None, -1, topics)]))
    assert response.groups[0].topics[0].partitions[0].committed_offset == -1


def test_offsets_of_open_transactions_are_unstable_for_those_who_ask() -> None:
    rig = OffsetsRig()
    rig.commit(8, standalone(asked("t", 0, 1)))
    rig.pend("g", "t", 1)
    response, _ = rig.fetch(7, OffsetFetchRequest("g", None, None, True))
    unstable = errors.UNSTABLE_OFFSET_COMMIT
    assert [(p.committed_offset, p.error_code) for p in response.topics[0].partitions] == [
        (10, 0),
        (-1, unstable),
    ]
    response, _ = rig.fetch(7, OffsetFetchRequest("g", None))
    assert [(p.committed_offset, p.error_code) for p in response.topics[0].partitions] == [(10, 0), (11, 0)]
    body = OffsetFetchRequest("", None, [all_of("g")], True)
    response, _ = rig.fetch(9, body)
    assert [p.error_code for p in response.groups[0].topics[0].partitions] == [0, unstable]


# --- replay ----------------------------------------------------------------------------------------------------


def test_replay_keeps_expiry_of_value_version_1_and_none_of_others() -> None:
    """KAFKA-8069: an expiry time taken from records that have none made everything expire at once."""
    rig = OffsetsRig()
    rig.offsets.replay_offset_commit(OffsetCommitKey("g", "t", 0), OffsetCommitValue(1, -1, "", 5, 99), 7)
    rig.offsets.replay_offset_commit(OffsetCommitKey("g", "t", 1), OffsetCommitValue(1, 3, "m", 5), 8)
    first = rig.offsets.get("g", "t", 0)
    second = rig.offsets.get("g", "t", 1)
    assert first is not None and second is not None
    assert (first.expire_timestamp_ms, first.record_offset) == (99, 7)
    assert (second.expire_timestamp_ms, second.leader_epoch, second.metadata) == (-1, 3, "m")


def test_replay_of_legacy_keys() -> None:
    rig = OffsetsRig()
    key = LegacyOffsetCommitKey("g", "t", 0)
    rig.offsets.replay_legacy_offset_commit(key, LegacyOffsetCommitValue(4, "m", 5), 0)
    stored = rig.offsets.get("g", "t", 0)
    assert stored is not None
    assert (stored.committed_offset, stored.metadata, stored.leader_epoch) == (4, "m", -1)
    rig.offsets.replay_legacy_offset_commit(key, None, 1)
    assert rig.offsets.count == 0


def test_replay_of_a_tombstone_for_what_compaction_removed() -> None:
    rig = OffsetsRig()
    rig.offsets.replay_offset_commit(OffsetCommitKey("g", "t", 0), None, 3)
    assert rig.groups.get("g") is None
    rig.offsets.replay_offset_commit(OffsetCommitKey("g", "t", 0), OffsetCommitValue(1), 4)
    rig.offsets.replay_offset_commit(OffsetCommitKey("g", "t", 1), None, 5)
    rig.offsets.replay_offset_commit(OffsetCommitKey("g", "u", 0), None, 6)
    assert rig.offsets.count == 1
    assert rig.offsets.has_offsets("g")


def test_digest_does_not_depend_on_the_order_of_keys() -> None:
    one, two = OffsetsRig(), OffsetsRig()
    records = [(OffsetCommitKey("g", "t", i), OffsetCommitValue(i)) for i in range(3)]
    for offset, (key, value) in enumerate(records):
        one.offsets.replay_offset_commit(key, value, offset)
    for offset, (key, value) in reversed(list(enumerate(records))):
        two.offsets.replay_offset_commit(key, value, offset)
    assert one.offsets.digest_lines() == two.offsets.digest_lines()
    assert len(one.offsets.digest_lines()) == 3


# --- OffsetDelete and deleted topics ---------------------------------------------------------------------------


def test_offset_delete() -> None:
    rig = OffsetsRig()
    rig.commit(8, standalone(asked("t", 0, 1), asked("u", 0)))
    body = OffsetDeleteRequest(
        "g",
        [
            OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(i) for i in (0, 2, 9)]),
            OffsetDeleteRequestTopic("x", [OffsetDeleteRequestPartition(0)]),
        ],
    )
    response, outcome = rig.delete(body)
    answers = [(t.name, p.partition_index, p.error_code) for t in response.topics for p in t.partitions]
    unknown = errors.UNKNOWN_TOPIC_OR_PARTITION
    assert answers == [("t", 9, unknown), ("t", 0, 0), ("t", 2, 0), ("x", 0, unknown)]
    assert [(r.key, r.value) for r in outcome.records] == [(OffsetCommitKey("g", "t", 0), None)]
    assert rig.offsets.count == 2


def test_offset_delete_of_groups_that_are_none() -> None:
    rig = OffsetsRig()
    assert rig.delete(OffsetDeleteRequest(""))[0].error_code == errors.INVALID_GROUP_ID
    assert rig.delete(OffsetDeleteRequest("nobody"))[0].error_code == errors.GROUP_ID_NOT_FOUND


def test_a_group_of_another_type_protects_its_offsets() -> None:
    rig = OffsetsRig()
    group = rig.groups.get_or_create("g")
    group.protocol_type = "connect"
    group.state = STABLE
    assert rig.delete(OffsetDeleteRequest("g"))[0].error_code == errors.NON_EMPTY_GROUP


def test_offsets_go_with_their_topic_log_by_log() -> None:
    rig = OffsetsRig(partitions=4)
    groups = [f"group-{index}" for index in range(8)]
    for group in groups:
        rig.commit(8, standalone(asked("t", 0, 1), asked("u", 0), group=group))
    rig.topics.replay_metadata(RemoveTopicRecord(ID_T), 0)
    event = TopicsDeleted({ID_T: "t"})
    steps = 0
    pending = [event]
    while pending:
        outcome = rig.apply(rig.deletes.handle_topics_deleted(pending.pop(), rig.now))
        assert outcome.log is not None
        for record in outcome.records:
            assert isinstance(record.key, OffsetCommitKey)
            assert rig.log_of(record.key.group) is outcome.log
        pending += [e for e in outcome.follow_ups if isinstance(e, TopicsDeleted)]
        steps += 1
    assert steps == len({rig.log_of(group).partition for group in groups})
    assert rig.offsets.count == 8
    assert not rig.deletes.handle_topics_deleted(event, rig.now).records


def test_offsets_of_deleted_topics_go_in_bounded_steps() -> None:
    rig = OffsetsRig(partitions=2)
    count = STEP_ITEMS_MAX
    for number in range(count // 2):
        rig.commit(8, standalone(asked("t", 0, 1), asked("u", 0), group=f"group-{number}"))
    rig.topics.replay_metadata(RemoveTopicRecord(ID_T), 0)
    rig.topics.replay_metadata(RemoveTopicRecord(ID_U), 0)
    tombstones = []
    outcome = rig.apply(rig.deletes.handle_topics_deleted(TopicsDeleted({ID_T: "t", ID_U: "u"}), rig.now))
    while True:
        in_turn = len(outcome.records)
        while outcome.follow_ups:
            (event,) = outcome.follow_ups
            assert isinstance(event, TopicsDeleted)
            outcome = rig.apply(rig.deletes.handle_topics_deleted(event, rig.now))
            in_turn += len(outcome.records)
        tombstones.append(in_turn)
        if not outcome.timers:
            break
        assert [timer.kind for timer in outcome.timers] == [TIMER_TOPIC_OFFSETS]
        outcome = rig.apply(rig.deletes.handle_timer(rig.now))
    assert sum(tombstones) == 3 * count // 2 and max(tombstones) <= STEP_ITEMS_MAX
    assert rig.offsets.count == 0 and not rig.offsets.groups_by_topic


def test_a_repeated_topic_deletion_spares_the_next_topic_of_that_name() -> None:
    rig = OffsetsRig()
    rig.topics.replay_metadata(RemoveTopicRecord(ID_T), 0)
    rig.create("t", b"\x44" * 16, 3)
    rig.commit(8, standalone(asked("t", 0)))
    rig.commit(4, OffsetCommitRequest("g", -1, "", None, 5000, [asked("t", 1)]))
    rig.pend("g", "t", 2)
    rig.end(True)
    event = TopicsDeleted({ID_T: "t"}, is_repeated=True)
    assert not rig.deletes.handle_topics_deleted(event, rig.now).records
    # It spares them only after a restart. While the server runs, none of that topic is committed before the end.
    rig.topics.replay_metadata(RemoveTopicRecord(b"\x44" * 16), 0)
    rig.create("t", b"\x55" * 16, 3)
    # Committed for the newest topic, while an older transaction is open.
    rig.pend("h", "t", 0, producer_id=8)
    rig.commit(8, standalone(asked("t", 0), group="h"))
    event = TopicsDeleted({b"\x44" * 16: "t"})
    keys = [record.key for record in rig.apply(rig.deletes.handle_topics_deleted(event, rig.now)).records]
    # The one with a retention time may be of the newest topic.
    assert keys == [OffsetCommitKey("g", "t", 0), OffsetCommitKey("g", "t", 2)]
    assert rig.offsets.get("h", "t", 0) is not None


def test_offsets_of_deleted_topics_go_in_steps_that_fit_into_a_batch() -> None:
    rig = OffsetsRig()
    group = "\u4e16" * 200
    for number in range(5):
        rig.commit(8, standalone(asked("t", 0, 1, 2), group=f"{group}{number}"))
    rig.topics.replay_metadata(RemoveTopicRecord(ID_T), 0)
    # Half a batch has room for four tombstones.
    rig.config.coordinator_batch_bytes_max = 8 * tombstone_bytes(f"{group}0", "t")
    sizes = []
    outcome = rig.apply(rig.deletes.handle_topics_deleted(TopicsDeleted({ID_T: "t"}), rig.now))
    while True:
        sizes.append(len(outcome.records))
        if not outcome.timers:
            break
        outcome = rig.apply(rig.deletes.handle_timer(rig.now))
    assert sizes == [4, 4, 4, 3]
    assert rig.offsets.count == 0


def test_a_deleted_topic_counts_as_busy_from_its_record_on() -> None:
    rig = OffsetsRig()
    rig.commit(8, standalone(asked("t", 0)))
    rig.topics.replay_metadata(RemoveTopicRecord(ID_T), 0)
    assert rig.deletes.is_busy
    assert rig.apply(rig.deletes.handle_topics_deleted(TopicsDeleted({ID_T: "t"}), rig.now)).records
    assert not rig.deletes.is_busy


def test_groups_with_long_ids_expire_in_steps_that_fit_into_a_batch() -> None:
    rig = OffsetsRig()
    for number in range(6):
        rig.commit(8, standalone(asked("t", 0), group="g" * 999 + str(number)))
    rig.advance(8 * DAY_MS)
    # Each has two tombstones.
    rig.config.coordinator_batch_bytes_max = 5 * (1000 + TOMBSTONE_OVERHEAD_BYTES + TOPIC_NAME_CHARS_MAX)
    steps = [len(outcome.records) for outcome in rig.expire()]
    assert steps == [4, 4, 4]
    assert not list(rig.groups.groups)


def test_tombstones_of_a_group_cover_offsets_of_open_transactions() -> None:
    rig = OffsetsRig()
    rig.commit(8, standalone(asked("t", 0)))
    rig.pend("g", "t", 0)
    rig.pend("g", "t", 2)
    assert len(rig.offsets.tombstones_of("g", 1)) == 1
    keys = [record.key for record in rig.offsets.tombstones_of("g", 100)]
    assert keys == [OffsetCommitKey("g", "t", 0), OffsetCommitKey("g", "t", 2)]


# --- expiry (KIP-211) ------------------------------------------------------------------------------------------


def test_standalone_offsets_expire_after_their_commit_one_by_one() -> None:
    rig = OffsetsRig()
    rig.commit(8, standalone(asked("t", 0)))
    rig.advance(DAY_MS)
    rig.commit(8, standalone(asked("t", 1)))
    rig.advance(6 * DAY_MS - 1)
    assert not rig.expire()[0].records
    rig.advance(1)
    outcome = rig.expire()[0]
    assert [r.key for r in outcome.records] == [OffsetCommitKey("g", "t", 0)]
    rig.advance(DAY_MS)
    outcome = rig.expire()[0]
    assert [r.key for r in outcome.records] == [OffsetCommitKey("g", "t", 1), GroupMetadataKey("g")]
    assert outcome.facts[0].fields == {"group_id": "g", "expired_offsets": 1, "group_deleted": True}
    assert rig.groups.get("g") is None
    assert not rig.expire()[0].records


def test_what_a_batch_cannot_hold_expires_in_several_steps() -> None:
    rig = OffsetsRig()
    for topic in ("t", "u"):
        rig.commit(8, standalone(asked(topic, 0)))
    # Half a batch has rig for two tombstones.
    rig.config.coordinator_batch_bytes_max = 4 * (TOMBSTONE_OVERHEAD_BYTES + 4 + TOPIC_NAME_CHARS_MAX)
    rig.commit(8, standalone(asked("t", 1)))
    rig.advance(8 * DAY_MS)
    steps = [[type(record.key) for record in outcome.records] for outcome in rig.expire()]
    assert steps == [[OffsetCommitKey] * 2, [OffsetCommitKey, GroupMetadataKey]]
    assert rig.groups.get("g") is None


def test_an_expiry_time_of_its_own_counts_alone() -> None:
    rig = OffsetsRig()
    rig.commit(4, OffsetCommitRequest("g", -1, "", None, 1000, [asked("t", 0)]))
    rig.advance(999)
    assert not rig.expire()[0].records
    rig.advance(1)
    assert len(rig.expire()[0].records) == 2


def test_offsets_of_open_transactions_keep_offset_and_group() -> None:
    """KAFKA-19163: a group with nothing but offsets of an open transaction is not deleted."""
    rig = OffsetsRig()
    rig.commit(8, standalone(asked("t", 0)))
    rig.pend("g", "t", 0)
    rig.advance(8 * DAY_MS)
    assert not rig.expire()[0].records
    rig.end(False)
    rig.pend("g", "t", 2)
    assert [r.key for r in rig.expire()[0].records] == [OffsetCommitKey("g", "t", 0)]
    assert rig.groups.get("g") is not None


def test_a_pass_over_several_logs_writes_one_log_at_a_time() -> None:
    rig = OffsetsRig(partitions=4)
    for index in range(8):
        rig.commit(8, standalone(asked("t", 0), group=f"group-{index}"))
    rig.advance(8 * DAY_MS)
    for outcome in rig.expire():
        for record in outcome.records:
            key = record.key
            assert isinstance(key, OffsetCommitKey | GroupMetadataKey)
            assert rig.log_of(key.group) is outcome.log
    assert rig.offsets.count == 0
    assert not rig.groups.groups


def test_a_pass_arms_the_next_one() -> None:
    rig = OffsetsRig()
    timer = rig.expiry.first_timer(rig.now)
    assert timer.deadline_ms == rig.config.offsets_retention_check_interval_ms
    rig.advance(timer.deadline_ms)
    outcome = rig.expiry.handle_timer(timer, rig.now)
    assert [t.deadline_ms for t in outcome.timers] == [2 * timer.deadline_ms]


# ---- what one request may cost


def _fetch_of(version: int, group: str, indexes: list[int], times: int = 1) -> OffsetFetchRequest:
    if version < 8:
        return OffsetFetchRequest(group, [OffsetFetchRequestTopic("t", indexes)] * times)
    topics = [OffsetFetchRequestTopics("t", ID_T, list(indexes)) for _ in range(times)]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=topics)])


@pytest.mark.parametrize("version", [7, 8, 10])
def test_a_large_fetch_answers_each_partition_once(version: int) -> None:
    """A small one answers what it is asked, as a broker does."""
    rig = OffsetsRig()

    def answered(indexes: list[int], times: int = 1) -> list[int]:
        response, _ = rig.fetch(version, _fetch_of(version, "g", indexes, times))
        topics = response.topics if version < 8 else response.groups[0].topics
        return [p.partition_index for topic in topics for p in topic.partitions]

    assert answered([1, 0, 1], 2) == [1, 0, 1] * 2
    many = [number % 3 for number in range(REPEATED_PARTITIONS_MAX + 1)]
    assert answered(many, 2) == [0, 1, 2]


def test_groups_beyond_a_number_of_offsets_are_asked_for_again() -> None:
    rig = OffsetsRig()
    rig.fetches.offsets_max = 4
    partitions = [OffsetCommitRequestPartition(index, 7, -1, "") for index in range(3)]
    for group in ("one", "two"):
        rig.commit(8, OffsetCommitRequest(group, -1, "", None, -1, [OffsetCommitRequestTopic("t", ID_T, partitions)]))
    asked = [OffsetFetchRequestGroup(name, topics=None) for name in ("one", "one", "two", "none")]
    response, _ = rig.fetch(8, OffsetFetchRequest(groups=asked))
    found = [(group.group_id, group.error_code, len(group.topics)) for group in response.groups]
    later = errors.COORDINATOR_LOAD_IN_PROGRESS
    assert found == [("one", errors.NONE, 1), ("one", later, 0), ("two", later, 0), ("none", errors.NONE, 0)]


def test_metadata_counts_as_offsets() -> None:
    rig = OffsetsRig()
    rig.fetches.offsets_max = 10
    text = "m" * 9 * METADATA_CHARS_PER_OFFSET
    rig.config.offset_metadata_max_bytes = len(text)
    partition = [OffsetCommitRequestPartition(0, 7, -1, text)]
    rig.commit(8, OffsetCommitRequest("g", -1, "", None, -1, [OffsetCommitRequestTopic("t", ID_T, partition)]))
    asked = [OffsetFetchRequestGroup("g", topics=None) for _ in range(3)]
    response, _ = rig.fetch(8, OffsetFetchRequest(groups=asked))
    later = errors.COORDINATOR_LOAD_IN_PROGRESS
    assert [group.error_code for group in response.groups] == [errors.NONE, later, later]
