"""Checks of members of KIP-848 groups in the offset APIs: member ids and epochs (KIP-1251)."""

from __future__ import annotations

from typing import Final

from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.errors import GroupError
from kcoord.core.groups.members import ConsumerMember
from kcoord.core.groups.store import GroupStore
from kcoord.protocol import errors

# Members of the consumer protocol use this version or a later one: earlier ones have no STALE_MEMBER_EPOCH.
COMMIT_VERSION_MIN: Final = 9
# The generation of a TxnOffsetCommit that names no member.
NO_MEMBER_EPOCH: Final = -1


def check_commit(group: ConsumerGroup, member_id: str, epoch: int, version: int) -> ConsumerMember | None:
    """Check a commit as a whole. Returns the member if each partition has to be checked too, otherwise None.

    Raises GroupError.
    """
    if epoch < 0 and not group.members:
        # An admin client, or a consumer that assigns partitions itself.
        return None
    member = group.members.get(member_id)
    if member is None:
        raise GroupError(errors.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}.")
    if member.classic is None and version < COMMIT_VERSION_MIN:
        raise GroupError(
            errors.UNSUPPORTED_VERSION,
            f"OffsetCommit version {COMMIT_VERSION_MIN} or above must be used by members using the consumer "
            "group protocol",
        )
    return _unless_current(member, epoch)


def check_transactional_commit(
    group: ConsumerGroup, member_id: str, group_instance_id: str | None, epoch: int
) -> ConsumerMember | None:
    """Like `check_commit`, for TxnOffsetCommit. It has its own versions; and a request may name no member at all, as
    those before KIP-447 do. Raises GroupError.
    """
    if epoch < 0 and not group.members:
        return None
    if epoch == NO_MEMBER_EPOCH and not member_id and group_instance_id is None:
        return None
    member = group.members.get(member_id)
    if member is None:
        raise GroupError(errors.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}.")
    return _unless_current(member, epoch)


def _unless_current(member: ConsumerMember, epoch: int) -> ConsumerMember | None:
    """The member if its epoch is newer than `epoch`, None if it is the same. Raises GroupError for a later one."""
    if epoch == member.member_epoch:
        return None
    if epoch > member.member_epoch:
        raise stale(member, f"Received epoch {epoch} is newer than the member's epoch {member.member_epoch}.")
    return member


def check_partition(member: ConsumerMember, epoch: int, topic_id: bytes, partition: int) -> None:
    """An older epoch is valid for a partition that the member has owned or been revoking since. Raises GroupError."""
    assigned = member.assignment_epoch(topic_id, partition)
    if assigned < 0:
        raise stale(member, f"Partition {partition} is not assigned or pending revocation for the member.")
    if epoch < assigned:
        raise stale(member, f"Received epoch {epoch} is older than the partition's assignment epoch {assigned}.")


def check_assigned(
    groups: GroupStore,
    group_id: str,
    member_id: str,
    group_instance_id: str | None,
    epoch: int,
    partitions: list[tuple[bytes, int]],
) -> int:
    """The error code for a member that says what the group has assigned to it: partitions by topic id.

    In a classic group, only its leader knows the assignment, so the generation decides.
    """
    classic = groups.get(group_id)
    if classic is not None:
        return classic.validate_offset_commit(member_id, group_instance_id, epoch, is_transactional=True)
    group = groups.consumer_groups.get(group_id)
    if group is None:
        return errors.ILLEGAL_GENERATION
    try:
        check_transactional_commit(group, member_id, group_instance_id, epoch)
        member = group.members[member_id]
        for topic_id, partition in partitions:
            check_partition(member, epoch, topic_id, partition)
    except GroupError as refused:
        return refused.code
    return errors.NONE


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> int:
    """The error code for an OffsetFetch of this member and epoch. A request without both may always read."""
    if member_id is None and epoch < 0:
        return errors.NONE
    member = None if member_id is None else group.members.get(member_id)
    if member is None:
        return errors.UNKNOWN_MEMBER_ID
    if epoch != member.member_epoch:
        return stale(member, "").code
    return errors.NONE


def stale(member: ConsumerMember, message: str) -> GroupError:
    """The error for a stale epoch. A classic member knows its epoch as a generation."""
    code = errors.STALE_MEMBER_EPOCH if member.classic is None else errors.ILLEGAL_GENERATION
    return GroupError(code, message)
