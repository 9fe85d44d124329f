"""Members of one group as the benchmarks of large groups play them: the next request, and what an answer changes."""

from __future__ import annotations

from abc import ABC, abstractmethod

from bench.members_child import Member
from kcoord.protocol import apis, errors
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from kcoord.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kcoord.protocol.leave_group import LeaveGroupRequest, MemberIdentity
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from kcoord.wire.message import Message

SESSION_TIMEOUT_MS = 60_000
LEAVE_EPOCH = -1
VERSIONS = {
    apis.CONSUMER_GROUP_HEARTBEAT: 1,
    apis.JOIN_GROUP: 6,
    apis.SYNC_GROUP: 5,
    apis.HEARTBEAT: 4,
    apis.LEAVE_GROUP: 4,
}
# A subscription (version 3) to a topic "topic", without user data and owned partitions, and an assignment of one of its
# partitions. The server stores both as they are, so that the topic of the group may have another name.
SUBSCRIPTION = b"\0\3\0\0\0\1\0\5topic\xff\xff\xff\xff\0\0\0\0\xff\xff\xff\xff\xff\xff"
ASSIGNMENT = b"\0\1\0\0\0\1\0\5topic\0\0\0\1\0\0\0\1\xff\xff\xff\xff"


class Seat(ABC):
    """A member. The caller sends `request`, and then `take`s the answer."""

    @abstractmethod
    def request(self) -> tuple[int, int, Message]:
        """API, version and body of the next request; a heartbeat if there is nothing else to send."""

    @abstractmethod
    def take(self, answer: Message) -> None:
        """Raises RuntimeError for an error that no client expects."""

    @abstractmethod
    def has_news(self) -> bool:
        """Whether the next request is not a heartbeat that may wait."""

    @abstractmethod
    def agreement(self) -> tuple[int, int]:
        """The generation or epoch, and the number of partitions. (-1, 0) while the member joins."""

    @abstractmethod
    def leave(self) -> tuple[int, int, Message]:
        """The request that makes the member leave."""


class ConsumerSeat(Seat):
    def __init__(self, group_id: str, topic: str, number: int, topic_id: bytes) -> None:
        self.state = Member(group_id, number, topic)
        self.topic_id = topic_id

    def request(self) -> tuple[int, int, Message]:
        return apis.CONSUMER_GROUP_HEARTBEAT, 1, self.state.body(self.topic_id)

    def take(self, answer: Message) -> None:
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        self.state.take(answer)

    def has_news(self) -> bool:
        return self.state.reported != self.state.owned

    def agreement(self) -> tuple[int, int]:
        return self.state.epoch, len(self.state.owned)

    def leave(self) -> tuple[int, int, Message]:
        body = ConsumerGroupHeartbeatRequest(self.state.group_id, self.state.member_id, LEAVE_EPOCH)
        return apis.CONSUMER_GROUP_HEARTBEAT, 1, body


class ClassicSeat(Seat):
    def __init__(self, group_id: str, topic: str, number: int, topic_id: bytes) -> None:
        self.group_id = group_id
        self.member_id = ""
        self.generation_id = -1
        self.has_synced = False
        # What SyncGroup sends next; None: nothing.
        self.given: list[SyncGroupRequestAssignment] | None = None

    def request(self) -> tuple[int, int, Message]:
        group_id, generation_id, member_id = self.group_id, self.generation_id, self.member_id
        if self.given is not None:
            sync = SyncGroupRequest(group_id, generation_id, member_id, None, "consumer", "range", self.given)
            return apis.SYNC_GROUP, 5, sync
        if self.has_synced:
            return apis.HEARTBEAT, 4, HeartbeatRequest(group_id, generation_id, member_id, None)
        timeout_ms = SESSION_TIMEOUT_MS
        protocols = [JoinGroupRequestProtocol("range", SUBSCRIPTION)]
        join = JoinGroupRequest(group_id, timeout_ms, timeout_ms, member_id, None, "consumer", protocols)
        return apis.JOIN_GROUP, 6, join

    def take(self, answer: Message) -> None:
        assert isinstance(answer, JoinGroupResponse | SyncGroupResponse | HeartbeatResponse)
        self.given = None
        code = answer.error_code
        if code in (errors.MEMBER_ID_REQUIRED, errors.REBALANCE_IN_PROGRESS, errors.ILLEGAL_GENERATION):
            self.has_synced = False
            if isinstance(answer, JoinGroupResponse) and answer.member_id:
                self.member_id = answer.member_id
        elif code:
            raise RuntimeError(f"{type(answer).__name__}: error {code}")
        elif isinstance(answer, JoinGroupResponse):
            self.member_id, self.generation_id = answer.member_id, answer.generation_id
            self.given = [SyncGroupRequestAssignment(member.member_id, ASSIGNMENT) for member in answer.members]
        elif isinstance(answer, SyncGroupResponse):
            self.has_synced = True

    def has_news(self) -> bool:
        return not self.has_synced

    def agreement(self) -> tuple[int, int]:
        return (self.generation_id, 1) if self.has_synced else (-1, 0)

    def leave(self) -> tuple[int, int, Message]:
        return apis.LEAVE_GROUP, 4, LeaveGroupRequest(self.group_id, members=[MemberIdentity(self.member_id)])


KINDS: dict[str, type[ConsumerSeat | ClassicSeat]] = {"classic": ClassicSeat, "consumer": ConsumerSeat}
