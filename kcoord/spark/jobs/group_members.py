"""The members of one group and their partitions, followed from record to record: what a rebalance changed.

Beside the numbers of `core.group_timeline` this keeps names. It knows classic and consumer groups, and holds what a
group has at one time, never its history.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kcoord.core.cause import (
    MEMBER_JOINED,
    MEMBER_LEFT,
    STATIC_MEMBER_REPLACED,
    SUBSCRIPTION_CHANGED,
    TOPICS_CHANGED,
    Cause,
)
from kcoord.core.groups.embedded_protocol import decode_assignment
from kcoord.history.timeline import CLASSIC, CONSUMER, CONSUMER_PROTOCOL
from kcoord.protocol.records.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
)
from kcoord.protocol.records.consumer_group_member_metadata import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from kcoord.protocol.records.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError

# A topic, by its id or its name, and a partition's number.
Partition = tuple[bytes | str, int]
NO_HASH: Final = 0
# The most members that joined or left in one rebalance that are listed. A rebalance may never end.
NAMED_MAX: Final = 10_000


@dataclass(frozen=True)
class Member:
    """A member in its record. `instance_id` is "" for none."""

    member_id: str
    instance_id: str
    client_id: str
    client_host: str
    protocol: str
    subscription: tuple[object, ...] = ()


@dataclass
class Changes:
    """Members that joined and left, in the order of the log, and how many partitions moved between members."""

    joined: list[Member] = field(default_factory=list)
    left: list[Member] = field(default_factory=list)
    moved: int = 0


@dataclass(frozen=True)
class _Owned:
    """`owner` is a static member's instance, else the member's id: who comes back as another member moves nothing."""

    owner: str
    protocol: str
    partitions: set[Partition]


class GroupMembers:
    """One group. Records are fed in the order of their log; `take` returns the changes since it was called last."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self._owners: dict[Partition, str] = {}
        self._owned: dict[str, _Owned] = {}
        # Partitions whose owner has changed since the last rebalance was over, with the old owner; "" is none.
        self._owned_before: dict[Partition, str] = {}
        self._changes = Changes()
        # Since the last epoch, for the cause.
        self._joined = 0
        self._left = 0
        self._replaced = ""
        self._subscribed = ""
        self._hash = NO_HASH
        self._is_hash_changed = False

    def replay(self, key: Message, value: Message | None) -> None:
        if isinstance(key, ConsumerGroupMemberMetadataKey):
            if isinstance(value, ConsumerGroupMemberMetadataValue):
                self._come(_consumer(key.member_id, value))
            else:
                self._go(key.member_id)
        elif isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
            if isinstance(value, ConsumerGroupCurrentMemberAssignmentValue):
                parts = value.assigned_partitions + value.partitions_pending_revocation
                owned: set[Partition] = {(part.topic_id, number) for part in parts for number in part.partitions}
                self._own(key.member_id, CONSUMER, owned)
            else:
                self._own(key.member_id, CONSUMER, set())
        elif isinstance(key, ConsumerGroupMetadataKey):
            if isinstance(value, ConsumerGroupMetadataValue):
                self._is_hash_changed = self._hash not in (NO_HASH, value.metadata_hash)
                self._hash = value.metadata_hash
        elif isinstance(key, GroupMetadataKey):
            self._classic(value if isinstance(value, GroupMetadataValue) else None)

    def take(self) -> Changes:
        changes = self._changes
        for partition, before in self._owned_before.items():
            now = self._owners.get(partition)
            if before and now is not None and now != before:
                changes.moved += 1
        self._changes = Changes()
        self._owned_before = {}
        return changes

    def take_cause(self) -> Cause | None:
        """Why an epoch began, derived from the changes since the one before; None if unknown."""
        cause: Cause | None = None
        if self._left:
            # A broker's log does not show whether a member left or its session timed out.
            cause = Cause(MEMBER_LEFT, "", f"{self._left} gone" + (f", {self._joined} new" if self._joined else ""))
        elif self._joined:
            cause = Cause(MEMBER_JOINED, "", f"{self._joined} new")
        elif self._replaced:
            cause = Cause(STATIC_MEMBER_REPLACED, self._replaced)
        elif self._subscribed:
            cause = Cause(SUBSCRIPTION_CHANGED, self._subscribed)
        elif self._is_hash_changed:
            cause = Cause(TOPICS_CHANGED)
        self._joined = self._left = 0
        self._replaced = self._subscribed = ""
        self._is_hash_changed = False
        return cause

    # ---- members

    def _come(self, member: Member) -> None:
        known = self.members.get(member.member_id)
        if known is not None:
            if known.protocol == member.protocol and known.subscription != member.subscription:
                self._subscribed = member.member_id
            self.members[member.member_id] = member
            return
        before = self._predecessor(member)
        self.members[member.member_id] = member
        if before is None:
            self._joined += 1
            if len(self._changes.joined) < NAMED_MAX:
                self._changes.joined.append(member)

    def _predecessor(self, member: Member) -> Member | None:
        """The member that a new one replaces: the static one of that name, or itself in the other protocol."""
        for one in self._changes.left:
            is_same = one.member_id == member.member_id and one.protocol != member.protocol
            if is_same or (member.instance_id and one.instance_id == member.instance_id):
                self._changes.left.remove(one)
                self._left = max(self._left - 1, 0)
                if not is_same:
                    self._replaced = member.member_id
                return one
        if member.instance_id:
            for one in self.members.values():
                if one.instance_id == member.instance_id:
                    del self.members[one.member_id]
                    self._replaced = member.member_id
                    return one
        return None

    def _go(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is not None:
            self._left += 1
            if len(self._changes.left) < NAMED_MAX:
                self._changes.left.append(member)

    def _classic(self, value: GroupMetadataValue | None) -> None:
        found = value.members if value is not None else []
        ids = {member.member_id for member in found}
        for member_id in [one for one in self.members if one not in ids]:
            if self.members[member_id].protocol == CLASSIC:
                self._go(member_id)
        for member in found:
            self._come(
                Member(
                    member.member_id, member.group_instance_id or "", member.client_id, member.client_host, CLASSIC,
                    (member.subscription,),
                )
            )  # fmt: skip
        is_consumers = value is not None and value.protocol_type == CONSUMER_PROTOCOL
        for member_id, owned in list(self._owned.items()):
            if member_id not in ids and owned.protocol == CLASSIC:
                self._own(member_id, CLASSIC, set())
        for member in found:
            self._own(member.member_id, CLASSIC, _assigned(member.assignment) if is_consumers else set())

    # ---- partitions

    def _own(self, member_id: str, protocol: str, partitions: set[Partition]) -> None:
        owned = self._owned.pop(member_id, None)
        before = owned.partitions if owned is not None else set()
        owner = owned.owner if owned is not None else ""
        for partition in before - partitions:
            if self._owners.get(partition) == owner:
                self._owned_before.setdefault(partition, owner)
                del self._owners[partition]
        if not partitions:
            return
        member = self.members.get(member_id)
        owner = (member.instance_id if member is not None else "") or member_id
        for partition in partitions:
            now = self._owners.get(partition, "")
            if now != owner:
                self._owned_before.setdefault(partition, now)
                self._owners[partition] = owner
        self._owned[member_id] = _Owned(owner, protocol, partitions)


def _consumer(member_id: str, value: ConsumerGroupMemberMetadataValue) -> Member:
    subscription = (tuple(value.subscribed_topic_names or ()), value.subscribed_topic_regex or "")
    return Member(
        member_id, value.instance_id or "", value.client_id, value.client_host, CONSUMER, subscription
    )  # fmt: skip


def _assigned(data: bytes) -> set[Partition]:
    """The assignment of a classic member; empty if it cannot be decoded."""
    if not data:
        return set()
    try:
        parts = decode_assignment(data).assigned_partitions
    except DecodeError:
        return set()
    return {(part.topic, number) for part in parts for number in part.partitions}
