"""The rebalances of a group, told from records, from events of the topic, and from both where compaction was."""

from __future__ import annotations

from typing import Any

from kcoord.core.cause import Cause
from kcoord.protocol.records.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from kcoord.protocol.records.consumer_group_member_metadata import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from kcoord.protocol.records.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from kcoord.protocol.records.consumer_group_target_assignment_metadata import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from kcoord.spark.jobs.rebalance_story import Rebalance, RebalanceStory
from tests.unit.cli.rig import assignment, subscription

TOPIC_ID = bytes(15) + b"\x01"


class Log:
    """Records of the group `g`, 10 ms apart, and the rebalances they tell of."""

    def __init__(self) -> None:
        self.story = RebalanceStory()
        self.offset = 0

    def add(self, key: Any, value: Any, cause: str = "") -> None:
        self.story.record(self.offset, self.offset * 10, key, value, Cause(cause, "m") if cause else None)
        self.offset += 1

    def member(self, name: str, instance: str = "", topics: tuple[str, ...] = ("t",)) -> None:
        value = ConsumerGroupMemberMetadataValue(
            instance_id=instance or None,
            client_id="c-" + name,
            client_host="/h",
            subscribed_topic_names=[*topics],
        )
        self.add(ConsumerGroupMemberMetadataKey("g", name), value)

    def epoch(self, epoch: int, cause: str = "", metadata_hash: int = 1) -> None:
        self.add(ConsumerGroupMetadataKey("g"), ConsumerGroupMetadataValue(epoch, metadata_hash), cause)

    def assigned(self, epoch: int) -> None:
        key = ConsumerGroupTargetAssignmentMetadataKey("g")
        self.add(key, ConsumerGroupTargetAssignmentMetadataValue(epoch))

    def current(self, name: str, epoch: int, *partitions: int, state: int = 0, pending: tuple[int, ...] = ()) -> None:
        owned = [TopicPartitions(TOPIC_ID, [*partitions])]
        giving_up = [TopicPartitions(TOPIC_ID, [*pending])] if pending else []
        value = ConsumerGroupCurrentMemberAssignmentValue(epoch, epoch - 1, state, owned, giving_up)
        self.add(ConsumerGroupCurrentMemberAssignmentKey("g", name), value)

    def remove(self, name: str) -> None:
        self.add(ConsumerGroupCurrentMemberAssignmentKey("g", name), None)
        self.add(ConsumerGroupMemberMetadataKey("g", name), None)

    def classic(self, generation: int, cause: str = "", **members: tuple[int, ...]) -> None:
        each = [
            MemberMetadata(
                name, client_id="c-" + name, client_host="/h", subscription=subscription("t"),
                assignment=assignment("t", *partitions),
            )
            for name, partitions in members.items()
        ]  # fmt: skip
        value = GroupMetadataValue("consumer", generation, "range", None, self.offset * 10, each)
        self.add(GroupMetadataKey("g"), value, cause)

    def two_members(self) -> None:
        """`a` alone with four partitions, then `b` gets two of them."""
        self.member("a")
        self.epoch(2)
        self.assigned(2)
        self.current("a", 2, 0, 1, 2, 3)
        self.member("b")
        self.epoch(3)
        self.assigned(3)
        self.current("b", 3, state=2)
        self.current("a", 2, 0, 1, state=1, pending=(2, 3))
        self.current("a", 3, 0, 1)
        self.current("b", 3, 2, 3)

    def summaries(self) -> list[tuple[Any, ...]]:
        return [summary(row) for row in self.story.finish()]


def summary(row: Rebalance) -> tuple[Any, ...]:
    """(epochs, ms, cause, members, partitions moved, who came, who went)"""
    took = None
    if row.finished_ms is not None and row.started_ms is not None:
        took = row.finished_ms - row.started_ms
    cause = row.causes[0][2] if row.causes else None
    why = None if cause is None else cause.kind
    changes = row.changes
    names: tuple[Any, ...] = (None, None, None)
    if changes is not None:
        came, went = ([one.member_id for one in some] for some in (changes.joined, changes.left))
        names = (changes.moved, came, went)
    return (row.from_epoch, row.to_epoch), took, why, (row.members_before, row.members_after), *names


def test_a_consumer_group_s_rebalances() -> None:
    log = Log()
    log.two_members()
    log.remove("b")
    log.epoch(4)
    log.assigned(4)
    log.current("a", 4, 0, 1, 2, 3)
    assert log.summaries() == [
        ((0, 2), 20, "member_joined", (0, 1), 0, ["a"], []),
        ((2, 3), 50, "member_joined", (1, 2), 2, ["b"], []),
        ((3, 4), 20, "member_left", (2, 1), 2, [], ["b"]),
    ]


def test_partitions_that_went_from_one_member_to_another() -> None:
    log = Log()
    log.classic(1, a=(0, 1), b=(2, 3))
    log.classic(2, a=(0, 2), b=(1, 3))
    log.classic(3, a=(0, 2), c=(1, 3))
    log.classic(4)
    log.classic(5, a=(0, 1, 2, 3))
    moved = [(row[0], row[4], row[5], row[6]) for row in log.summaries()]
    assert moved == [
        ((None, 1), None, None, None),  # whether it was the first one is not told
        ((1, 2), 2, [], []),
        ((2, 3), 2, ["c"], ["b"]),
        ((3, 4), 0, [], ["a", "c"]),
        ((4, 5), 0, ["a"], []),
    ]


def test_epochs_that_overtake_each_other_are_one_rebalance() -> None:
    log = Log()
    log.member("a")
    log.epoch(2, "member_joined")
    log.epoch(3, "topics_changed", metadata_hash=2)
    log.assigned(3)
    log.current("a", 3, 0)
    rows = log.story.finish()
    assert [summary(row) for row in rows] == [((0, 3), 30, "member_joined", (0, 1), 0, ["a"], [])]
    assert rows[0].epochs == 2
    assert [(epoch, at, cause and cause.kind, source) for epoch, at, cause, source in rows[0].causes] == [
        (2, 10, "member_joined", "record"), (3, 20, "topics_changed", "record")
    ]  # fmt: skip


def test_a_rebalance_that_is_not_over() -> None:
    log = Log()
    log.member("a")
    log.epoch(2)
    assert log.summaries() == [((0, 2), None, "member_joined", (0, None), 0, ["a"], [])]


def test_causes_that_no_record_has() -> None:
    log = Log()
    log.member("a", "static")
    log.epoch(2)
    log.member("a", "static", ("t", "u"))
    log.epoch(3)
    log.epoch(4, metadata_hash=2)
    log.remove("a")
    log.member("a2", "static", ("t", "u"))
    log.epoch(5, metadata_hash=2)
    log.epoch(6, metadata_hash=2)
    [row] = log.story.finish()
    assert [(epoch, cause and cause.kind, source) for epoch, _, cause, source in row.causes] == [
        (2, "member_joined", "derived"),
        (3, "subscription_changed", "derived"),
        (4, "topics_changed", "derived"),
        (5, "static_member_replaced", "derived"),
        (6, None, None),
    ]
    # Who comes back under the name of his place has neither come nor gone.
    assert row.changes is not None
    assert ([one.member_id for one in row.changes.joined], row.changes.left) == (["a"], [])


def test_a_group_that_changes_its_protocol_keeps_its_members() -> None:
    log = Log()
    log.classic(1, a=(0, 1))
    log.add(GroupMetadataKey("g"), None)
    log.member("a")
    log.member("b")
    log.epoch(2, "protocol_upgraded")
    log.assigned(2)
    log.current("a", 2, 0)
    log.current("b", 2, 1)
    rows = log.summaries()
    assert [(row[0], row[2], row[5], row[6]) for row in rows[1:]] == [((1, 2), "protocol_upgraded", ["b"], [])]


def test_a_broker_s_log_shows_changes_of_protocol() -> None:
    """A broker keeps the epoch when it upgrades a group."""
    log = Log()
    log.classic(1, a=(0, 1))
    log.add(GroupMetadataKey("g"), None)
    log.member("a")
    log.epoch(1)
    log.assigned(1)
    log.current("a", 1, 0, 1)
    log.remove("a")
    log.classic(2, a=(0, 1))
    rows = [(row[0], row[2], row[5], row[6]) for row in log.summaries()]
    assert rows[1:] == [((1, 1), "protocol_upgraded", [], []), ((1, 2), "protocol_downgraded", [], [])]


# ---- with the topic


def event(kind: str, epoch: int, offset: int, **more: Any) -> dict[str, Any]:
    return {
        "version": 1, "event": kind, "group": "g", "protocol": "consumer", "epoch": epoch, "time_ms": offset * 10,
        "members": 7, "partitions": 4, "offset": offset, **more,
    }  # fmt: skip


def test_the_topic_knows_what_compaction_took() -> None:
    """Of the records only the last ones are left: of epoch 5, and members whose records are older."""
    log = Log()
    log.member("a")
    log.story.event(event("epoch_changed", 4, 10, cause="session_timeout", member="x", detail="d"))
    log.story.event(event("rebalance_finished", 4, 12, started_ms=100))
    log.offset = 20
    log.epoch(5)
    log.story.event(event("epoch_changed", 5, 20, cause="member_left"))
    log.assigned(5)
    log.current("a", 5, 0)
    log.story.event(event("rebalance_finished", 5, 22, started_ms=200, members=1))
    assert log.summaries() == [
        ((0, 4), 20, "session_timeout", (7, 7), None, None, None),
        # `a` may have been there for long: nothing is said of who came.
        ((4, 5), 20, "member_left", (7, 1), None, None, None),
    ]


def test_where_the_topic_agrees_the_names_come_from_the_records() -> None:
    log = Log()
    log.member("a")
    log.epoch(2)
    log.story.event(event("epoch_changed", 2, 1, cause="member_joined", members=0))
    log.assigned(2)
    log.current("a", 2, 0)
    log.story.event(event("rebalance_finished", 2, 3, started_ms=10, members=1))
    rows = log.story.finish()
    assert [summary(row) for row in rows] == [((0, 2), 20, "member_joined", (0, 1), 0, ["a"], [])]
    assert rows[0].causes[0][3] == "events"


def test_after_the_topic_s_last_event_records_decide() -> None:
    log = Log()
    log.member("a")
    log.epoch(2)
    log.story.event(event("epoch_changed", 2, 1, cause="member_joined", members=0))
    log.assigned(2)
    log.current("a", 2, 0)
    log.remove("a")
    log.epoch(3)
    assert [(row[0], row[2], row[5], row[6]) for row in log.summaries()] == [
        ((0, 2), "member_joined", ["a"], []), ((2, 3), "member_left", [], ["a"])
    ]  # fmt: skip


def test_an_unknown_start_has_no_time() -> None:
    """A broker writes one record for each generation of a classic group, at its end."""
    log = Log()
    log.offset = 5
    log.classic(1, a=(0, 1))
    log.classic(2, "member_left", a=(0,))
    log.story.event(event("rebalance_finished", 3, 9, protocol="classic"))
    rows = log.story.finish()
    assert [(row.to_epoch, row.started_ms, row.finished_ms) for row in rows] == [
        (1, None, 50), (2, 60, 60), (3, None, 90)
    ]  # fmt: skip


def test_what_is_no_event_is_passed_over() -> None:
    log = Log()
    for more in ({"epoch": "2"}, {"epoch": 1 << 40}, {"time_ms": None}, {"offset": 1.5}, {"event": 3}):
        log.story.event(event("epoch_changed", 2, 1) | more)
    log.story.event({})
    assert log.summaries() == []
