"""One classic consumer group: hard state from the log, and the live state of its members.

The hard state is the last GroupMetadataValue that was replayed (`value`, `end_offset`). It is what survives a crash.
The soft state is everything else: the members right now, parked requests, tokens of timers. After start-up it is built
from the hard state (`build_live`); from then on only handlers change it. Losing it at any moment costs the members one
rebalance and nothing more.

This module holds data and queries. The protocol itself is in `core/classic`: `rebalance` (the join phase), `join`,
`sync` and `membership`.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.cause import MEMBER_REJOINED, Cause
from kcoord.core.groups.timers import NO_TOKEN
from kcoord.core.hashing import java_string_hash
from kcoord.core.outcome import LogId, MadeGroup
from kcoord.core.transitions import IllegalTransition
from kcoord.protocol import errors
from kcoord.protocol.join_group import JoinGroupRequestProtocol
from kcoord.protocol.records.group_metadata import GroupMetadataValue, MemberMetadata
from kcoord.wire.primitives import DecodeError, Reader

# The states, spelled as DescribeGroups and ListGroups show them.
EMPTY: Final = "Empty"
PREPARING_REBALANCE: Final = "PreparingRebalance"
COMPLETING_REBALANCE: Final = "CompletingRebalance"
STABLE: Final = "Stable"
DEAD: Final = "Dead"

# From each state, the states that may follow, as in a broker. Building a group from its record (`build_live`) is not a
# transition: the group begins as Stable or Empty. A state ends when:
#   Empty               a member joins
#   PreparingRebalance  all have joined, or the time is up: there is a new generation, or no member is left
#   CompletingRebalance the leader has sent the assignment, or a member joined or left before that
#   Stable              a member joined, left or changed
#   Dead                the group is removed, and only the object is left
TRANSITIONS: Final[dict[str, tuple[str, ...]]] = {
    EMPTY: (PREPARING_REBALANCE, DEAD),
    PREPARING_REBALANCE: (COMPLETING_REBALANCE, EMPTY, DEAD),
    COMPLETING_REBALANCE: (STABLE, PREPARING_REBALANCE, DEAD),
    STABLE: (PREPARING_REBALANCE, DEAD),
    DEAD: (DEAD,),
}

CONSUMER_PROTOCOL_TYPE: Final = "consumer"

# The request id that means: no request is parked.
NO_REQUEST: Final = -1

GENERATION_MAX: Final = 2147483647

# Skipping a removed entry of a dict takes a nanosecond, and copying an entry takes some tens of them.
SKIPS_PER_MEMBER: Final = 64

# Bytes around the variable parts of a record: batch and record headers, then the fixed fields of one member.
RECORD_OVERHEAD_BYTES: Final = 160
MEMBER_OVERHEAD_BYTES: Final = 40


@final
class ClassicMember:
    """A member. `join_request_id` and `sync_request_id` are the ids of its parked requests, or NO_REQUEST."""

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
        # True until a join phase completed and the client knows its id. A new member may expire even while its
        # JoinGroup is parked: its client may have given up and joined again without an id.
        self.is_new = False

    def is_awaiting_join(self) -> bool:
        return self.join_request_id != NO_REQUEST

    def is_awaiting_sync(self) -> bool:
        return self.sync_request_id != NO_REQUEST

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's metadata for this protocol; empty if it does not support the protocol."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""

    def matches(self, protocols: list[JoinGroupRequestProtocol]) -> bool:
        """Whether protocols, metadata and order of preference are the same."""
        return self.protocols == protocols

    def vote(self, candidates: dict[str, int]) -> str | None:
        """The candidate that this member prefers."""
        for protocol in self.protocols:
            if protocol.name in candidates:
                return protocol.name
        return None


def unique_protocols(protocols: list[JoinGroupRequestProtocol]) -> list[JoinGroupRequestProtocol]:
    """The list without repeated names. A name must count once per member, or the vote would never find it common to
    all.
    """
    names: dict[str, bool] = {}
    unique: list[JoinGroupRequestProtocol] = []
    for protocol in protocols:
        if protocol.name not in names:
            names[protocol.name] = True
            unique.append(protocol)
    return unique


@final
class ClassicGroup(MadeGroup):
    """A group in its first state: Empty, or Stable for one that is made with its members and their assignments."""

    def __init__(self, group_id: str, log: LogId, wall_ms: int, state: str = EMPTY) -> None:
        self.group_id = group_id
        self.log = log

        # Hard state.
        self.value: GroupMetadataValue | None = None
        # The offset after the last record that concerns this group, in the log of the group.
        self.end_offset = 0
        # The last record converted a consumer group, and some of its partitions have no owner until the next
        # generation. Derived from the tombstones before the record, so compaction may lose it.
        self.is_converted_unbalanced = False

        # Soft state.
        # The offset after the last transactional offset commit or marker that concerns this group.
        self.transactions_end = 0
        self.state: str = state
        self.previous_state: str = DEAD
        self.current_state_timestamp_ms = wall_ms
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.generation_id = 0
        self.leader_id: str | None = None
        self.members: dict[str, ClassicMember] = {}
        # How many members were removed from this dict since it was built.
        self._removed_members = 0
        self.static_members: dict[str, str] = {}
        # Member ids that were assigned but not yet used to join (KIP-394), with the tokens of their timers.
        self.pending_members: dict[str, int] = {}
        # Members of this generation that have not sent SyncGroup. A dict, because sets are unordered.
        self.pending_sync: dict[str, bool] = {}
        self.awaiting_join = 0
        # How many members support each protocol. A count of 0 is removed.
        self.supported_protocols: dict[str, int] = {}
        # Partitions that members of a converted group still own, by topic id, until the leader assigns anew. Their
        # assignments contain only what they should own.
        self.held: dict[str, dict[bytes, list[int]]] = {}
        self.new_member_added = False
        self.join_token = NO_TOKEN
        self.sync_token = NO_TOKEN
        self.initial_delay_ms = 0
        self.initial_remaining_ms = 0
        # The cause of a rebalance that has no record yet.
        self.cause: Cause | None = None
        # Subscriptions of the current generation, decoded on first use so that a rebalance does not pay for it.
        self._subscriptions_known = False
        self._subscriptions: list[bytes] = []
        self._topics: dict[str, bool] | None = None

    # ---- queries

    def is_empty(self) -> bool:
        return self.state == EMPTY

    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def is_leader(self, member_id: str) -> bool:
        return self.leader_id == member_id

    def can_rebalance(self) -> bool:
        return self.state == STABLE or self.state == COMPLETING_REBALANCE or self.state == EMPTY

    def has_all_members_joined(self) -> bool:
        return self.awaiting_join == len(self.members) and not self.pending_members

    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members. The whole group waits that long."""
        longest = 0
        for member in self.members.values():
            if member.rebalance_timeout_ms > longest:
                longest = member.rebalance_timeout_ms
        return longest

    def supports_protocols(self, protocol_type: str, protocols: list[JoinGroupRequestProtocol]) -> bool:
        """Whether a member with these protocols can join the members that the group has."""
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
        """The common protocol that most members prefer. Ties are broken as a broker breaks them."""
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
        """NONE, UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another member holds the instance id (KIP-345)."""
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
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        is_transactional: bool = False,
    ) -> int:
        """The error code of an OffsetCommit that names this member and generation, or NONE.

        A TxnOffsetCommit (`is_transactional`) may name no member at all, as those before KIP-447 do, and the state of
        the group does not matter for it.
        """
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
        elif not is_transactional and self.state != EMPTY:
            return errors.UNKNOWN_MEMBER_ID
        if not is_transactional and self.state == COMPLETING_REBALANCE:
            # The member has joined the new generation, but has no assignment yet.
            return errors.REBALANCE_IN_PROGRESS
        return errors.NONE

    def validate_offset_delete(self) -> int:
        """NONE or NON_EMPTY_GROUP. Where subscriptions of members are unknown, no offset may be deleted (KIP-496)."""
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
        """The topics that the current generation subscribes to, as keys; None if they are unknown."""
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
        """Whether offsets of this topic are in use. Consumers with unknown subscriptions count as subscribed."""
        topics = self.subscribed_topics()
        if topics is None:
            return self.uses_consumer_protocol()
        return topic in topics

    def offset_expiry_base_ms(self, commit_timestamp_ms: int) -> int:
        """The time from which an offset's retention counts, or -1 while it must not expire (KIP-211).

        In a Stable consumer group only offsets of topics without subscribers expire: check `is_subscribed_to` too.
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
        """Decode and keep the subscriptions of this generation."""
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

    # ---- changes of soft state

    def transition_to(self, state: str, wall_ms: int) -> None:
        """Change the state. Raises IllegalTransition, and changes nothing, if the table does not allow that."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"classic group {self.group_id}", self.state, state)
        self.previous_state = self.state
        self.state = state
        self.current_state_timestamp_ms = wall_ms

    def add_member(self, member: ClassicMember) -> None:
        """Add a member. The caller has checked `supports_protocols`."""
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
        """Remove a member or a pending member. The caller answers its parked requests first.

        Callers that remove many members pass False and call `elect_leader` once at the end.
        """
        member = self.members.pop(member_id, None)
        if member is not None:
            self._removed_members += 1
            self._count_protocols(member, -1)
            if member.is_awaiting_join():
                self.awaiting_join -= 1
            instance_id = member.group_instance_id
            # A replacement may hold the instance id already.
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
        """If there is no leader, elect the member that has been in the group for the longest time.

        A dict skips removed entries one by one. When sessions expire in the order in which members joined, each
        removes a leader, and the skips add up to quadratic time. So the dict is built again before skipping costs more
        than that.
        """
        if self.leader_id is None:
            if self._removed_members * self._removed_members > SKIPS_PER_MEMBER * len(self.members):
                # A plain copy may keep the gaps.
                self.members = {member_id: member for member_id, member in self.members.items()}  # noqa: C416
                self._removed_members = 0
            for member_id in self.members:
                self.leader_id = member_id
                break

    def replace_static_member(self, old: ClassicMember, new_member_id: str) -> ClassicMember:
        """Move the member to a new id (KIP-345). Leadership, assignment and pending requests move with it."""
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
        held = self.held.pop(old.member_id, None)
        if held is not None:
            self.held[new_member_id] = held
        return member

    def remove_keeping_order(self, member: ClassicMember) -> None:
        """Remove a member that returns at once under another id. No leader is elected in between."""
        del self.members[member.member_id]
        self._removed_members += 1
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
        """The request id of the parked JoinGroup, which is unparked; NO_REQUEST if there is none."""
        request_id = member.join_request_id
        if request_id != NO_REQUEST:
            member.join_request_id = NO_REQUEST
            self.awaiting_join -= 1
        return request_id

    def next_generation(self, wall_ms: int) -> None:
        """End the join phase: the current members form the next generation.

        After the largest number follows 1. Generations are only compared for equality, and clients read negative
        numbers as "not a member".
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
        """Record why the group rebalances, or append a cause to that of the running rebalance. Rejoining is expected
        then and adds nothing.
        """
        if self.cause is None:
            self.cause = cause
        elif cause.kind != MEMBER_REJOINED:
            self.cause = self.cause.followed_by(cause)

    def take_cause(self) -> Cause | None:
        """The cause of the generation whose record is about to be written. Calling this clears it."""
        cause = self.cause
        self.cause = None
        return cause

    def metadata_value(self) -> GroupMetadataValue:
        """The record that describes the group as it is now."""
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
        """Remove all members and timers; the group becomes Empty. The caller has answered all parked requests."""
        self.state = EMPTY
        self.previous_state = DEAD
        self.leader_id = None
        self.members = {}
        self._removed_members = 0
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
        """Build the soft state from the hard state, as after start-up: Stable if there are members, otherwise Empty."""
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
                # Records of version 0 have no rebalance timeout.
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
            # A leader that is not a member could never rejoin, and no other member would be elected.
            for member_id in self.members:
                self.leader_id = member_id
                break
        self.take_subscriptions()


def hash_buckets(entries: int) -> int:
    """The number of buckets of a Java HashMap with this many entries."""
    buckets = 16
    while entries * 4 > buckets * 3:
        buckets *= 2
    return buckets


def hash_bucket(text: str, buckets: int) -> int:
    """The bucket of this key in a Java HashMap. Brokers break ties in the order of such a map, and so does kcoord."""
    h = java_string_hash(text) & 0xFFFFFFFF
    return (h ^ (h >> 16)) & (buckets - 1)


def value_bytes_max(group_id: str, value: GroupMetadataValue) -> int:
    """An upper bound of the bytes of a batch with this one record."""
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
    """Add the topics of a ConsumerProtocolSubscription; False if it cannot be decoded.

    Version 0 is a prefix of every later version, so subscriptions of unknown versions can be read as well.
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
