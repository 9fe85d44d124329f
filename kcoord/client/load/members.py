"""Members of groups in both protocols: the bytes that each sends next, and what an answer changes. No I/O, no clock.

Whoever has the socket writes what the methods return: `greet` on a new connection, then `begin` or, if the member has
been in the group, `again`; `received` for what comes in, and `resume` when the pause is over that it asks for; at the
end `goodbye`. A member has one request in flight, as clients have; only its goodbye may follow a heartbeat that is not
answered yet. Compiled where kcoord is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, final

from kcoord.client.load.crowd import NO_EPOCH, Crowd
from kcoord.client.load.frames import ANSWER_AT, ID_AT, decode_answer, error_codes, error_name, request_frame
from kcoord.client.load.lane import ANSWER_BYTES_MAX, ANSWER_BYTES_MIN, CORRELATION_ID_MAX, WrongAnswer
from kcoord.protocol import apis, errors
from kcoord.protocol.api_versions import ApiVersionsRequest
from kcoord.protocol.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OwnedTopicPartitions,
)
from kcoord.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kcoord.protocol.leave_group import LeaveGroupRequest, MemberIdentity
from kcoord.protocol.records import consumer_protocol_assignment as assignment
from kcoord.protocol.records import consumer_protocol_subscription as subscription
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, Reader, read_i32_be, write_i16_be

SESSION_TIMEOUT_MS: Final = 30_000
REBALANCE_TIMEOUT_MS: Final = 60_000
PROTOCOL_TYPE: Final = "consumer"
PROTOCOL: Final = "range"
LEAVE_EPOCH: Final = -1
# LeaveGroup has a list of members from this version on.
MEMBERS_FROM: Final = 3
# What a broker answers that cannot answer now, or does not coordinate the group. The member is still in the group.
ELSEWHERE: Final = (errors.NOT_COORDINATOR, errors.COORDINATOR_NOT_AVAILABLE)
NOT_NOW: Final = (*ELSEWHERE, errors.COORDINATOR_LOAD_IN_PROGRESS)
# What a goodbye is answered if the member has left before.
GONE: Final = (errors.UNKNOWN_MEMBER_ID, errors.GROUP_ID_NOT_FOUND)
# The versions of subscriptions and assignments that are written. Newer ones only add fields at the end.
SUBSCRIPTION_VERSION: Final = 3
ASSIGNMENT_VERSION: Final = 3

# What a member waits for.
NO_PAUSE: Final = 0
UNTIL_HEARTBEAT: Final = 1
UNTIL_RETRY: Final = 2


@final
class GroupPlan:
    """A group, and the versions of the requests of its members: {API key: version}. The topic's id has 16 bytes."""

    def __init__(
        self, group_id: str, topic: str, topic_id: bytes, partitions: int, versions: dict[int, int]
    ) -> None:  # fmt: skip
        self.group_id = group_id
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = partitions
        self.versions = versions


class Member(ABC):
    """A member, which is on one connection at a time. Errors of the group are counted, and it joins again."""

    def __init__(self, crowd: Crowd, plan: GroupPlan, member_id: str) -> None:
        self.crowd = crowd
        self.plan = plan
        self.member_id = member_id
        # The generation or member epoch, and its partitions. It keeps both until it has new ones, or an error.
        self.epoch = NO_EPOCH
        self.owned: list[int] = []
        # The generation of the SyncGroup that is not answered yet.
        self.next_epoch = NO_EPOCH
        self.pause = NO_PAUSE
        # It is in no epoch of the group any more, or not yet.
        self.must_join = True
        # The broker has answered the first request of the connection.
        self.is_greeted = False
        # It has left the group: its goodbye was heard.
        self.is_gone = False
        # The group has another coordinator.
        self.is_elsewhere = False
        # A JoinGroup or SyncGroup may wait for other members, and would hold back what follows it.
        self.is_parked = False
        # The API of the newest request, and when it was written.
        self.asked = apis.API_VERSIONS
        self.sent_ns = 0
        self.is_leaving = False
        self.in_flight = 0
        self.next_id = 0
        self.due_id = 0
        self.pending = b""
        # A heartbeat of this epoch, and what follows the correlation id in the answer when nothing has happened.
        self.beat = b""
        self.fine = b""
        self.is_counted = False

    def appear(self) -> None:
        """Count as a member of the group from now on: the group is stable only with it."""
        self.is_counted = True
        self.crowd.enter(self.epoch, self.owned)

    def vanish(self) -> None:
        """Do not count as a member any more. The goodbye comes next."""
        self.is_leaving = True
        self.pause = NO_PAUSE
        if self.is_counted:
            self.is_counted = False
            self.crowd.leave(self.epoch, self.owned)

    # --- for its connection

    def greet(self, now_ns: int) -> bytes:
        """The first request of a new connection, as all clients send it."""
        self.is_greeted = self.is_parked = self.is_elsewhere = False
        self.in_flight = self.next_id = self.due_id = 0
        self.pending = b""
        return self.ask(apis.API_VERSIONS, ApiVersionsRequest("kcoord", "bench"), now_ns)

    @abstractmethod
    def begin(self, now_ns: int) -> bytes:
        """Join the group."""

    def resume(self, now_ns: int) -> bytes:
        """The pause is over."""
        if self.pause == UNTIL_RETRY:
            return self.again(now_ns)
        return self.send(self.beat, now_ns)

    def again(self, now_ns: int) -> bytes:
        """Go on after an error or on a new connection: with a heartbeat if the member is still in the group."""
        return self.begin(now_ns) if self.must_join else self.report(now_ns)

    @abstractmethod
    def report(self, now_ns: int) -> bytes:
        """A heartbeat that tells a coordinator everything that it may have missed."""

    @abstractmethod
    def goodbye(self, now_ns: int) -> bytes:
        """Leave the group. Only if the member is not parked."""

    def lost(self, error: str) -> None:
        """The connection is no more."""
        self.crowd.note(error)
        self.pause = UNTIL_RETRY

    def received(self, data: bytes, now_ns: int) -> bytes:
        """Handle what was received. Returns the next request. Raises WrongAnswer or DecodeError."""
        if self.pending:
            data = self.pending + data
            self.pending = b""
        request = b""
        at = 0
        end = len(data)
        while end - at >= ANSWER_BYTES_MIN:
            size: int = read_i32_be(data, at) + 4
            if size < ANSWER_BYTES_MIN or size > ANSWER_BYTES_MAX:
                raise WrongAnswer(f"an answer of {size} bytes")
            if read_i32_be(data, at + 4) != self.due_id or not self.in_flight:
                raise WrongAnswer("an answer to another request")
            if end - at < size:
                break
            self.due_id = 0 if self.due_id >= CORRELATION_ID_MAX else self.due_id + 1
            self.in_flight -= 1
            # The answer to a heartbeat before the goodbye says nothing any more.
            if not self.in_flight:
                request = self.answered(data[at : at + size], now_ns)
            at += size
        if at < end:
            self.pending = data[at:]
        return request

    # --- for the protocols

    def answered(self, frame: bytes, now_ns: int) -> bytes:
        """Handle the answer to the newest request. Returns the next request."""
        if self.asked == apis.API_VERSIONS:
            self.is_greeted = True
            return b""
        if self.fine and not self.is_leaving and frame[ANSWER_AT:] == self.fine:
            self.crowd.heartbeats.add(now_ns - self.sent_ns)
            self.pause = UNTIL_HEARTBEAT
            return b""
        answer = decode_answer(self.asked, self.plan.versions[self.asked], frame)
        if self.is_leaving:
            self.left(error_codes(answer))
            return b""
        return self.judge(answer, frame, now_ns)

    def left(self, codes: list[int]) -> None:
        """The goodbye is answered with these error codes."""
        refusals = [code for code in codes if code not in GONE]
        self.is_gone = not refusals
        for code in refusals:
            self.crowd.note(error_name(code))
            self.is_elsewhere = code in ELSEWHERE

    @abstractmethod
    def judge(self, answer: Message, frame: bytes, now_ns: int) -> bytes:
        """Handle a decoded answer. Returns the next request."""

    def ask(self, api_key: int, request: Message, now_ns: int) -> bytes:
        self.asked = api_key
        return self.send(request_frame(api_key, self.plan.versions[api_key], request), now_ns)

    def send(self, frame: bytes, now_ns: int) -> bytes:
        """The frame with its correlation id."""
        number = self.next_id
        self.next_id = 0 if number >= CORRELATION_ID_MAX else number + 1
        self.sent_ns = now_ns
        self.pause = NO_PAUSE
        self.in_flight += 1
        return frame[:ID_AT] + number.to_bytes(4, "big") + frame[ID_AT + 4 :]

    def move(self, epoch: int, owned: list[int], now_ns: int) -> None:
        if self.is_counted:
            self.crowd.move(self.epoch, self.owned, epoch, owned, now_ns)
        self.epoch = epoch
        self.owned = owned
        self.fine = b""

    def fail(self, code: int, now_ns: int) -> bytes:
        """Count an error, and go on after a pause. Most errors mean that the member has to join again."""
        self.crowd.note(error_name(code))
        self.is_parked = False
        self.is_elsewhere = code in ELSEWHERE
        if code not in NOT_NOW:
            self.must_join = True
            self.move(NO_EPOCH, self.owned, now_ns)
        self.pause = UNTIL_RETRY
        return b""

    def check(self, numbers: list[int]) -> list[int]:
        """Raises WrongAnswer for partitions that the topic does not have."""
        for number in numbers:
            if number < 0 or number >= self.plan.partitions:
                raise WrongAnswer(f"partition {number} of a topic with {self.plan.partitions}")
        return numbers


def leave_request(version: int, group_id: str, member_id: str) -> LeaveGroupRequest:
    if version < MEMBERS_FROM:
        return LeaveGroupRequest(group_id, member_id)
    return LeaveGroupRequest(group_id, "", [MemberIdentity(member_id)])


@final
class ClassicMember(Member):
    """JoinGroup, SyncGroup and Heartbeat. The leader gives the partitions to the members in turn."""

    def begin(self, now_ns: int) -> bytes:
        topic = self.plan.topic
        owned = [subscription.TopicPartition(topic, self.owned)] if self.owned else []
        message = subscription.ConsumerProtocolSubscription([topic], None, owned, self.epoch, None)
        writer = BytesWriter()
        write_i16_be(writer, SUBSCRIPTION_VERSION)
        subscription.encode_consumer_protocol_subscription(writer, message, SUBSCRIPTION_VERSION)
        request = JoinGroupRequest(
            self.plan.group_id, SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS, self.member_id, None, PROTOCOL_TYPE,
            [JoinGroupRequestProtocol(PROTOCOL, writer.getvalue())],
        )  # fmt: skip
        self.is_parked = self.must_join = True
        self.fine = b""
        return self.ask(apis.JOIN_GROUP, request, now_ns)

    def report(self, now_ns: int) -> bytes:
        self.asked = apis.HEARTBEAT
        return self.send(self.beat, now_ns)

    def judge(self, answer: Message, frame: bytes, now_ns: int) -> bytes:
        if isinstance(answer, JoinGroupResponse):
            return self.joined(answer, now_ns)
        if isinstance(answer, SyncGroupResponse):
            return self.synced(answer, now_ns)
        assert isinstance(answer, HeartbeatResponse)
        self.crowd.heartbeats.add(now_ns - self.sent_ns)
        if answer.error_code:
            return self.refused(answer.error_code, now_ns)
        self.fine = frame[ANSWER_AT:]
        self.pause = UNTIL_HEARTBEAT
        return b""

    def joined(self, answer: JoinGroupResponse, now_ns: int) -> bytes:
        code = answer.error_code
        if answer.member_id and code in (errors.NONE, errors.MEMBER_ID_REQUIRED):
            self.member_id = answer.member_id
        if code == errors.MEMBER_ID_REQUIRED:
            return self.begin(now_ns)
        if code:
            return self.refused(code, now_ns)
        generation_id = answer.generation_id
        plan = self.plan
        shares = self.shares([one.member_id for one in answer.members])
        sync = SyncGroupRequest(plan.group_id, generation_id, self.member_id, None, PROTOCOL_TYPE, PROTOCOL, shares)
        beat = HeartbeatRequest(plan.group_id, generation_id, self.member_id)
        self.beat = request_frame(apis.HEARTBEAT, plan.versions[apis.HEARTBEAT], beat)
        self.next_epoch = generation_id
        return self.ask(apis.SYNC_GROUP, sync, now_ns)

    def synced(self, answer: SyncGroupResponse, now_ns: int) -> bytes:
        if answer.error_code:
            return self.refused(answer.error_code, now_ns)
        self.is_parked = self.must_join = False
        reader = Reader(answer.assignment)
        version = min(reader.int16(), ASSIGNMENT_VERSION)
        found = assignment.decode_consumer_protocol_assignment(reader, version)
        owned = [number for one in found.assigned_partitions for number in one.partitions]
        self.move(self.next_epoch, self.check(owned), now_ns)
        self.asked = apis.HEARTBEAT
        self.pause = UNTIL_HEARTBEAT
        return b""

    def refused(self, code: int, now_ns: int) -> bytes:
        """Join again, at once if the group rebalances."""
        if code == errors.REBALANCE_IN_PROGRESS:
            return self.begin(now_ns)
        if code == errors.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        return self.fail(code, now_ns)

    def shares(self, members: list[str]) -> list[SyncGroupRequestAssignment]:
        """The shares of all members; none unless this member is the leader."""
        found: list[SyncGroupRequestAssignment] = []
        step = len(members)
        for first, member_id in enumerate(members):
            numbers = list(range(first, self.plan.partitions, step))
            parts = [assignment.TopicPartition(self.plan.topic, numbers)] if numbers else []
            writer = BytesWriter()
            write_i16_be(writer, ASSIGNMENT_VERSION)
            assignment.encode_consumer_protocol_assignment(
                writer, assignment.ConsumerProtocolAssignment(parts), ASSIGNMENT_VERSION
            )
            found.append(SyncGroupRequestAssignment(member_id, writer.getvalue()))
        return found

    def goodbye(self, now_ns: int) -> bytes:
        request = leave_request(self.plan.versions[apis.LEAVE_GROUP], self.plan.group_id, self.member_id)
        return self.ask(apis.LEAVE_GROUP, request, now_ns)


@final
class ConsumerMember(Member):
    """ConsumerGroupHeartbeat (KIP-848). It answers an assignment at once, and otherwise waits for its interval."""

    def begin(self, now_ns: int) -> bytes:
        self.must_join = True
        self.move(NO_EPOCH, [], now_ns)
        return self.full(0, now_ns)

    def report(self, now_ns: int) -> bytes:
        return self.full(self.epoch, now_ns)

    def full(self, epoch: int, now_ns: int) -> bytes:
        """A heartbeat with everything."""
        request = ConsumerGroupHeartbeatRequest(
            self.plan.group_id, self.member_id, epoch, rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            subscribed_topic_names=[self.plan.topic], topic_partitions=self.reported(),
        )  # fmt: skip
        return self.ask(apis.CONSUMER_GROUP_HEARTBEAT, request, now_ns)

    def reported(self) -> list[OwnedTopicPartitions]:
        """What it owns, as a heartbeat says it."""
        return [OwnedTopicPartitions(self.plan.topic_id, self.owned)] if self.owned else []

    def judge(self, answer: Message, frame: bytes, now_ns: int) -> bytes:
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        self.crowd.heartbeats.add(now_ns - self.sent_ns)
        if answer.error_code:
            return self.fail(answer.error_code, now_ns)
        if answer.member_id:
            self.member_id = answer.member_id
        self.must_join = False
        news = answer.assignment
        epoch = answer.member_epoch
        if news is None and epoch == self.epoch:
            self.fine = frame[ANSWER_AT:]
            self.pause = UNTIL_HEARTBEAT
            return b""
        owned = self.owned
        if news is not None:
            owned = self.check([number for one in news.topic_partitions for number in one.partitions])
        self.move(epoch, owned, now_ns)
        group_id, api_key = self.plan.group_id, apis.CONSUMER_GROUP_HEARTBEAT
        beat = ConsumerGroupHeartbeatRequest(group_id, self.member_id, epoch)
        self.beat = request_frame(api_key, self.plan.versions[api_key], beat)
        if news is None:
            self.pause = UNTIL_HEARTBEAT
            return b""
        request = ConsumerGroupHeartbeatRequest(
            group_id, self.member_id, epoch, topic_partitions=self.reported()
        )  # fmt: skip
        return self.ask(api_key, request, now_ns)

    def goodbye(self, now_ns: int) -> bytes:
        request = ConsumerGroupHeartbeatRequest(self.plan.group_id, self.member_id, LEAVE_EPOCH)
        return self.ask(apis.CONSUMER_GROUP_HEARTBEAT, request, now_ns)
