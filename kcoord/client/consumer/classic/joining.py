"""One attempt to join a classic group: JoinGroup, the leader's work, SyncGroup.

JoinGroup is answered when all members have joined, and a broker answers the requests of a connection in order. So these
requests have a connection of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from kcoord.client.cluster import GROUP, Cluster
from kcoord.client.consumer.assignors.base import (
    NO_GENERATION,
    Assignments,
    MemberSubscription,
    PartitionAssignor,
    TopicInfo,
)
from kcoord.client.consumer.classic.embedded import decode_subscription, encode_assignment, encode_subscription
from kcoord.client.consumer.membership import GroupHost
from kcoord.client.consumer.options import log
from kcoord.client.deadline import Deadline
from kcoord.client.errors import ConnectionLost, IllegalState, KafkaError, check, error_for
from kcoord.client.metadata import TopicPartition
from kcoord.protocol import apis, errors
from kcoord.protocol.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

PROTOCOL_TYPE: Final = "consumer"
GROUP_LANE: Final = "group"
# Versions with static members, a reason, and the type and name of the protocol.
JOIN_STATIC_FROM: Final = 5
SYNC_STATIC_FROM: Final = 3
REASON_FROM: Final = 8
SYNC_PROTOCOL_FROM: Final = 5
REASON_MAX: Final = 255
# The coordinator may need so much longer than the rebalance timeout.
JOIN_LAPSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Generation:
    """Who the member is. Without a generation, `member_id` is what to join with."""

    generation_id: int = NO_GENERATION
    member_id: str = ""
    protocol_name: str = ""

    @property
    def is_joined(self) -> bool:
        return self.generation_id != NO_GENERATION


@dataclass(frozen=True, slots=True)
class Led:
    """What the leader has seen: it must have the group rebalance when this changes."""

    topics: frozenset[str]
    seen: Mapping[str, TopicInfo]


@dataclass(frozen=True, slots=True)
class Joined:
    """JoinGroup has succeeded. `members` is for the leader, who must assign unless `skip_assignment`."""

    generation: Generation
    is_leader: bool
    members: Sequence[JoinGroupResponseMember]
    skip_assignment: bool


@final
class Joiner:
    """Sends the requests. Raises BrokerError for error codes, and other KafkaErrors."""

    def __init__(self, host: GroupHost, assignors: Sequence[PartitionAssignor], is_cooperative: bool) -> None:
        self._host = host
        self._cluster: Cluster = host.cluster
        self._options = host.options
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._is_cooperative = is_cooperative
        # The id that the coordinator gave the member for its next attempt (KIP-394).
        self.member_id = ""

    async def join(
        self, generation: Generation, topics: frozenset[str], owned: Sequence[TopicPartition], reason: str
    ) -> Joined:
        options = self._options
        protocols = [
            JoinGroupRequestProtocol(
                assignor.name,
                encode_subscription(
                    topics, owned, generation.generation_id, options.client_rack, assignor.user_data(topics)
                ),
            )
            for assignor in self._assignors.values()
        ]
        rebalance_timeout_s = options.max_poll_interval_s

        def request(version: int) -> JoinGroupRequest:
            return JoinGroupRequest(
                self._host.group_id,
                int(options.session_timeout_s * 1000),
                int(rebalance_timeout_s * 1000),
                generation.member_id,
                options.group_instance_id,
                PROTOCOL_TYPE,
                protocols,
                reason[:REASON_MAX] if version >= REASON_FROM else None,
            )

        answer = await self._cluster.ask_coordinator(
            GROUP,
            self._host.group_id,
            apis.JOIN_GROUP,
            request,
            JoinGroupResponse,
            lane=GROUP_LANE,
            version_min=0 if options.group_instance_id is None else JOIN_STATIC_FROM,
            timeout_s=max(options.request_timeout_s, rebalance_timeout_s + JOIN_LAPSE_S),
        )
        if answer.error_code == errors.MEMBER_ID_REQUIRED and answer.member_id:
            # KIP-394: the coordinator wants to see the member again before it counts.
            self.member_id = answer.member_id
            return await self.join(replace(generation, member_id=answer.member_id), topics, owned, reason)
        check(answer.error_code, f"joining group {self._host.group_id}")
        if answer.protocol_type not in (None, PROTOCOL_TYPE):
            raise error_for(errors.INCONSISTENT_GROUP_PROTOCOL, f"group {self._host.group_id}")
        found = Generation(answer.generation_id, answer.member_id, answer.protocol_name or "")
        return Joined(found, answer.leader == answer.member_id, answer.members, answer.skip_assignment)

    async def sync(self, joined: Joined, assignments: Assignments) -> bytes:
        """The assignment of this member, in bytes."""
        who = joined.generation

        def request(version: int) -> SyncGroupRequest:
            has_protocol = version >= SYNC_PROTOCOL_FROM
            return SyncGroupRequest(
                self._host.group_id,
                who.generation_id,
                who.member_id,
                self._options.group_instance_id,
                PROTOCOL_TYPE if has_protocol else None,
                who.protocol_name if has_protocol else None,
                [
                    SyncGroupRequestAssignment(member_id, encode_assignment(partitions))
                    for member_id, partitions in assignments.items()
                ],
            )

        answer = await self._cluster.ask_coordinator(
            GROUP,
            self._host.group_id,
            apis.SYNC_GROUP,
            request,
            SyncGroupResponse,
            lane=GROUP_LANE,
            version_min=0 if self._options.group_instance_id is None else SYNC_STATIC_FROM,
            timeout_s=max(self._options.request_timeout_s, self._options.max_poll_interval_s + JOIN_LAPSE_S),
        )
        check(answer.error_code, f"the assignment of group {self._host.group_id}")
        if answer.protocol_name not in (None, who.protocol_name):
            raise error_for(errors.INCONSISTENT_GROUP_PROTOCOL, f"group {self._host.group_id}")
        return bytes(answer.assignment)

    def hang_up(self) -> None:
        """End the connection on which a request waits for the group."""
        for node_id in self._cluster.nodes():
            connection = self._cluster.open_connection(node_id, GROUP_LANE)
            if connection is not None and connection.in_flight:
                connection.abort(ConnectionLost(f"{connection.address}: the consumer has left the group"))

    # --- the leader

    async def lead(self, joined: Joined) -> tuple[Assignments, Led]:
        """Run the assignor for all members."""
        assignor = self.assignor(joined.generation.protocol_name)
        members = {
            one.member_id: decode_subscription(bytes(one.metadata), one.member_id, one.group_instance_id)
            for one in joined.members
        }
        topics = frozenset().union(*(member.topics for member in members.values()))
        self._cluster.watch(topics)
        deadline = Deadline(self._options.request_timeout_s, "the topics of the group")
        await self._cluster.refresh(deadline)
        seen = self.see(topics)
        if joined.skip_assignment:
            return {}, Led(topics, seen)
        try:
            assignments = assignor.assign(seen, members)
        except Exception as error:
            raise IllegalState(f"assignor {assignor.name!r} has failed: {error!r}") from error
        _check_assignments(assignor.name, assignments, members, self._is_cooperative)
        log.debug("group %s: assigned by %s: %s", self._host.group_id, assignor.name, assignments)
        return {member_id: assignments.get(member_id, []) for member_id in members}, Led(topics, seen)

    def see(self, topics: frozenset[str]) -> dict[str, TopicInfo]:
        """The topics as they are known now."""
        metadata = self._cluster.metadata
        found: dict[str, TopicInfo] = {}
        uses_racks = bool(self._options.client_rack) or any(node.rack for node in metadata.nodes.values())
        for name in sorted(topics):
            topic = metadata.topics.get(name)
            if topic is None or not topic.partitions:
                continue
            racks: tuple[frozenset[str], ...] = ()
            if uses_racks:
                racks = tuple(
                    frozenset(
                        node.rack
                        for node in (metadata.nodes.get(replica) for replica in topic.partitions[number].replicas)
                        if node is not None and node.rack
                    )
                    for number in sorted(topic.partitions)
                )
            found[name] = TopicInfo(name, len(topic.partitions), racks)
        return found

    def assignor(self, name: str) -> PartitionAssignor:
        found = self._assignors.get(name)
        if found is None:
            raise IllegalState(f"the group has chosen assignor {name!r}, which this member does not have")
        return found


def _check_assignments(
    name: str, assignments: Assignments, members: Mapping[str, MemberSubscription], is_cooperative: bool
) -> None:
    """Raises IllegalState if a partition has two owners, or is taken from one member for another at once (KIP-429)."""
    problem: KafkaError | None = None
    owners: dict[TopicPartition, str] = {}
    for member_id, partitions in assignments.items():
        if member_id not in members:
            problem = IllegalState(f"assignor {name!r} has assigned partitions to {member_id!r}, which is no member")
        for partition in partitions:
            if owners.setdefault(partition, member_id) != member_id:
                problem = IllegalState(f"assignor {name!r} has assigned {partition} to two members")
    if is_cooperative:
        owned = {partition: one.member_id for one in members.values() for partition in one.owned}
        for partition, member_id in owners.items():
            old = owned.get(partition, member_id)
            if old != member_id and partition not in members[member_id].owned:
                problem = IllegalState(f"assignor {name!r} has given {partition} away, which {old!r} still owns")
    if problem is not None:
        raise problem
