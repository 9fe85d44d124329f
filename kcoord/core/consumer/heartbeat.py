"""ConsumerGroupHeartbeat v0-1 (KIP-848): members join, stay alive, change their subscription, get partitions, leave.

One heartbeat has three steps, in this order: it creates or updates the member, and bumps the group's epoch if needed;
it computes a new target assignment if the epoch is newer than the last one; and it moves this member one step towards
its target. Each step works on the result of the one before, and the records of all three are one batch: either all of
them are replayed or none. In a steady state nothing changes and nothing is written.

Epoch 0 joins or rejoins, -1 leaves, -2 is a static member that leaves and will return. Any other epoch must be the
member's own, or the one before it if the answer with the new epoch may have been lost.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.cause import MEMBER_LEFT, Cause
from kcoord.core.client_assignors.offers import check_client_assignors, set_answer, stored_assignors
from kcoord.core.config import CoreConfig
from kcoord.core.consumer.membership import ConsumerMembership
from kcoord.core.consumer.migration import ConsumerMigration
from kcoord.core.consumer.reconcile import Owned
from kcoord.core.consumer.steps import (
    ConsumerSteps,
    check_instance,
    check_size,
    discarded,
    new_member_id,
    predecessor_of,
)
from kcoord.core.consumer.targets import ConsumerTargets
from kcoord.core.groups.consumer import ConsumerGroup, known_member, unknown_member
from kcoord.core.groups.errors import GroupError
from kcoord.core.groups.members import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NOT_GIVEN,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    PartitionEpochs,
    sorted_unique,
)
from kcoord.core.groups.records import replaced_member
from kcoord.core.groups.store import GroupStore
from kcoord.core.outcome import DEBUG, INFO, MESSAGE_CHARS_MAX, Fact, Now, Outcome, Reply, Request
from kcoord.protocol import errors
from kcoord.protocol.consumer_group_heartbeat import (
    AssignedTopicPartitions,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kcoord.protocol.consumer_group_heartbeat import Assignment as AssignmentMessage
from kcoord.protocol.records.group_metadata import GroupMetadataKey

# From this version on clients generate their member ids.
CLIENT_MEMBER_ID_VERSION: Final = 1


@final
class ConsumerHeartbeats:
    def __init__(
        self,
        config: CoreConfig,
        store: GroupStore,
        targets: ConsumerTargets,
        membership: ConsumerMembership,
        migration: ConsumerMigration,
        steps: ConsumerSteps,
    ) -> None:
        self.config = config
        self.store = store
        self.targets = targets
        self.topics = membership.topics
        self.membership = membership
        self.migration = migration
        self.steps = steps

    def handle_heartbeat(self, request: Request, body: ConsumerGroupHeartbeatRequest, now: Now) -> Outcome:
        out = Outcome()
        try:
            self._check(request.version, body)
            epoch = body.member_epoch
            if epoch == LEAVE_EPOCH or epoch == STATIC_LEAVE_EPOCH:
                response = self._leave(body, now, out)
            else:
                response = self._beat(request, body, now, out)
        except GroupError as error:
            out = discarded(self.store.consumer_groups.get(body.group_id), out)
            response = ConsumerGroupHeartbeatResponse(
                error_code=error.code, error_message=error.message[:MESSAGE_CHARS_MAX]
            )
            out.reply(request.request_id, response)
            return out
        if out.records:
            out.reply(request.request_id, response)
        else:
            group = self.store.consumer_groups[body.group_id]
            out.replies.append(Reply(request.request_id, response, group.log, group.end_offset))
        return out

    # ---- checks of the request

    def _check(self, version: int, body: ConsumerGroupHeartbeatRequest) -> None:
        """Check the fields on their own, in the order and with the messages of a broker. Raises GroupError."""
        epoch = body.member_epoch
        needs_id = version >= CLIENT_MEMBER_ID_VERSION or epoch > 0 or epoch == LEAVE_EPOCH
        if needs_id and not body.member_id.strip():
            raise invalid("MemberId can't be empty.")
        if not body.group_id.strip():
            raise invalid("GroupId can't be empty.")
        if body.instance_id is not None and not body.instance_id.strip():
            raise invalid("InstanceId can't be empty.")
        if body.rack_id is not None and not body.rack_id.strip():
            raise invalid("RackId can't be empty.")
        if epoch == JOIN_EPOCH:
            if body.rebalance_timeout_ms == NOT_GIVEN:
                raise invalid("RebalanceTimeoutMs must be provided in first request.")
            if body.topic_partitions is None or body.topic_partitions:
                raise invalid("TopicPartitions must be empty when (re-)joining.")
            if body.subscribed_topic_names is None and body.subscribed_topic_regex is None:
                raise invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
        elif epoch == STATIC_LEAVE_EPOCH:
            if body.instance_id is None:
                raise invalid("InstanceId can't be null.")
        elif epoch < STATIC_LEAVE_EPOCH:
            raise invalid("MemberEpoch is invalid.")
        if body.client_assignors is not None:
            check_client_assignors(body.client_assignors)
        assignor = body.server_assignor
        if assignor is not None and assignor not in self.targets.assignors:
            raise GroupError(
                errors.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {assignor} is not supported. "
                f"Supported assignors: {', '.join(self.targets.assignors)}.",
            )

    # ---- leaving

    def _leave(self, body: ConsumerGroupHeartbeatRequest, now: Now, out: Outcome) -> ConsumerGroupHeartbeatResponse:
        group = self._existing_group(body.group_id, "Group")
        instance_id = body.instance_id
        if instance_id is None:
            member = known_member(group, body.member_id)
        else:
            static = group.static_member(instance_id)
            member = check_instance(static, instance_id, body.member_id)
            if body.member_epoch == STATIC_LEAVE_EPOCH:
                self.membership.leave_temporarily(group, member, out)
                out.facts.append(
                    Fact(
                        DEBUG,
                        "consumer_group_static_member_left",
                        {"group": group.group_id, "member": member.member_id, "instance": instance_id},
                    )
                )
                return ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=STATIC_LEAVE_EPOCH)
        cause = Cause(MEMBER_LEFT, member.member_id)
        self.membership.remove(group, [member], cause, now, out)
        return ConsumerGroupHeartbeatResponse(member_id=body.member_id, member_epoch=body.member_epoch)

    # ---- joining and staying alive

    def _beat(
        self, request: Request, body: ConsumerGroupHeartbeatRequest, now: Now, out: Outcome
    ) -> ConsumerGroupHeartbeatResponse:
        joins = body.member_epoch == JOIN_EPOCH
        group = self._group(body.group_id, joins, out)
        check_size(group, body.member_id, self.config.group_consumer_max_size)
        member_id = body.member_id if body.member_id else new_member_id(request.entropy)
        owned = owned_partitions(body)
        member = self._member(group, member_id, body, owned, out)
        # The member that this one replaces in the group, which is another one when a static member returns.
        before = predecessor_of(group, member)
        updated = self._updated(request, body, member)

        steps = self.steps
        epoch, changed = steps.change_member(group, before, member, updated, joins, "", now, out)
        config = self.topics.group_config(group.group_id)
        target_epoch, target = steps.assign(
            group, before, member, updated, epoch, config.assignment_interval_ms, now, out
        )
        reconciled = steps.reconcile(group, updated, target_epoch, target, changed, owned, now, out)
        self.store.timers.start_session(group.group_id, member_id, config.session_timeout_ms, now, out)
        response = ConsumerGroupHeartbeatResponse(
            member_id=reconciled.member_id,
            member_epoch=reconciled.member_epoch,
            heartbeat_interval_ms=config.heartbeat_interval_ms,
        )
        is_full = (
            body.rebalance_timeout_ms != NOT_GIVEN
            and (body.subscribed_topic_names is not None or body.subscribed_topic_regex is not None)
            and body.topic_partitions is not None
        )
        is_changed = reconciled.assigned != member.assigned or reconciled.answer != member.answer
        if joins or is_full or is_changed:
            response.assignment = assignment_message(reconciled.assigned)
            if reconciled.client_assignors:
                set_answer(response.assignment, reconciled.answer)
        if group.computation is not None:
            response.should_compute_assignment = steps.client_assignors.should_compute(
                group, reconciled.member_id, epoch, target_epoch, joins
            )
        if group.group_id not in self.store.consumer_groups:
            self._register(group, now, out)
        return response

    def _register(self, group: ConsumerGroup, now: Now, out: Outcome) -> None:
        """The request succeeded: replay receives the new group as part of the outcome and keeps its soft state."""
        out.made = group
        classic = self.store.groups.get(group.group_id)
        if classic is not None:
            self.migration.upgraded(classic, out)
            for known in group.members.values():
                timeout_ms = self.membership.session_timeout_ms(group, known)
                self.store.timers.start_session(group.group_id, known.member_id, timeout_ms, now, out)

    def _existing_group(self, group_id: str, missing: str) -> ConsumerGroup:
        """The group; `missing` is how a broker's message begins if there is none. Raises GroupError."""
        group = self.store.consumer_groups.get(group_id)
        if group is not None:
            return group
        if group_id in self.store.groups:
            raise GroupError(errors.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        raise GroupError(errors.GROUP_ID_NOT_FOUND, f"{missing} {group_id} not found.")

    def _group(self, group_id: str, joins: bool, out: Outcome) -> ConsumerGroup:
        """The group. A joining member creates it, replaces an empty classic group, or converts one with members."""
        group = self.store.consumer_groups.get(group_id)
        if group is not None:
            return group
        if not joins:
            return self._existing_group(group_id, "Consumer group")
        classic = self.store.groups.get(group_id)
        if classic is not None:
            if not classic.is_empty():
                return self.migration.upgrade(classic, out)
            # A classic group that only has offsets has no record to remove, but brokers write the tombstone anyway.
            out.add(classic.log, GroupMetadataKey(group_id), None)
            out.facts.append(Fact(INFO, "empty_classic_group_converted", {"group": group_id}))
        return ConsumerGroup(group_id, self.store.log_of(group_id))

    def _member(
        self,
        group: ConsumerGroup,
        member_id: str,
        body: ConsumerGroupHeartbeatRequest,
        owned: Owned | None,
        out: Outcome,
    ) -> ConsumerMember:
        """The member that sent the request, or a new one. Raises GroupError."""
        joins = body.member_epoch == JOIN_EPOCH
        instance_id = body.instance_id
        if instance_id is None:
            known = group.members.get(member_id)
            if known is None:
                if not joins:
                    raise unknown_member(group, member_id)
                return ConsumerMember(member_id)
            check_epoch(known, body.member_epoch, owned)
            return known
        static = group.static_member(instance_id)
        if not joins:
            member = check_instance(static, instance_id, member_id)
            check_epoch(member, body.member_epoch, owned)
            return member
        if static is None:
            # A dynamic member may return as a static one with the same member id.
            known = group.members.get(member_id)
            return ConsumerMember(member_id) if known is None else known
        if static.classic is None and static.member_epoch != STATIC_LEAVE_EPOCH:
            raise GroupError(
                errors.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
                f"instance id is owned by {static.member_id} member.",
            )
        back = static.copy_as(member_id)
        back.member_epoch = 0
        back.previous_epoch = 0
        out.log = group.log
        out.records.extend(replaced_member(group, static.member_id, back))
        return back

    def _updated(self, request: Request, body: ConsumerGroupHeartbeatRequest, member: ConsumerMember) -> ConsumerMember:
        """The member with the fields of the request; the same object if nothing changes."""
        if (
            body.rebalance_timeout_ms == NOT_GIVEN
            and body.subscribed_topic_names is None
            and body.subscribed_topic_regex is None
            and body.server_assignor is None
            and body.client_assignors is None
            and body.instance_id is None
            and body.rack_id is None
            and member.client_id == request.client_id
            and member.client_host == request.client_host
            and member.classic is None
            and not (body.member_epoch == JOIN_EPOCH and member.client_assignors)
        ):
            # Nearly all heartbeats take this path.
            return member
        updated = member.copy()
        if body.instance_id is not None:
            updated.instance_id = body.instance_id
        if body.rack_id is not None:
            updated.rack_id = body.rack_id
        if body.rebalance_timeout_ms != NOT_GIVEN:
            updated.rebalance_timeout_ms = body.rebalance_timeout_ms
        if body.server_assignor is not None:
            updated.server_assignor = body.server_assignor
        if body.subscribed_topic_names is not None:
            updated.topic_names = sorted_unique(body.subscribed_topic_names)
        if body.subscribed_topic_regex is not None:
            updated.topic_regex = body.subscribed_topic_regex
        if body.client_assignors is not None:
            updated.client_assignors = stored_assignors(body.client_assignors)
        elif body.member_epoch == JOIN_EPOCH:
            # A joining member sends all fields, and unlike the static member it replaces it may have none set.
            updated.client_assignors = []
        updated.client_id = request.client_id
        updated.client_host = request.client_host
        updated.classic = None
        return member if updated.has_same_metadata(member) else updated


def invalid(message: str) -> GroupError:
    return GroupError(errors.INVALID_REQUEST, message)


def check_epoch(member: ConsumerMember, epoch: int, owned: Owned | None) -> None:
    """Check that a member may use this epoch; 0 is always allowed and rejoins. Raises GroupError."""
    if epoch == JOIN_EPOCH or epoch == member.member_epoch:
        return
    if epoch > member.member_epoch:
        comparison = "greater"
    elif epoch == member.previous_epoch and is_subset(owned, member.assigned):
        # The answer with the new epoch may have been lost.
        return
    else:
        comparison = "smaller"
    raise GroupError(
        errors.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {comparison} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def is_subset(owned: Owned | None, assigned: PartitionEpochs) -> bool:
    """Whether all partitions the member reports are assigned to it. One that reports nothing may own any."""
    if owned is None:
        return False
    for topic_id, partitions in owned.items():
        of_topic = assigned.get(topic_id)
        if of_topic is None:
            return False
        for partition in partitions:
            if partition not in of_topic:
                return False
    return True


def owned_partitions(body: ConsumerGroupHeartbeatRequest) -> Owned | None:
    if body.topic_partitions is None:
        return None
    owned: Owned = {}
    for topic in body.topic_partitions:
        if topic.topic_id in owned:
            owned[topic.topic_id] = owned[topic.topic_id] + topic.partitions
        else:
            owned[topic.topic_id] = topic.partitions
    return owned


def assignment_message(assigned: PartitionEpochs) -> AssignmentMessage:
    return AssignmentMessage(
        [AssignedTopicPartitions(topic_id, list(of_topic)) for topic_id, of_topic in assigned.items()]
    )
