"""JoinGroup in a consumer group, which may have classic members besides the others (KIP-848).

Such a request is answered at once: the coordinator assigns, so no member waits for the others. The generation is the
member's epoch, there is no leader, and SyncGroup returns the assignment. A member that has to revoke partitions joins
twice: first with all its partitions, then without those.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.cause import PROTOCOL_DOWNGRADED, Cause
from kcoord.core.choices import MIGRATION_DISABLED
from kcoord.core.classic.join import UNKNOWN_MEMBER_ID, ClassicJoin
from kcoord.core.classic.rebalance import client_reason, join_error
from kcoord.core.config import CoreConfig
from kcoord.core.consumer.membership import ConsumerMembership
from kcoord.core.consumer.migration import ConsumerMigration, classic_metadata
from kcoord.core.consumer.reconcile import Owned
from kcoord.core.consumer.steps import (
    ConsumerSteps,
    check_instance,
    check_size,
    discarded,
    new_member_id,
    predecessor_of,
)
from kcoord.core.groups.classic import CONSUMER_PROTOCOL_TYPE
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.embedded_protocol import decode_subscription
from kcoord.core.groups.errors import GroupError
from kcoord.core.groups.members import NOT_GIVEN, ConsumerMember, sorted_unique
from kcoord.core.groups.records import group_tombstones, replaced_member
from kcoord.core.groups.store import GroupStore
from kcoord.core.outcome import DEBUG, INFO, Fact, Now, Outcome, Reply, Request
from kcoord.protocol import errors
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupResponse
from kcoord.protocol.records.consumer_protocol_subscription import ConsumerProtocolSubscription
from kcoord.wire.primitives import DecodeError

# From this version on a dynamic member first gets its member id and joins with it (KIP-394).
MEMBER_ID_VERSION_MIN: Final = 4


@final
class MixedJoin:
    """JoinGroup for the groups in `store.consumer_groups`."""

    def __init__(
        self,
        config: CoreConfig,
        store: GroupStore,
        classic: ClassicJoin,
        membership: ConsumerMembership,
        migration: ConsumerMigration,
        steps: ConsumerSteps,
    ) -> None:
        self.config = config
        self.store = store
        self.classic = classic
        self.membership = membership
        self.migration = migration
        self.steps = steps

    def handle_join_group(self, request: Request, body: JoinGroupRequest, now: Now) -> Outcome:
        group = self.store.consumer_groups[body.group_id]
        if group.is_empty():
            return self._convert_empty(request, body, group, now)
        out = Outcome()
        error = self.classic.check_request(request, body)
        if error != errors.NONE:
            out.reply(request.request_id, join_error(request.version, body.member_id, error))
            return out
        try:
            response = self._join(request, body, group, now, out)
        except GroupError as failure:
            out = discarded(group, out)
            out.reply(request.request_id, join_error(request.version, UNKNOWN_MEMBER_ID, failure.code))
            return out
        if out.records:
            out.reply(request.request_id, response)
        else:
            out.replies.append(Reply(request.request_id, response, group.log, group.end_offset))
        return out

    def _convert_empty(self, request: Request, body: JoinGroupRequest, group: ConsumerGroup, now: Now) -> Outcome:
        """The first classic member converts an empty group to a classic one. Committed offsets stay."""
        out = self.classic.handle_join_group(request, body, now)
        if out.records:
            out.records = group_tombstones(group) + out.records
            out.facts.insert(0, Fact(INFO, "empty_consumer_group_converted", {"group": group.group_id}))
        # Otherwise the request was refused before it created a classic group.
        return out

    def _join(
        self, request: Request, body: JoinGroupRequest, group: ConsumerGroup, now: Now, out: Outcome
    ) -> JoinGroupResponse:
        """Handle one JoinGroup. Raises GroupError."""
        if self.config.group_consumer_migration_policy == MIGRATION_DISABLED:
            raise GroupError(
                errors.INCONSISTENT_GROUP_PROTOCOL,
                f"Cannot join the consumer group {group.group_id} with the classic protocol because the group "
                "migration is disabled.",
            )
        is_unknown = body.member_id == UNKNOWN_MEMBER_ID
        member_id = new_member_id(request.entropy) if is_unknown else body.member_id
        check_size(group, member_id, self.config.group_consumer_max_size)
        names = [protocol.name for protocol in body.protocols]
        if not group.supports_classic_protocols(body.protocol_type, names):
            raise GroupError(errors.INCONSISTENT_GROUP_PROTOCOL, f"Member {member_id}'s protocols are not supported.")
        instance_id = body.group_instance_id
        if is_unknown and instance_id is None and request.version >= MEMBER_ID_VERSION_MIN:
            return join_error(request.version, member_id, errors.MEMBER_ID_REQUIRED)

        member = self._member(group, member_id, instance_id, is_unknown, out)
        before = predecessor_of(group, member)
        replaced = None if instance_id is None else group.static_member(instance_id)
        is_downgrade = replaced is not None and self.migration.can_downgrade_with(group, replaced, out)
        subscription = self._subscription(body)
        updated = self._updated(request, body, member, subscription)
        owned = self.steps.targets.topics.owned_partitions(subscription)
        is_rejoin = before is not None and before.member_id == member_id
        reason = client_reason(body.reason) if body.reason else ""
        epoch, changed = self.steps.change_member(group, before, member, updated, not is_rejoin, reason, now, out)
        if is_downgrade:
            downgraded = self._downgrade(group, before, updated, epoch, changed, owned, now, out)
            if downgraded is not None:
                return self._response(downgraded)
        config = self.membership.topics.group_config(group.group_id)
        target_epoch, target = self.steps.assign(
            group, before, member, updated, epoch, config.assignment_interval_ms, now, out
        )
        reconciled = self.steps.reconcile(group, updated, target_epoch, target, changed, owned, now, out)
        self.store.timers.start_session(group.group_id, member_id, body.session_timeout_ms, now, out)
        self.membership.expect_sync(group, reconciled, now, out)
        return self._response(reconciled)

    def _member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, is_unknown: bool, out: Outcome
    ) -> ConsumerMember:
        """The joining member before this request, or a new one. Raises GroupError."""
        if instance_id is None:
            known = group.members.get(member_id)
            return ConsumerMember(member_id) if known is None else known
        static = group.static_member(instance_id)
        if not is_unknown:
            return check_instance(static, instance_id, member_id)
        if static is None:
            return ConsumerMember(member_id)
        # A classic static member replaces its predecessor without a leave request (KIP-345).
        back = static.copy_as(member_id)
        back.member_epoch = 0
        back.previous_epoch = 0
        out.log = group.log
        out.records.extend(replaced_member(group, static.member_id, back))
        out.facts.append(
            Fact(
                DEBUG,
                "static_member_replaced",
                {
                    "group": group.group_id,
                    "instance": instance_id,
                    "old": static.member_id,
                    "new": member_id,
                    "state": group.state(),
                },
            )
        )
        return back

    def _subscription(self, body: JoinGroupRequest) -> ConsumerProtocolSubscription:
        """The subscription. All protocols of a consumer have the same one, so the first is decoded.
        Raises GroupError.
        """
        try:
            return decode_subscription(body.protocols[0].metadata)
        except DecodeError:
            raise GroupError(
                errors.UNKNOWN_SERVER_ERROR,
                "Malformed embedded consumer protocol in subscription deserialization.",
            ) from None

    def _updated(
        self,
        request: Request,
        body: JoinGroupRequest,
        member: ConsumerMember,
        subscription: ConsumerProtocolSubscription,
    ) -> ConsumerMember:
        """The member with the fields of the request; the same object if nothing changes."""
        updated = member.copy()
        if body.group_instance_id is not None:
            updated.instance_id = body.group_instance_id
        if subscription.rack_id:
            updated.rack_id = subscription.rack_id
        if body.rebalance_timeout_ms != NOT_GIVEN:
            updated.rebalance_timeout_ms = body.rebalance_timeout_ms
        updated.topic_names = sorted_unique(subscription.topics)
        updated.topic_regex = ""
        updated.client_id = request.client_id
        updated.client_host = request.client_host
        updated.classic = classic_metadata(body.session_timeout_ms, body.protocols)
        return member if updated.has_same_metadata(member) else updated

    def _downgrade(
        self,
        group: ConsumerGroup,
        before: ConsumerMember | None,
        member: ConsumerMember,
        epoch: int,
        changed: bool,
        owned: Owned,
        now: Now,
        out: Outcome,
    ) -> ConsumerMember | None:
        """This member replaces the last member of the consumer protocol: convert the group to a classic one.

        Returns the member in its new epoch, or None if the group cannot be converted.
        """
        reason = ""
        if group.assignment_epoch < epoch:
            reason = (
                f"the group was downgraded, and the subscription of {member.member_id} is newer than the assignment"
            )
        else:
            target = self.steps.inherited(group, before, member)
            member = self.steps.reconcile(group, member, group.assignment_epoch, target, changed, owned, now, out)
            if not member.is_reconciled_to(epoch) or not self._others_are_reconciled(group, before, epoch):
                # Partitions that members wait for or have to revoke: the classic protocol only resolves that by a
                # rebalance.
                reason = "the group was downgraded before its members reached their target assignment"
        replaced_id = "" if before is None else before.member_id
        cause = Cause(PROTOCOL_DOWNGRADED, member.member_id, f"static member replaces {replaced_id}")
        is_classic = self.migration.downgrade(group, [], member, cause, reason, now, out)
        return member if is_classic else None

    def _others_are_reconciled(self, group: ConsumerGroup, replaced: ConsumerMember | None, epoch: int) -> bool:
        for member in group.members.values():
            if member is not replaced and not member.is_reconciled_to(epoch):
                return False
        return True

    def _response(self, member: ConsumerMember) -> JoinGroupResponse:
        classic = member.classic
        if classic is None:
            raise ValueError(f"member {member.member_id} does not use the classic protocol")
        return JoinGroupResponse(
            error_code=errors.NONE,
            generation_id=member.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=classic.supported_protocols[0].name,
            leader="",
            skip_assignment=False,
            member_id=member.member_id,
            members=[],
        )
