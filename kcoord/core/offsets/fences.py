"""May this member commit or fetch these offsets? The epochs of KIP-848 groups in the offset APIs (KIP-1251)."""

from __future__ import annotations

from typing import Final

from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.errors import GroupError
from kcoord.core.groups.members import ConsumerMember
from kcoord.protocol import errors

# Members of the new protocol commit with this version or a later one: earlier ones do not know STALE_MEMBER_EPOCH.
COMMIT_VERSION_MIN: Final = 9


def check_commit(group: ConsumerGroup, member_id: str, epoch: int, version: int) -> ConsumerMember | None:
    """Check a commit as a whole. Answers the member if each partition has to be checked as well, else None.

    Raises GroupError.
    """
    if epoch < 0 and not group.members:
        # An admin client, or a consumer that assigns itself.
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
    if epoch == member.member_epoch:
        return None
    if epoch > member.member_epoch:
        raise stale(member, f"Received epoch {epoch} is newer than the member's epoch {member.member_epoch}.")
    return member


def check_partition(member: ConsumerMember, epoch: int, topic_id: bytes, partition: int) -> None:
    """An older epoch will do for what the member has had since then, or is giving up. Raises GroupError."""
    assigned = member.assignment_epoch(topic_id, partition)
    if assigned < 0:
        raise stale(member, f"Partition {partition} is not assigned or pending revocation for the member.")
    if epoch < assigned:
        raise stale(member, f"Received epoch {epoch} is older than the partition's assignment epoch {assigned}.")


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> int:
    """The error code for an OffsetFetch by a member of this epoch; who says neither may always read."""
    if member_id is None and epoch < 0:
        return errors.NONE
    member = None if member_id is None else group.members.get(member_id)
    if member is None:
        return errors.UNKNOWN_MEMBER_ID
    if epoch != member.member_epoch:
        return stale(member, "").code
    return errors.NONE


def stale(member: ConsumerMember, message: str) -> GroupError:
    """A member of the classic protocol knows its epoch as a generation."""
    code = errors.STALE_MEMBER_EPOCH if member.classic is None else errors.ILLEGAL_GENERATION
    return GroupError(code, message)
