"""One classic consumer group: what its log says about it, and what its members are doing right now.

The hard part is the last GroupMetadataValue that was replayed (`value`, `end_offset`): it is what survives a crash.
The soft part is everything else: members as they are at this moment, who waits for whom, which timers count. It is
built from the hard part after start-up (`build_live`) and then changed by the handlers alone; losing it at any moment
costs the members one rebalance and nothing more.

This module holds data and questions about it. What happens when is in `classic_rebalance` (the join phase),
`classic_join`, `classic_sync` and `classic_membership`.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.groups.cause import MEMBER_REJOINED, Cause
from kcoord.core.groups.timers import NO_TOKEN
from kcoord.core.hashing import java_string_hash
from kcoord.core.outcome import LogId
from kcoord.protocol import errors
from kcoord.protocol.join_group import JoinGroupRequestProtocol
from kcoord.protocol.records.group_metadata import GroupMetadataValue, MemberMetadata
from kcoord.wire.primitives import DecodeError, Reader

# The states, spelled as describe and list show them.
EMPTY: Final = "Empty"
PREPARING_REBALANCE: Final = "PreparingRebalance"
COMPLETING_REBALANCE: Final = "CompletingRebalance"
STABLE: Final = "Stable"
DEAD: Final = "Dead"

CONSUMER_PROTOCOL_TYPE: Final = "consumer"

# Nothing is parked.
NO_REQUEST: Final = -1

GENERATION_MAX: Final = 2147483647

# Bytes around the variable parts of a record: batch and record headers, then the fixed fields of one member.
RECORD_OVERHEAD_BYTES: Final = 160
MEMBER_OVERHEAD_BYTES: Final = 40


@final
class ClassicMember:
    """A member. `join_request_id` and `sync_request_id` name requests that wait for an answer, or NO_REQUEST."""

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocol_type: str,
        protocols: list[JoinGroupRequestProtocol],
        assignment: bytes,
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocol_type = protocol_type
        self.protocols = protocols
        self.assignment = assignment
        self.join_request_id = NO_REQUEST
        self.join_version = 0
        self.sync_request_id = NO_REQUEST
        # A member that has never been told its id by a completed join: it may expire even while its join is parked.
        self.is_new = False

    def is_awaiting_join(self) -> bool:
        return self.join_request_id != NO_REQUEST

    def is_awaiting_sync(self) -> bool:
        return self.sync_request_id != NO_REQUEST

    def metadata(self, protocol_name: str | None) -> bytes:
        """What the member said about itself under this protocol; empty if it does not know the protocol."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""

    def matches(self, protocols: list[JoinGroupRequestProtocol]) -> bool:
        """Same protocols, same metadata, same order of preference."""
        return self.protocols == protocols

    def vote(self, candidates: dict[str, int]) -> str | None:
        """The candidate this member likes best."""
        for protocol in self.protocols:
            if protocol.name in candidates:
                return protocol.name
        return None


def unique_protocols(protocols: list[JoinGroupRequestProtocol]) -> list[JoinGroupRequestProtocol]:
    """The list without repeated names: a name counts once per member, or the vote would never find it common to all."""
    names: dict[str, bool] = {}
    unique: list[JoinGroupRequestProtocol] = []
    for protocol in protocols:
        if protocol.name not in names:
            names[protocol.name] = True
            unique.append(protocol)
    return unique


@final
class ClassicGroup:
    def __init__(self, group_id: str, log: LogId, wall_ms: int) -> None:
        self.group_id = group_id
        self.log = log

        # Hard part: what the log says.
        self.value: GroupMetadataValue | None = None
        # The log's offset after the last record that concerns this group.
        self.end_offset = 0
        # The last record made a classic group of one of the new protocol, some of whose partitions are with nobody
        # until the next generation. Compaction forgets it.
        self.is_converted_unbalanced = False

        # Soft part.
        self.state: str = EMPTY
        self.previous_state: str = DEAD
        self.current_state_timestamp_ms = wall_ms
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.generation_id = 0
        self.leader_id: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        # Member ids that were handed out and not used yet (two-step join), with the token of their timer.
        self.pending_members: dict[str, int] = {}
        # Members of this generation that have not sent SyncGroup. A dict, since sets have no order.
        self.pending_sync: dict[str, bool] = {}
        self.awaiting_join = 0
        # How many members support each protocol; names without a member are not kept.
        self.supported_protocols: dict[str, int] = {}
        # What members of a group that was converted still have, by topic id, until the leader assigns anew: their
        # assignments say what they are to have.
        self.held: dict[str, dict[bytes, list[int]]] = {}
        self.new_member_added = False
        self.join_token = NO_TOKEN
        self.sync_token = NO_TOKEN
        self.initial_delay_ms = 0
        self.initial_remaining_ms = 0
        # Why the rebalance began that no record tells of yet.
        self.cause: Cause | None = None
        # Subscriptions of the current generation, decoded when somebody asks (a rebalance must not pay for it).
        self._subscriptions_known = False
        self._subscriptions: list[bytes] = []
        self._topics: dict[str, bool] | None = None

    # ---- questions

    def is_empty(self) -> bool:
        return self.state == EMPTY

    def is_simple(self) -> bool:
        """True for a group that only stores offsets."""
        return self.protocol_type is None and self.state == EMPTY and not self.pending_members

    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def is_leader(self, member_id: str) -> bool:
        return self.leader_id == member_id

    def can_rebalance(self) -> bool:
        return self.state == STABLE or self.state == COMPLETING_REBALANCE or self.state == EMPTY

    def has_all_members_joined(self) -> bool:
        return self.awaiting_join == len(self.members) and not self.pending_members

    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of any member, which the whole group waits for."""
        longest = 0
        for member in self.members.values():
            if member.rebalance_timeout_ms > longest:
                longest = member.rebalance_timeout_ms
        return longest

    def supports_protocols(self, protocol_type: str, protocols: list[JoinGroupRequestProtocol]) -> bool:
        """Whether somebody with these protocols can be in this group beside those who are in it."""
        if self.state == EMPTY:
            return protocol_type != "" and len(protocols) > 0
        if self.protocol_type != protocol_type:
            return False
        size = len(self.members)
        for protocol in protocols:
            if self.supported_protocols.get(protocol.name, 0) == size:
                return True
        return False

    def select_protocol(self) -> str | None:
        """The protocol common to all that most members prefer; of equals the one a broker would take."""
        size = len(self.members)
        candidates: dict[str, int] = {}
        for name, count in self.supported_protocols.items():
            if count == size:
                candidates[name] = count
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            if choice is not None:
                votes[choice] = votes.get(choice, 0) + 1
        buckets = hash_buckets(len(votes))
        best: str | None = None
        best_votes = 0
        best_bucket = 0
        for name, count in votes.items():
            bucket = hash_bucket(name, buckets)
            if count > best_votes or (count == best_votes and bucket < best_bucket):
                best = name
                best_votes = count
                best_bucket = bucket
        return best

    def validate_member(self, member_id: str, group_instance_id: str | None) -> int:
        """NONE, UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID where another member holds the instance id (KIP-345)."""
        if group_instance_id is not None:
            existing = self.static_members.get(group_instance_id)
            if existing is None:
                return errors.UNKNOWN_MEMBER_ID
            if existing != member_id:
                return errors.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return errors.UNKNOWN_MEMBER_ID
        return errors.NONE

    def validate_offset_commit(
        self, member_id: str, group_instance_id: str | None, generation_id: int, version: int
    ) -> int:
        """The error code for a commit that says it comes from this member and generation, or NONE."""
        if self.state == DEAD:
            return errors.COORDINATOR_NOT_AVAILABLE
        if generation_id < 0 and self.state == EMPTY:
            # A standalone consumer or an admin client.
            return errors.NONE
        if generation_id >= 0 or member_id != "" or group_instance_id is not None:
            error = self.validate_member(member_id, group_instance_id)
            if error != errors.NONE:
                return error
            if generation_id != self.generation_id:
                return errors.ILLEGAL_GENERATION
        elif self.state != EMPTY:
            return errors.UNKNOWN_MEMBER_ID
        if self.state == COMPLETING_REBALANCE:
            # The member knows the new generation, whose assignment is still to come.
            return errors.REBALANCE_IN_PROGRESS
        return errors.NONE

    def validate_txn_offset_commit(
        self, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> int:
        """As validate_offset_commit, for commits inside a transaction, where the group's phase does not matter."""
        if self.state == DEAD:
            return errors.COORDINATOR_NOT_AVAILABLE
        if generation_id < 0 and self.state == EMPTY:
            return errors.NONE
        if generation_id >= 0 or member_id != "" or group_instance_id is not None:
            error = self.validate_member(member_id, group_instance_id)
            if error != errors.NONE:
                return error
            if generation_id != self.generation_id:
                return errors.ILLEGAL_GENERATION
        return errors.NONE

    def validate_offset_delete(self) -> int:
        """NONE, or NON_EMPTY_GROUP: members whose subscriptions are unknown protect every offset (KIP-496)."""
        if self.state == DEAD:
            return errors.GROUP_ID_NOT_FOUND
        if self.state != EMPTY and not self.uses_consumer_protocol():
            return errors.NON_EMPTY_GROUP
        return errors.NONE

    def validate_delete(self) -> int:
        if self.state == DEAD:
            return errors.GROUP_ID_NOT_FOUND
        return errors.NONE if self.state == EMPTY else errors.NON_EMPTY_GROUP

    # ---- subscriptions, for the expiry and deletion of offsets

    def subscribed_topics(self) -> dict[str, bool] | None:
        """Topics the current generation subscribes to, as keys; None where that cannot be known."""
        if not self._subscriptions_known:
            return None
        if self._topics is None:
            topics: dict[str, bool] = {}
            for subscription in self._subscriptions:
                if not _read_topics(subscription, topics):
                    self._subscriptions_known = False
                    self._subscriptions = []
                    return None
            self._topics = topics
            self._subscriptions = []
        return self._topics

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether offsets of this topic are in use; unknown subscriptions of consumers count as yes."""
        topics = self.subscribed_topics()
        if topics is None:
            return self.uses_consumer_protocol()
        return topic in topics

    def offset_expiry_base_ms(self, commit_timestamp_ms: int) -> int:
        """From when an offset's retention counts, or -1 while nothing may expire (KIP-211).

        In a Stable consumer group only offsets of topics nobody subscribes to expire: ask is_subscribed_to too.
        """
        if self.protocol_type is None:
            return commit_timestamp_ms
        if self.state == EMPTY:
            stamp = self.current_state_timestamp_ms
            return stamp if stamp != -1 else commit_timestamp_ms
        if self.state == STABLE and self.uses_consumer_protocol() and self.subscribed_topics() is not None:
            return commit_timestamp_ms
        return -1

    def take_subscriptions(self) -> None:
        """Remember what the members of this generation subscribe to."""
        self._topics = None
        self._subscriptions = []
        self._subscriptions_known = False
        if not self.uses_consumer_protocol():
            return
        if not self.members:
            self._subscriptions_known = True
            return
        if self.protocol_name is None:
            return
        for member in self.members.values():
            self._subscriptions.append(member.metadata(self.protocol_name))
        self._subscriptions_known = True

    # ---- changes of the soft part

    def transition_to(self, state: str, wall_ms: int) -> None:
        self.previous_state = self.state
        self.state = state
        self.current_state_timestamp_ms = wall_ms

    def add_member(self, member: ClassicMember) -> None:
        """Let a member in. Whether it fits was checked before (supports_protocols)."""
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member, 1)
        if member.is_awaiting_join():
            self.awaiting_join += 1
        self.pending_members.pop(member.member_id, None)

    def remove_member(self, member_id: str, elects_leader: bool = True) -> ClassicMember | None:
        """Take a member or a pending member out. What it had parked is the caller's to answer.

        A dict remembers entries that were removed and steps over them, so to find the next leader after each of many
        members takes time that is quadratic in their number. Who removes many calls `elect_leader` once.
        """
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_protocols(member, -1)
            if member.is_awaiting_join():
                self.awaiting_join -= 1
            instance_id = member.group_instance_id
            # The instance may belong to a replacement by now.
            if instance_id is not None and self.static_members.get(instance_id) == member_id:
                del self.static_members[instance_id]
        if self.leader_id == member_id:
            self.leader_id = None
            if elects_leader:
                self.elect_leader()
        self.pending_members.pop(member_id, None)
        self.pending_sync.pop(member_id, None)
        return member

    def elect_leader(self) -> None:
        """Where nobody leads, the member that has been here the longest does."""
        if self.leader_id is None:
            for member_id in self.members:
                self.leader_id = member_id
                break

    def replace_static_member(self, old: ClassicMember, new_member_id: str) -> ClassicMember:
        """The same member under a new id (KIP-345); it takes over leadership, assignment and what is expected of it."""
        self.remove_keeping_order(old)
        member = ClassicMember(
            new_member_id,
            old.group_instance_id,
            old.client_id,
            old.client_host,
            old.rebalance_timeout_ms,
            old.session_timeout_ms,
            old.protocol_type,
            old.protocols,
            old.assignment,
        )
        self.members[new_member_id] = member
        self._count_protocols(member, 1)
        if old.group_instance_id is not None:
            self.static_members[old.group_instance_id] = new_member_id
        if self.leader_id == old.member_id:
            self.leader_id = new_member_id
        if self.pending_sync.pop(old.member_id, False):
            self.pending_sync[new_member_id] = True
        return member

    def remove_keeping_order(self, member: ClassicMember) -> None:
        """Take out a member that comes back at once under another id: nobody is elected in between."""
        del self.members[member.member_id]
        self._count_protocols(member, -1)
        if member.is_awaiting_join():
            self.awaiting_join -= 1

    def update_member(
        self,
        member: ClassicMember,
        protocols: list[JoinGroupRequestProtocol],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def park_join(self, member: ClassicMember, request_id: int, version: int) -> None:
        if not member.is_awaiting_join():
            self.awaiting_join += 1
        member.join_request_id = request_id
        member.join_version = version

    def unpark_join(self, member: ClassicMember) -> int:
        """The parked JoinGroup's request id, which is no longer parked; NO_REQUEST if there is none."""
        request_id = member.join_request_id
        if request_id != NO_REQUEST:
            member.join_request_id = NO_REQUEST
            self.awaiting_join -= 1
        return request_id

    def next_generation(self, wall_ms: int) -> None:
        """Close the join phase: those who are members now make the generation.

        After the largest number comes 1. Only equality of generations matters, and clients take negative ones for
        "not a member".
        """
        self.generation_id = 1 if self.generation_id >= GENERATION_MAX else self.generation_id + 1
        self.pending_sync = {}
        if self.members:
            self.protocol_name = self.select_protocol()
            self.take_subscriptions()
            self.transition_to(COMPLETING_REBALANCE, wall_ms)
        else:
            self.protocol_name = None
            self.take_subscriptions()
            self.transition_to(EMPTY, wall_ms)

    def _count_protocols(self, member: ClassicMember, step: int) -> None:
        counts = self.supported_protocols
        for protocol in member.protocols:
            count = counts.get(protocol.name, 0) + step
            if count > 0:
                counts[protocol.name] = count
            else:
                counts.pop(protocol.name, None)

    # ---- to and from the log

    def note_cause(self, cause: Cause) -> None:
        """Why the group rebalances, or what else came before that was over. That members join again is no news."""
        if self.cause is None:
            self.cause = cause
        elif cause.kind != MEMBER_REJOINED:
            self.cause = self.cause.followed_by(cause)

    def take_cause(self) -> Cause | None:
        """Why the group has the generation that is about to be written down; asked for once."""
        cause = self.cause
        self.cause = None
        return cause

    def metadata_value(self) -> GroupMetadataValue:
        """The record of this group as it is now."""
        members: list[MemberMetadata] = []
        for member in self.members.values():
            members.append(
                MemberMetadata(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.session_timeout_ms,
                    member.metadata(self.protocol_name),
                    member.assignment,
                )
            )
        protocol_type = self.protocol_type
        return GroupMetadataValue(
            protocol_type if protocol_type is not None else "",
            self.generation_id,
            self.protocol_name,
            self.leader_id,
            self.current_state_timestamp_ms,
            members,
        )

    def clear_live(self) -> None:
        """Forget members and timers; the group is Empty. What was parked has been answered before."""
        self.state = EMPTY
        self.previous_state = DEAD
        self.leader_id = None
        self.members = {}
        self.static_members = {}
        self.pending_members = {}
        self.pending_sync = {}
        self.supported_protocols = {}
        self.awaiting_join = 0
        self.new_member_added = False
        self.join_token = NO_TOKEN
        self.sync_token = NO_TOKEN
        self.cause = None

    def build_live(self) -> None:
        """Make the soft part from the hard part, as after start-up: Stable with members, or Empty."""
        value = self.value
        if value is None:
            return
        self.clear_live()
        self.state = STABLE if value.members else EMPTY
        self.generation_id = value.generation
        self.protocol_type = value.protocol_type if value.protocol_type != "" else None
        self.protocol_name = value.protocol
        self.leader_id = value.leader
        self.current_state_timestamp_ms = value.current_state_timestamp
        protocol_name = value.protocol if value.protocol is not None else ""
        for stored in value.members:
            rebalance_timeout_ms = stored.rebalance_timeout
            if rebalance_timeout_ms == -1:
                # Record version 0 had no rebalance timeout.
                rebalance_timeout_ms = stored.session_timeout
            self.add_member(
                ClassicMember(
                    stored.member_id,
                    stored.group_instance_id,
                    stored.client_id,
                    stored.client_host,
                    rebalance_timeout_ms,
                    stored.session_timeout,
                    value.protocol_type,
                    [JoinGroupRequestProtocol(protocol_name, stored.subscription)],
                    stored.assignment,
                )
            )
        if self.members and self.leader_id not in self.members:
            # A leader that is not a member could never rejoin, and no other would be asked to lead.
            for member_id in self.members:
                self.leader_id = member_id
                break
        self.take_subscriptions()


def hash_buckets(entries: int) -> int:
    """How many buckets a Java HashMap has that this many entries were put into."""
    buckets = 16
    while entries * 4 > buckets * 3:
        buckets *= 2
    return buckets


def hash_bucket(text: str, buckets: int) -> int:
    """Where a Java HashMap keeps this key. Brokers break ties by the order of such a map, and so do we."""
    h = java_string_hash(text) & 0xFFFFFFFF
    return (h ^ (h >> 16)) & (buckets - 1)


def value_bytes_max(group_id: str, value: GroupMetadataValue) -> int:
    """An upper bound of the batch that holds this one record."""
    size = RECORD_OVERHEAD_BYTES + _text_bytes(group_id) + _text_bytes(value.protocol_type)
    size += _text_bytes(value.protocol) + _text_bytes(value.leader)
    for member in value.members:
        size += MEMBER_OVERHEAD_BYTES
        size += _text_bytes(member.member_id) + _text_bytes(member.group_instance_id)
        size += _text_bytes(member.client_id) + _text_bytes(member.client_host)
        size += len(member.subscription) + len(member.assignment)
    return size


def _text_bytes(text: str | None) -> int:
    if text is None:
        return 0
    return len(text) if text.isascii() else len(text.encode("utf-8"))


def _read_topics(subscription: bytes, topics: dict[str, bool]) -> bool:
    """Add the topics of a ConsumerProtocolSubscription; False if it is none.

    Version 0 is a prefix of every version, so a subscription newer than this code is read as well.
    """
    try:
        reader = Reader(subscription)
        if reader.int16() < 0:
            return False
        for _ in range(reader.array_len(2)):
            topics[reader.string()] = True
    except DecodeError:
        return False
    return True
