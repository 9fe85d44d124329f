"""What the records of groups tell: rebalances that overtake each other, groups that change their protocol or go."""

from __future__ import annotations

from typing import Any

from kcoord.core.cause import (
    MEMBER_JOINED,
    MEMBER_LEFT,
    NO_TIME,
    PROTOCOL_DOWNGRADED,
    PROTOCOL_UPGRADED,
    Cause,
)
from kcoord.core.groups.members import STATIC_LEAVE_EPOCH
from kcoord.history.timeline import REBALANCE_FINISHED, GroupTimeline
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

UNREVOKED = 1


class Log:
    """Records of the group `g`, and what they led to, a line each."""

    def __init__(self) -> None:
        self.timeline = GroupTimeline()
        self.offset = 0
        self.ms = 0

    def add(self, key: Any, value: Any, cause: Cause | None = None) -> None:
        self.timeline.replay(self.offset, self.ms, key, value, cause)
        self.offset += 1

    def member(self, name: str, group: str = "g") -> None:
        self.add(ConsumerGroupMemberMetadataKey(group, name), ConsumerGroupMemberMetadataValue())

    def epoch(self, epoch: int, cause: str = MEMBER_JOINED, group: str = "g") -> None:
        self.add(ConsumerGroupMetadataKey(group), ConsumerGroupMetadataValue(epoch), Cause(cause))

    def assigned(self, epoch: int, cause: Cause | None = None) -> None:
        key = ConsumerGroupTargetAssignmentMetadataKey("g")
        self.add(key, ConsumerGroupTargetAssignmentMetadataValue(epoch), cause)

    def current(self, name: str, epoch: int, partitions: int, state: int = 0) -> None:
        owned = [TopicPartitions(bytes(16), list(range(partitions)))]
        value = ConsumerGroupCurrentMemberAssignmentValue(epoch, epoch - 1, state, owned)
        self.add(ConsumerGroupCurrentMemberAssignmentKey("g", name), value)

    def remove(self, name: str) -> None:
        self.add(ConsumerGroupCurrentMemberAssignmentKey("g", name), None)
        self.add(ConsumerGroupMemberMetadataKey("g", name), None)

    def classic(self, generation: int, members: int, cause: Cause | None = None) -> None:
        held = b"\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\0\0\0\0"
        each = [MemberMetadata(f"m{i}", assignment=held) for i in range(members)]
        value = GroupMetadataValue("consumer", generation, "range", None, self.ms, each)
        self.add(GroupMetadataKey("g"), value, cause)

    def take(self) -> list[str]:
        lines = []
        for event in self.timeline.take():
            text = f"{event.group} {event.protocol} {event.epoch} at {event.time_ms}"
            if event.event == REBALANCE_FINISHED:
                since = "?" if event.started_ms == NO_TIME else event.started_ms
                lines.append(f"{text} since {since}: {event.members} have {event.partitions}")
            else:
                cause = "" if event.cause is None else event.cause.kind
                lines.append(f"{text} {cause} after {event.members} had {event.partitions}")
        return lines


def joined(log: Log) -> None:
    """`a` has everything in epoch 2."""
    log.member("a")
    log.epoch(2)
    log.assigned(2)
    log.current("a", 2, 4)


def test_a_rebalance_is_over_when_all_are_where_they_should_be() -> None:
    log = Log()
    joined(log)
    assert log.take() == [
        "g consumer 2 at 0 member_joined after 0 had 0",
        "g consumer 2 at 0 since 0: 1 have 4",
    ]
    log.ms = 10
    log.member("b")
    log.epoch(3)
    log.assigned(3)
    log.current("b", 3, 0, state=2)
    log.ms = 20
    log.current("a", 2, 4, UNREVOKED)
    assert log.take() == ["g consumer 3 at 10 member_joined after 1 had 4"]
    log.ms = 30
    log.current("a", 3, 2)
    assert log.take() == []
    log.ms = 40
    log.current("b", 3, 2)
    log.current("b", 3, 2)
    assert log.take() == ["g consumer 3 at 40 since 10: 2 have 4"]


def test_an_epoch_that_is_overtaken_counts_as_the_beginning() -> None:
    log = Log()
    joined(log)
    log.take()
    log.ms = 10
    log.member("b")
    log.epoch(3)
    log.current("b", 2, 0)
    log.ms = 50
    log.remove("b")
    log.epoch(4, MEMBER_LEFT)
    log.assigned(4)
    log.current("a", 4, 4)
    assert log.take() == [
        "g consumer 3 at 10 member_joined after 1 had 4",
        "g consumer 4 at 50 member_left after 2 had 4",
        "g consumer 4 at 50 since 10: 1 have 4",
    ]


def test_the_last_member_leaves_an_empty_group_that_is_done() -> None:
    log = Log()
    joined(log)
    log.take()
    log.remove("a")
    log.epoch(3, MEMBER_LEFT)
    assert log.take() == [
        "g consumer 3 at 0 member_left after 1 had 4",
        "g consumer 3 at 0 since 0: 0 have 0",
    ]


def test_a_static_member_that_is_away_delays_no_rebalance() -> None:
    log = Log()
    joined(log)
    log.member("s")
    log.epoch(3)
    log.current("s", 3, 2)
    log.current("s", STATIC_LEAVE_EPOCH, 2)
    log.take()
    log.assigned(3)
    log.current("a", 3, 2)
    assert log.take() == ["g consumer 3 at 0 since 0: 2 have 4"]


def test_static_members_replace_each_other_without_an_epoch() -> None:
    log = Log()
    joined(log)
    log.remove("a")
    log.member("a2")
    log.current("a2", 2, 4)
    log.take()
    log.epoch(3)
    assert log.take() == ["g consumer 3 at 0 member_joined after 1 had 4"]


def test_another_assignor_is_an_event_besides_the_epoch() -> None:
    log = Log()
    joined(log)
    log.take()
    log.epoch(3, "subscription_changed")
    log.assigned(3, Cause("assignor_changed", "a", "uniform -> range"))
    events = log.timeline.take()
    assert [event.event for event in events] == ["epoch_changed", "assignor_changed"]


def test_to_the_consumer_protocol_and_back() -> None:
    log = Log()
    log.classic(0, 0)
    log.ms = 30
    log.classic(1, 2, Cause(MEMBER_JOINED, "m0", since_ms=10))
    assert log.take() == [
        "g classic 1 at 10 member_joined after 0 had 0",
        "g classic 1 at 30 since 10: 2 have 2",
    ]
    log.add(GroupMetadataKey("g"), None)
    log.member("m0")
    log.member("m1")
    log.epoch(1, PROTOCOL_UPGRADED)
    log.assigned(1)
    log.current("m0", 1, 1)
    log.current("m1", 1, 1)
    log.member("new")
    log.epoch(2)
    assert log.take() == [
        "g consumer 1 at 30 protocol_upgraded after 2 had 2",
        "g consumer 1 at 30 since 30: 2 have 2",
        "g consumer 2 at 30 member_joined after 2 had 2",
    ]
    log.current("new", 1, 0)
    for name in ("m0", "m1", "new"):
        log.remove(name)
    log.add(ConsumerGroupMetadataKey("g"), None)
    log.classic(2, 2, Cause(PROTOCOL_DOWNGRADED, "new"))
    assert log.take() == [
        "g classic 2 at 30 protocol_downgraded after 3 had 2",
        "g classic 2 at 30 since 30: 2 have 2",
    ]


def test_deleted_groups_leave_no_state() -> None:
    log = Log()
    joined(log)
    log.remove("a")
    log.epoch(3, MEMBER_LEFT)
    log.add(ConsumerGroupMetadataKey("g"), None)
    log.take()
    log.member("x", "other")
    assert list(log.timeline._groups) == ["other"]
    joined(log)
    assert log.take()[0] == "g consumer 2 at 0 member_joined after 0 had 0"


def test_what_compaction_removed_is_not_made_up() -> None:
    log = Log()
    log.epoch(7)
    assert log.take()[0] == "g consumer 7 at 0 member_joined after -1 had -1"
    classic = Log()
    classic.classic(5, 1)
    assert classic.take() == ["g classic 5 at 0  after -1 had -1", "g classic 5 at 0 since ?: 1 have 1"]


def test_a_start_that_no_record_has_is_unknown() -> None:
    """The first epoch of the rebalance may be one that compaction removed; of the next rebalance it is there."""
    log = Log()
    log.member("a")
    log.epoch(7)
    log.assigned(7)
    log.ms = 10
    log.current("a", 7, 4)
    assert log.take()[1:] == ["g consumer 7 at 10 since ?: 1 have 4"]
    for epoch, since in ((8, "20"), (10, "?"), (11, "20")):
        log.ms = 20
        log.epoch(epoch)
        log.assigned(epoch)
        log.ms = 30
        log.current("a", epoch, 4)
        assert log.take()[1:] == [f"g consumer {epoch} at 30 since {since}: 1 have 4"]


def test_a_broker_writes_a_classic_group_s_record_at_the_end_only() -> None:
    log = Log()
    log.ms = 30
    log.classic(1, 2)
    assert log.take()[1] == "g classic 1 at 30 since ?: 2 have 2"
    log.classic(2, 2, Cause(MEMBER_JOINED, "m0"))
    assert log.take()[1] == "g classic 2 at 30 since 30: 2 have 2"
