"""Members of the load generator, without sockets: what they send, and what they make of answers."""

from __future__ import annotations

import pytest

from kcoord.client.consumer.classic.embedded import decode_assignment, decode_subscription
from kcoord.client.load.crowd import NO_EPOCH, Crowd
from kcoord.client.load.lane import WrongAnswer
from kcoord.client.load.members import (
    NO_PAUSE,
    UNTIL_HEARTBEAT,
    UNTIL_RETRY,
    ClassicMember,
    ConsumerMember,
    GroupPlan,
    Member,
)
from kcoord.protocol import apis, errors
from kcoord.protocol.api_versions import ApiVersionsResponse
from kcoord.protocol.consumer_group_heartbeat import (
    AssignedTopicPartitions,
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kcoord.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from kcoord.protocol.leave_group import LeaveGroupRequest, LeaveGroupResponse
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupResponse
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError, Reader
from tests.unit.cli.bench.test_lane import answer

TOPIC_ID = bytes(range(16))
VERSIONS = {
    apis.API_VERSIONS: 3, apis.JOIN_GROUP: 9, apis.SYNC_GROUP: 5, apis.HEARTBEAT: 4, apis.LEAVE_GROUP: 5,
    apis.CONSUMER_GROUP_HEARTBEAT: 1,
}  # fmt: skip
PLAN = GroupPlan("g", "t", TOPIC_ID, 4, VERSIONS)
MS = 1_000_000


class Talk:
    """A member, and a broker that answers as it is told."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.sent: list[tuple[int, Message]] = []
        self.due_id = 0

    def note(self, data: bytes) -> Message:
        """A request that the member sends."""
        assert int.from_bytes(data[:4], "big") == len(data) - 4
        api_key = int.from_bytes(data[4:6], "big")
        assert int.from_bytes(data[6:8], "big") == VERSIONS[api_key]
        assert int.from_bytes(data[8:12], "big") == len(self.sent)
        reader = Reader(data, 12)
        reader.nullable_string()
        reader.skip_tags()
        self.sent.append((api_key, apis.decode_request(api_key, reader, VERSIONS[api_key])))
        return self.sent[-1][1]

    def frame(self, message: Message) -> bytes:
        """The answer to the oldest request without one."""
        api_key, _ = self.sent[self.due_id]
        self.due_id += 1
        return answer(api_key, VERSIONS[api_key], self.due_id - 1, message)

    def give(self, message: Message, now_ns: int = 0) -> Message | None:
        """The member's next request after an answer."""
        data = self.member.received(self.frame(message), now_ns)
        return self.note(data) if data else None

    def greet(self) -> None:
        self.note(self.member.greet(0))
        assert self.give(ApiVersionsResponse()) is None
        assert self.member.is_greeted


def classic(member_id: str = "", crowd: Crowd | None = None) -> Talk:
    talk = Talk(ClassicMember(crowd or Crowd(4), PLAN, member_id))
    talk.member.appear()
    talk.greet()
    return talk


def consumer(crowd: Crowd | None = None) -> Talk:
    talk = Talk(ConsumerMember(crowd or Crowd(4), PLAN, "m"))
    talk.member.appear()
    talk.greet()
    return talk


def leading(talk: Talk, generation_id: int, *members: str) -> SyncGroupRequest:
    """The SyncGroup of a member that leads these members."""
    found = [JoinGroupResponseMember(one) for one in members]
    sync = talk.give(JoinGroupResponse(0, 0, generation_id, "consumer", "range", "m", False, "m", found))
    assert isinstance(sync, SyncGroupRequest)
    return sync


def stay(talk: Talk, generation_id: int) -> None:
    """Let a member be alone in its group."""
    talk.note(talk.member.begin(0))
    sync = leading(talk, generation_id, "m")
    assert talk.give(SyncGroupResponse(assignment=sync.assignments[0].assignment)) is None


def given(*numbers: int) -> Assignment:
    return Assignment([AssignedTopicPartitions(TOPIC_ID, [*numbers])])


def beat(epoch: int, news: Assignment | None = None) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=epoch, assignment=news)


# --- classic


def test_a_classic_member_gets_an_id_and_joins_with_it() -> None:
    talk = classic()
    join = talk.note(talk.member.begin(0))
    assert isinstance(join, JoinGroupRequest)
    assert (join.group_id, join.member_id) == ("g", "")
    again = talk.give(JoinGroupResponse(error_code=errors.MEMBER_ID_REQUIRED, member_id="m"))
    assert isinstance(again, JoinGroupRequest)
    assert again.member_id == "m"
    assert talk.member.crowd.errors == {}


def test_only_the_leader_assigns() -> None:
    """Each of thousands of members would make a list of thousands of partitions."""
    talk = classic("m")
    talk.note(talk.member.begin(0))
    sync = leading(talk, 3, "m", "b", "c")
    shares = {one.member_id: decode_assignment(bytes(one.assignment)) for one in sync.assignments}
    assert {name: [one.partition for one in found] for name, found in shares.items()} == {
        "m": [0, 3], "b": [1], "c": [2],
    }  # fmt: skip
    follower = classic("f")
    follower.note(follower.member.begin(0))
    assert leading(follower, 3).assignments == []


def test_a_classic_member_is_in_its_generation_once_it_has_partitions() -> None:
    talk = classic("m")
    crowd = talk.member.crowd
    talk.note(talk.member.begin(0))
    sync = leading(talk, 3, "m", "b")
    assert talk.member.is_parked and not crowd.has_settled()
    assert talk.give(SyncGroupResponse(assignment=sync.assignments[0].assignment), 5 * MS) is None
    assert not talk.member.is_parked and crowd.has_settled()
    assert (talk.member.epoch, talk.member.owned, talk.member.pause) == (3, [0, 2], UNTIL_HEARTBEAT)
    assert (crowd.epochs, crowd.shares, crowd.since_ns) == ({3: 1}, {2: 1}, 5 * MS)
    assert crowd.owned() == bytes([1, 0, 1, 0])


def test_a_rebalance_is_no_error_and_tells_what_is_owned() -> None:
    talk = classic("m")
    stay(talk, 3)
    request = talk.note(talk.member.resume(0))
    assert request == HeartbeatRequest("g", 3, "m")
    assert talk.give(HeartbeatResponse(), 2 * MS) is None
    talk.note(talk.member.resume(10 * MS))
    join = talk.give(HeartbeatResponse(error_code=errors.REBALANCE_IN_PROGRESS), 11 * MS)
    assert isinstance(join, JoinGroupRequest)
    said = decode_subscription(bytes(join.protocols[0].metadata), "m", None)
    assert [one.partition for one in said.owned] == [0, 1, 2, 3] and said.generation == 3
    # It is where it was until the new generation is there.
    assert talk.member.epoch == 3
    crowd = talk.member.crowd
    assert crowd.errors == {} and crowd.heartbeats.total == 2
    again = talk.give(JoinGroupResponse(error_code=errors.REBALANCE_IN_PROGRESS))
    assert isinstance(again, JoinGroupRequest)


def test_an_unknown_member_joins_as_a_new_one_after_a_pause() -> None:
    talk = classic("m")
    stay(talk, 3)
    talk.note(talk.member.resume(0))
    assert talk.give(HeartbeatResponse(error_code=errors.UNKNOWN_MEMBER_ID)) is None
    assert talk.member.pause == UNTIL_RETRY
    assert talk.member.crowd.errors == {"UNKNOWN_MEMBER_ID": 1}
    assert talk.member.crowd.epochs == {NO_EPOCH: 1}
    join = talk.note(talk.member.resume(0))
    assert isinstance(join, JoinGroupRequest)
    assert join.member_id == "" and talk.member.pause == NO_PAUSE


@pytest.mark.parametrize("code", [errors.NOT_COORDINATOR, errors.COORDINATOR_NOT_AVAILABLE])
def test_another_coordinator_is_looked_for(code: int) -> None:
    talk = classic("m")
    talk.note(talk.member.begin(0))
    assert talk.give(JoinGroupResponse(error_code=code)) is None
    assert talk.member.is_elsewhere and talk.member.pause == UNTIL_RETRY and not talk.member.is_parked
    talk.sent, talk.due_id = [], 0
    talk.greet()
    assert not talk.member.is_elsewhere


# --- consumer


def test_a_consumer_reports_its_partitions_at_once() -> None:
    talk = consumer()
    join = talk.note(talk.member.begin(0))
    assert isinstance(join, ConsumerGroupHeartbeatRequest)
    assert (join.member_epoch, join.subscribed_topic_names, join.topic_partitions) == (0, ["t"], [])
    report = talk.give(beat(1, given(1, 2)), 3 * MS)
    assert isinstance(report, ConsumerGroupHeartbeatRequest)
    assert report.topic_partitions is not None
    assert (report.member_epoch, report.topic_partitions[0].partitions) == (1, [1, 2])
    assert talk.give(beat(1)) is None
    assert talk.member.pause == UNTIL_HEARTBEAT
    quiet = talk.note(talk.member.resume(0))
    assert isinstance(quiet, ConsumerGroupHeartbeatRequest)
    assert (quiet.member_epoch, quiet.topic_partitions) == (1, None)
    crowd = talk.member.crowd
    assert (crowd.epochs, crowd.shares, crowd.since_ns) == ({1: 1}, {2: 1}, 3 * MS)


def test_a_consumer_moves_to_the_next_epoch() -> None:
    talk = consumer()
    talk.note(talk.member.begin(0))
    talk.give(beat(1, given(0, 1)))
    talk.give(beat(1))
    for epoch in (2, 3):
        talk.note(talk.member.resume(0))
        assert talk.give(beat(epoch), epoch * MS) is None
        assert (talk.member.epoch, talk.member.owned) == (epoch, [0, 1])
        request = talk.note(talk.member.resume(0))
        assert isinstance(request, ConsumerGroupHeartbeatRequest)
        assert request.member_epoch == epoch
        # Twice the same answer: the second one is compared with the first one.
        assert talk.give(beat(epoch)) is None
        talk.note(talk.member.resume(0))
        assert talk.give(beat(epoch)) is None
    assert talk.member.crowd.since_ns == 3 * MS
    assert talk.member.crowd.heartbeats.total == 8


def test_a_fenced_consumer_joins_again_without_partitions() -> None:
    talk = consumer()
    talk.note(talk.member.begin(0))
    talk.give(beat(1, given(0, 1)))
    talk.give(beat(1))
    talk.note(talk.member.resume(0))
    assert talk.give(ConsumerGroupHeartbeatResponse(error_code=errors.FENCED_MEMBER_EPOCH)) is None
    assert talk.member.crowd.errors == {"FENCED_MEMBER_EPOCH": 1}
    join = talk.note(talk.member.resume(0))
    assert isinstance(join, ConsumerGroupHeartbeatRequest)
    assert (join.member_id, join.member_epoch, join.topic_partitions) == ("m", 0, [])
    assert talk.member.crowd.owned() == bytes(4)


# --- both


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_goodbye_may_follow_a_heartbeat(protocol: str) -> None:
    """What the heartbeat's answer says does not matter any more."""
    talk = classic("m") if protocol == "classic" else consumer()
    if protocol == "classic":
        stay(talk, 3)
    else:
        talk.note(talk.member.begin(0))
        talk.give(beat(1))
    crowd = talk.member.crowd
    talk.note(talk.member.resume(0))
    talk.member.vanish()
    assert crowd.members == 0 and crowd.epochs == {}
    request = talk.note(talk.member.goodbye(0))
    if protocol == "classic":
        assert isinstance(request, LeaveGroupRequest)
        assert [one.member_id for one in request.members] == ["m"]
        answers = talk.frame(HeartbeatResponse(error_code=errors.REBALANCE_IN_PROGRESS))
        answers += talk.frame(LeaveGroupResponse())
    else:
        assert isinstance(request, ConsumerGroupHeartbeatRequest)
        assert request.member_epoch == -1
        answers = talk.frame(beat(2, given(3))) + talk.frame(beat(-1))
    for at in range(len(answers)):
        assert not talk.member.is_gone
        assert talk.member.received(answers[at : at + 1], 0) == b""
    assert talk.member.is_gone and crowd.errors == {} and crowd.epochs == {}


def lose(talk: Talk) -> None:
    """A lost connection, and the greeting on the next one."""
    talk.member.lost("CONNECTION_LOST")
    assert talk.member.crowd.errors == {"CONNECTION_LOST": 1}
    talk.sent, talk.due_id = [], 0
    talk.greet()


def test_a_classic_member_goes_on_with_a_heartbeat_on_a_new_connection() -> None:
    talk = classic("m")
    stay(talk, 3)
    talk.note(talk.member.resume(0))
    lose(talk)
    assert talk.note(talk.member.again(0)) == HeartbeatRequest("g", 3, "m")
    assert talk.give(HeartbeatResponse()) is None
    assert (talk.member.epoch, talk.member.pause) == (3, UNTIL_HEARTBEAT)


def test_a_classic_member_whose_join_was_lost_joins_again() -> None:
    talk = classic("m")
    stay(talk, 3)
    talk.note(talk.member.resume(0))
    talk.give(HeartbeatResponse(error_code=errors.REBALANCE_IN_PROGRESS))
    lose(talk)
    join = talk.note(talk.member.again(0))
    assert isinstance(join, JoinGroupRequest)
    assert join.member_id == "m"


def test_a_consumer_tells_everything_on_a_new_connection() -> None:
    """The coordinator may not have got the last report."""
    talk = consumer()
    talk.note(talk.member.begin(0))
    talk.give(beat(1, given(1, 2)))
    lose(talk)
    request = talk.note(talk.member.again(0))
    assert isinstance(request, ConsumerGroupHeartbeatRequest)
    assert (request.member_epoch, request.subscribed_topic_names) == (1, ["t"])
    assert request.topic_partitions is not None
    assert request.topic_partitions[0].partitions == [1, 2]
    assert talk.give(beat(1)) is None
    assert talk.member.crowd.epochs == {1: 1}


@pytest.mark.parametrize("code", [errors.NOT_COORDINATOR, errors.COORDINATOR_LOAD_IN_PROGRESS])
def test_a_coordinator_that_cannot_answer_is_no_reason_to_join_again(code: int) -> None:
    talk = classic("m")
    stay(talk, 3)
    talk.note(talk.member.resume(0))
    assert talk.give(HeartbeatResponse(error_code=code)) is None
    assert (talk.member.pause, talk.member.epoch) == (UNTIL_RETRY, 3)
    assert talk.note(talk.member.again(0)) == HeartbeatRequest("g", 3, "m")


@pytest.mark.parametrize(
    ("code", "is_gone", "is_elsewhere"),
    [
        (errors.NONE, True, False),
        (errors.UNKNOWN_MEMBER_ID, True, False),
        (errors.NOT_COORDINATOR, False, True),
        (errors.COORDINATOR_LOAD_IN_PROGRESS, False, False),
    ],
)
def test_a_goodbye_may_be_refused(code: int, is_gone: bool, is_elsewhere: bool) -> None:
    talk = classic("m")
    stay(talk, 3)
    talk.member.vanish()
    talk.note(talk.member.goodbye(0))
    talk.give(LeaveGroupResponse(error_code=code))
    assert not talk.member.in_flight
    assert (talk.member.is_gone, talk.member.is_elsewhere) == (is_gone, is_elsewhere)
    assert len(talk.member.crowd.errors) == (0 if is_gone else 1)


def test_answers_that_cannot_be_are_refused() -> None:
    talk = consumer()
    talk.note(talk.member.begin(0))
    with pytest.raises(WrongAnswer):
        talk.member.received(b"\0\0\0\4" + (9).to_bytes(4, "big"), 0)
    with pytest.raises(WrongAnswer):
        talk.member.received(b"\xff" * 8, 0)
    with pytest.raises(WrongAnswer):
        talk.give(beat(1, given(4)))
    talk = consumer()
    talk.note(talk.member.begin(0))
    with pytest.raises(DecodeError):
        talk.member.received(b"\0\0\0\5" + (1).to_bytes(4, "big") + b"\0", 0)


# --- all of them


def test_a_crowd_has_settled_when_all_are_in_one_epoch_and_share_nothing() -> None:
    crowd = Crowd(4)
    crowd.enter(NO_EPOCH, [])
    crowd.enter(NO_EPOCH, [])
    assert not crowd.has_settled()
    crowd.move(NO_EPOCH, [], 3, [0, 1], 1)
    assert not crowd.has_settled()
    crowd.move(NO_EPOCH, [], 3, [1, 2], 2)
    assert not crowd.has_settled() and crowd.doubles == 1
    crowd.move(3, [1, 2], 3, [2], 3)
    assert crowd.has_settled()
    crowd.move(3, [2], 4, [2, 3], 4)
    assert not crowd.has_settled() and crowd.epochs == {3: 1, 4: 1}
    crowd.leave(3, [0, 1])
    assert crowd.has_settled()
    assert (crowd.members, crowd.since_ns, crowd.owned()) == (1, 4, bytes([0, 0, 1, 1]))


def test_what_members_saw_is_counted_once() -> None:
    crowd = Crowd(1)
    crowd.heartbeats.add(1000)
    crowd.note("NOT_COORDINATOR")
    crowd.note("NOT_COORDINATOR")
    assert (crowd.heartbeats.total, crowd.errors) == (1, {"NOT_COORDINATOR": 2})
    crowd.reset()
    assert (crowd.heartbeats.total, crowd.errors) == (0, {})
