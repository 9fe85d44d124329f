"""ConsumerGroupDescribe v0-1 (KIP-848, KIP-1099). Read-only."""

from __future__ import annotations

from typing import Final, final

from kcoord.core.assignors.spec import Assignment
from kcoord.core.client_assignors.offers import chosen_name
from kcoord.core.consumer.targets import ConsumerTargets
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.members import ConsumerMember
from kcoord.core.groups.store import GroupStore
from kcoord.core.outcome import MESSAGE_CHARS_MAX, Outcome, Request
from kcoord.core.topics.registry import TopicRegistry
from kcoord.protocol import errors
from kcoord.protocol.consumer_group_describe import Assignment as DescribedAssignment
from kcoord.protocol.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

# Member types (KIP-1099).
CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1


@final
class ConsumerDescribe:
    """`group_operations` is the bit set of authorized operations, sent if the request asks for it, otherwise
    `not_asked`.

    `members_max`: the groups and members of one answer, or those of one group if that has more.
    """

    def __init__(
        self,
        store: GroupStore,
        topics: TopicRegistry,
        targets: ConsumerTargets,
        group_operations: int,
        not_asked: int,
        members_max: int,
    ) -> None:
        self.store = store
        self.topics = topics
        self.targets = targets
        self.group_operations = group_operations
        self.not_asked = not_asked
        self.members_max = members_max

    def handle_describe(self, request: Request, body: ConsumerGroupDescribeRequest) -> Outcome:
        out = Outcome()
        operations = self.group_operations if body.include_authorized_operations else self.not_asked
        described: list[DescribedGroup] = []
        members = 0
        for group_id in body.group_ids:
            group = self.store.consumer_groups.get(group_id)
            if group is not None:
                count = len(group.members)
                if members and members + count > self.members_max:
                    # As in DescribeGroups: clients retry.
                    error = errors.COORDINATOR_LOAD_IN_PROGRESS
                    described.append(DescribedGroup(error_code=error, group_id=group_id))
                else:
                    described.append(self._describe(group, operations))
                    members += 1 + count
                continue
            if not group_id:
                described.append(DescribedGroup(error_code=errors.INVALID_GROUP_ID, group_id=group_id))
                continue
            shown = group_id[:MESSAGE_CHARS_MAX]
            if group_id in self.store.groups:
                message = f"Group {shown} is not a consumer group."
            else:
                message = f"Group {shown} not found."
            described.append(
                DescribedGroup(error_code=errors.GROUP_ID_NOT_FOUND, error_message=message, group_id=group_id)
            )
        response = ConsumerGroupDescribeResponse(groups=described)
        out.replies.append(self.store.reply_after_all(request.request_id, response))
        return out

    def _describe(self, group: ConsumerGroup, operations: int) -> DescribedGroup:
        preferred = chosen_name(group)
        if preferred is None:
            preferred = group.preferred_assignor(None, None)
        return DescribedGroup(
            group_id=group.group_id,
            group_state=group.state(),
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=self.targets.default_assignor if preferred is None else preferred,
            members=[self._member(group, member) for member in group.members.values()],
            authorized_operations=operations,
        )

    def _member(self, group: ConsumerGroup, member: ConsumerMember) -> Member:
        # The member owns the partitions that it is revoking until it has done so.
        has: Assignment = {topic_id: list(of_topic) for topic_id, of_topic in member.assigned.items()}
        for topic_id, of_topic in member.revoking.items():
            has[topic_id] = has.get(topic_id, []) + list(of_topic)
        return Member(
            member.member_id,
            member.instance_id,
            member.rack_id,
            member.member_epoch,
            member.client_id,
            member.client_host,
            member.topic_names,
            member.topic_regex,
            self._assignment(has),
            self._assignment(group.target(member.member_id)),
            CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
        )

    def _assignment(self, partitions: Assignment) -> DescribedAssignment:
        """The assignment with topic names. Partitions of deleted topics have none and are left out."""
        described: list[TopicPartitions] = []
        for topic_id, of_topic in partitions.items():
            topic = self.topics.by_id(topic_id)
            if topic is not None:
                described.append(TopicPartitions(topic_id, topic.name, of_topic))
        return DescribedAssignment(described)
