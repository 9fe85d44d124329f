"""Groups that change their protocol: what scenarios do not show. Causes, failures half-way, odd logs, what is read."""

from __future__ import annotations

import pytest

from kcoord.core.cause import (
    JOIN_TIMEOUT,
    MEMBER_JOINED,
    MEMBER_LEFT,
    PROTOCOL_DOWNGRADED,
    PROTOCOL_UPGRADED,
    SYNC_TIMEOUT,
    Cause,
)
from kcoord.core.groups.classic import PREPARING_REBALANCE
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.embedded_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    version_of,
)
from kcoord.core.outcome import Outcome
from kcoord.protocol.records.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from kcoord.protocol.records.consumer_protocol_assignment import ConsumerProtocolAssignment, TopicPartition
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from kcoord.wire.primitives import DecodeError
from tests.scenarios.embedded import assignment, subscription
from tests.scenarios.runner import Scenario


class Story(Scenario):
    """A scenario that keeps the outcomes."""

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.outcomes: list[Outcome] = []
        given = {"group_consumer_assignment_interval_ms": "0", **settings}
        self.run("config " + " ".join(f"{name}={value}" for name, value in given.items()))
        self.run("topic t partitions=2")

    def _apply_one(self, outcome: Outcome, with_timers: bool = True) -> None:
        self.outcomes.append(outcome)
        super()._apply_one(outcome, with_timers)

    def causes(self, line: str) -> list[Cause]:
        """Causes of the records that a command led to."""
        self.outcomes = []
        self.run(line)
        return [r.cause for outcome in self.outcomes for r in outcome.records if r.cause is not None]

    def consumer_group(self) -> ConsumerGroup:
        return self.core.groups.consumer_groups["g"]


def classic_story(**settings: str) -> Story:
    """A stable classic group of one member, p."""
    story = Story(**settings)
    story.run("join client=p version=3 topics=t subscription=1")
    story.run("sync client=p assign=p:t/0+t/1")
    return story


def mixed_story(**settings: str) -> Story:
    """A member of the new protocol, a, and a classic one, k, that has synced."""
    story = Story(**settings)
    story.run("beat client=a topics=t")
    story.run("join client=k version=3 topics=t subscription=1 rebalance=20s session=30s")
    story.run("sync client=k")
    return story


# ---- causes


def test_an_upgrade_is_a_cause_before_the_member_that_joined() -> None:
    story = classic_story()
    upgraded, joined = story.causes("beat client=a topics=t")
    assert upgraded.kind == PROTOCOL_UPGRADED
    assert (joined.kind, joined.member_id) == (MEMBER_JOINED, "a")
    assert story.consumer_group().epoch == 2


def test_a_downgrade_is_the_cause_on_the_classic_record() -> None:
    story = mixed_story()
    story.outcomes = []
    story.run("beat client=a epoch=-1")
    records = [record for outcome in story.outcomes for record in outcome.records]
    assert [isinstance(record.key, GroupMetadataKey) for record in records if record.cause] == [True]
    cause = records[-1].cause
    assert cause is not None and (cause.kind, cause.member_id) == (PROTOCOL_DOWNGRADED, "a")


def test_a_static_replacement_that_downgrades_names_both() -> None:
    story = Story()
    story.run("beat client=s topics=t instance=one")
    (cause,) = story.causes("join client=l instance=one topics=t")
    assert (cause.kind, cause.detail) == (PROTOCOL_DOWNGRADED, "static member replaces s")


def test_classic_members_that_leave_give_their_reason() -> None:
    story = mixed_story()
    story.run("beat client=b topics=t")
    (cause,) = story.causes("leave client=k reason='scaled in'")
    assert cause.kind == MEMBER_LEFT
    assert cause.detail == "client reason: scaled in"


@pytest.mark.parametrize(("commands", "kind"), [(["heartbeat client=k"], JOIN_TIMEOUT), ([], SYNC_TIMEOUT)])
def test_which_timer_it_was(commands: list[str], kind: str) -> None:
    story = mixed_story()
    story.run("beat client=b topics=t")
    if not commands:
        story.run("join client=k version=3 topics=t subscription=1 rebalance=20s session=30s")
    for command in commands:
        story.run(command)
    (cause,) = story.causes("advance 20s")
    assert cause.kind == kind
    assert cause.member_id == story.actors["k"].member_id


# ---- failures half-way


@pytest.mark.parametrize(
    "beat",
    [
        "beat client=a topics=t regex=[",
        "beat client=a topics=t assignor=none-such",
        "beat client=a topics=t owned=t/0",
    ],
)
def test_a_heartbeat_that_fails_leaves_the_classic_group_alone(beat: str) -> None:
    story = classic_story()
    story.run("join client=q version=3 topics=t")
    store = story.core.groups
    group = store.groups["g"]
    before = (group.state, dict(group.members), group.awaiting_join, group.join_token)
    digest = story.core.digest()
    lines = story.run(beat)
    assert len(lines) == 1 and "error_code=" in lines[0]
    assert (group.state, dict(group.members), group.awaiting_join, group.join_token) == before
    assert group.state == PREPARING_REBALANCE
    assert store.groups["g"] is group and not store.consumer_groups
    assert story.core.digest() == digest
    assert story.run("waiting") == ["waiting q: JoinGroup"]


def test_a_member_over_the_limit_does_not_convert_the_group() -> None:
    story = classic_story(group_consumer_max_size="1")
    assert "GROUP_MAX_SIZE_REACHED" in story.run("beat client=a topics=t")[0]
    assert "g" in story.core.groups.groups
    assert story.run("heartbeat client=p") == ["reply p: Heartbeat"]


def test_replay_uses_the_group_that_the_handler_created() -> None:
    story = classic_story()
    story.run("beat client=a topics=t")
    timers = story.core.groups.timers.by_group["g"]
    assert set(timers) == {"a", story.actors["p"].member_id}
    assert all(of_member.session_token for of_member in timers.values())


def test_a_classic_group_that_would_be_too_large_is_not_made() -> None:
    story = mixed_story(coordinator_batch_bytes_max="400")
    story.run("join client=k version=3 topics=t subscription=1 protocols=range,sticky")
    lines = story.run("beat client=a epoch=-1")
    assert "fact WARNING group_record_too_large group=g" in lines
    assert list(story.consumer_group().members) == [story.actors["k"].member_id]
    assert story.consumer_group().epoch == 4


def test_a_classic_group_that_does_not_fit_with_the_tombstones_is_not_made() -> None:
    story = mixed_story(coordinator_batch_bytes_max="900")
    lines = story.run("beat client=a epoch=-1")
    assert "fact WARNING group_record_too_large group=g" in lines
    assert list(story.consumer_group().members) == [story.actors["k"].member_id]
    enough = mixed_story(coordinator_batch_bytes_max="1400")
    enough.run("beat client=a epoch=-1")
    assert "g" in enough.core.groups.groups


def test_members_without_a_common_protocol_stay_a_consumer_group() -> None:
    """JoinGroup lets no such member in; a log may hold them all the same."""
    story = mixed_story()
    story.run("join client=l version=3 topics=t")
    group = story.consumer_group()
    for name, protocol in (("k", "x"), ("l", "y")):
        member = group.members[story.actors[name].member_id]
        assert member.classic is not None
        member.classic.supported_protocols[0].name = protocol
    assert any("consumer_group_not_downgraded" in line for line in story.run("beat client=a epoch=-1"))
    assert story.consumer_group().classic_members == 2


def test_only_classic_members_have_join_and_sync_timers() -> None:
    story = mixed_story()
    story.run("beat client=b topics=t")
    assert "arm consumer-join" in " ".join(story.run("heartbeat client=k"))
    member_id = story.actors["k"].member_id
    story.run(f"beat client=k member={member_id} epoch=0 topics=t")
    story.run("advance 20s")
    assert member_id in story.consumer_group().members


def test_timers_of_removed_members_do_not_count() -> None:
    story = mixed_story()
    story.run("beat client=b topics=t")
    story.run("heartbeat client=k")
    timers = [timer for _, _, timer in story.timers if timer.member_id == story.actors["k"].member_id]
    assert [story.core.still_counts(timer) for timer in timers].count(True) == 2
    story.run("leave client=k")
    assert not any(story.core.still_counts(timer) for timer in timers)


# ---- odd logs


def test_a_classic_record_ends_a_consumer_group_whose_tombstones_are_lost() -> None:
    story = mixed_story()
    store = story.core.groups
    value = GroupMetadataValue("consumer", 7, "range", "p", 0, [MemberMetadata(member_id="p")])
    story.core.replay(story.core.log_of("g"), 1000, GroupMetadataKey("g"), value)
    assert "g" not in store.consumer_groups
    assert store.groups["g"].value is value


def test_a_consumer_record_ends_a_classic_group_whose_tombstone_is_lost() -> None:
    story = classic_story()
    story.core.replay(story.core.log_of("g"), 1000, ConsumerGroupMetadataKey("g"), ConsumerGroupMetadataValue(5, 0))
    assert "g" not in story.core.groups.groups
    assert story.consumer_group().epoch == 5


def test_what_was_converted_is_not_known_of_groups_that_were_not() -> None:
    story = mixed_story()
    story.run("beat client=a epoch=-1")
    assert story.core.groups.groups["g"].is_converted_unbalanced
    story.run("join client=k version=3 topics=t subscription=1")
    story.run("sync client=k assign=k:t/0+t/1")
    assert not story.core.groups.groups["g"].is_converted_unbalanced
    assert not story.core.groups.groups["g"].held


# ---- what members tell each other


def test_versions_of_the_embedded_protocol() -> None:
    for version in range(4):
        data = subscription(["t", "u"], version, "t/1" if version else "", 5 if version >= 2 else -1)
        read = decode_subscription(data)
        assert read.topics == ["t", "u"]
        assert [(o.topic, o.partitions) for o in read.owned_partitions] == ([("t", [1])] if version else [])
        assert version_of(data) == version
    newer = b"\x00\x63" + subscription(["t"], 3)[2:] + b"more"
    assert decode_subscription(newer).topics == ["t"]
    assert version_of(newer) == 3


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff\xff" + b"\x00" * 20, b"\x00\x01\x00\x00\x00\x01\x00\x09t"])
def test_what_is_no_subscription(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_subscription(data)


def test_assignments_are_read_as_they_are_written() -> None:
    message = ConsumerProtocolAssignment([TopicPartition("t", [0, 2])])
    for version in range(4):
        assert encode_assignment(message, version) == assignment("t/0+t/2", version)
        assert decode_assignment(encode_assignment(message, version)) == message
