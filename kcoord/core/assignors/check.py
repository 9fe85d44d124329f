"""The check of an assignor's result, in one place, before anything uses it."""

from __future__ import annotations

from typing import cast

from kcoord.core.assignors.spec import Assignment, AssignorError, GroupSpec, MemberSpec, TopicDescriber


def checked_assignment(group: GroupSpec, topics: TopicDescriber, answer: object) -> dict[str, Assignment]:
    """A copy of `answer` in the form of `Assignment`, with every member of the group; members it lacks get nothing.

    Raises `AssignorError` for a member that is not in the group, a topic that the member does not subscribe to, a
    partition that does not exist or is assigned twice, and for anything that is not a dict of dicts of lists.
    """
    if not isinstance(answer, dict):
        raise AssignorError(f"the assignor returned {type(answer).__name__} instead of a dict by member id")
    result: dict[str, Assignment] = {}
    for member_id in group.members:
        result[member_id] = {}
    owners: dict[bytes, dict[int, str]] = {}
    for answered_id, assignment in cast("dict[object, object]", answer).items():
        if not isinstance(answered_id, str) or answered_id not in group.members:
            raise AssignorError(
                f"the assignor returned an assignment for {answered_id!r}, which is not a member of the group"
            )
        result[answered_id] = _checked_member(group.members[answered_id], topics, assignment, owners)
    return result


def _checked_member(
    member: MemberSpec, topics: TopicDescriber, assignment: object, owners: dict[bytes, dict[int, str]]
) -> Assignment:
    if not isinstance(assignment, dict):
        raise AssignorError(
            f"the assignment of {member.member_id!r} is {type(assignment).__name__} instead of a dict by topic id"
        )
    by_topic = cast("dict[object, object]", assignment)
    checked: Assignment = {}
    found = 0
    for topic_id in member.topic_ids:
        if topic_id not in by_topic:
            continue
        found += 1
        own = _checked_topic(member.member_id, topic_id, topics.partition_count(topic_id), by_topic[topic_id])
        topic_owners = owners.setdefault(topic_id, {})
        for partition in own:
            other = topic_owners.setdefault(partition, member.member_id)
            if other != member.member_id:
                raise AssignorError(
                    f"partition {partition} of topic {topic_id.hex()} is assigned twice, "
                    f"to {other!r} and to {member.member_id!r}"
                )
        if own:
            checked[topic_id] = own
    if found < len(by_topic):
        unwanted = [key for key in by_topic if key not in member.topic_ids]
        raise AssignorError(f"{member.member_id!r} is assigned topic {unwanted[0]!r}, which it does not subscribe to")
    return checked


def _checked_topic(member_id: str, topic_id: bytes, partition_count: int, partitions: object) -> list[int]:
    """The partitions in ascending order. The order of the input does not matter."""
    if not isinstance(partitions, list):
        raise AssignorError(
            f"the partitions of topic {topic_id.hex()} for {member_id!r} are {type(partitions).__name__} "
            "instead of a list"
        )
    own: list[int] = []
    for partition in cast("list[object]", partitions):
        # isinstance counts a bool as an int, but no assignor means one.
        if not isinstance(partition, int) or isinstance(partition, bool):
            raise AssignorError(f"topic {topic_id.hex()}: {partition!r} is not a partition number")
        if not 0 <= partition < partition_count:
            raise AssignorError(
                f"{member_id!r} is assigned partition {partition} of topic {topic_id.hex()}, "
                f"which has {partition_count} partitions"
            )
        own.append(partition)
    own.sort()
    for i in range(1, len(own)):
        if own[i] == own[i - 1]:
            raise AssignorError(f"partition {own[i]} of topic {topic_id.hex()} is assigned twice to {member_id!r}")
    return own
