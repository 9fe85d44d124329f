"""From a classic group to one of the new protocol and back, while members work (KIP-848).

An empty group changes its kind whenever somebody of the other protocol comes. One with members is converted by the
first member of the new protocol, as far as `group.consumer.migration.policy` allows, and goes back when the last of
them leaves, is put out or is replaced by a classic member.

The new group is made here, soft part and all, and its records say the same: replay finds it in the store's `making`
or `making_classic` and goes on with it. Until then nothing of the old group is changed, so a request that fails
later leaves everything as it was.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.assignors.spec import Assignment
from kcoord.core.classic.rebalance import ClassicRebalance, answer_join, answer_sync
from kcoord.core.config import (
    MIGRATION_BIDIRECTIONAL,
    MIGRATION_DOWNGRADE,
    MIGRATION_UPGRADE,
    CoreConfig,
)
from kcoord.core.consumer.topics import GroupTopics
from kcoord.core.groups.cause import PROTOCOL_DOWNGRADED, PROTOCOL_UPGRADED, Cause
from kcoord.core.groups.classic import (
    CONSUMER_PROTOCOL_TYPE,
    STABLE,
    ClassicGroup,
    ClassicMember,
    value_bytes_max,
)
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.embedded_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    version_of,
)
from kcoord.core.groups.errors import GroupError
from kcoord.core.groups.members import ConsumerMember, PartitionEpochs, sorted_unique
from kcoord.core.groups.records import group_records, group_tombstones
from kcoord.core.groups.store import GroupStore
from kcoord.core.outcome import INFO, WARNING, CoordinatorRecord, Fact, Now, Outcome
from kcoord.protocol import errors
from kcoord.protocol.join_group import JoinGroupRequestProtocol
from kcoord.protocol.records.consumer_group_member_metadata import ClassicMemberMetadata, ClassicProtocol
from kcoord.protocol.records.consumer_protocol_subscription import ConsumerProtocolSubscription
from kcoord.protocol.records.group_metadata import GroupMetadataKey
from kcoord.wire.primitives import DecodeError

UPGRADE_POLICIES: Final = (MIGRATION_BIDIRECTIONAL, MIGRATION_UPGRADE)
MALFORMED: Final = "the embedded consumer protocol is malformed"
DOWNGRADE_POLICIES: Final = (MIGRATION_BIDIRECTIONAL, MIGRATION_DOWNGRADE)


@final
class ConsumerMigration:
    def __init__(
        self, config: CoreConfig, store: GroupStore, topics: GroupTopics, rebalance: ClassicRebalance
    ) -> None:
        self.config = config
        self.store = store
        self.topics = topics
        self.rebalance = rebalance

    # ---- from classic

    def upgrade(self, classic: ClassicGroup, out: Outcome) -> ConsumerGroup:
        """A consumer group with the members of the classic one, and the records that put it in its place.

        Raises GroupError. When the whole request has succeeded, `upgraded` has to be called.
        """
        self._check_upgrade(classic)
        # A former consumer group of this id may have told its members to join or to give up partitions.
        self.store.timers.forget_phases(classic.group_id)
        group = ConsumerGroup(classic.group_id, classic.log)
        group.epoch = classic.generation_id
        group.assignment_epoch = classic.generation_id
        protocol_name = self._protocol_of(classic)
        subscriptions = self._subscriptions(classic, protocol_name)
        assigned = self._assigned(classic, subscriptions)
        for member in classic.members.values():
            subscription = subscriptions[member.member_id]
            group.put_member(self._upgraded_member(classic, member, subscription, assigned[member.member_id]))
        for known in group.members.values():
            # The last assignment of the classic group is what everybody has and is to have.
            group.targets[known.member_id] = {
                topic_id: list(of_topic) for topic_id, of_topic in known.assigned.items()
            }
        # What was about to be assigned anew must be: no subscription may have changed.
        group.is_unbalanced = classic.state != STABLE or bool(classic.pending_sync)
        group.metadata_hash = self.topics.metadata_hash(group.subscribed_topics())
        out.add(classic.log, GroupMetadataKey(classic.group_id), None)
        records = group_records(group)
        # This one names the generation: the request that converts the group goes on to the next epoch.
        records[len(group.members)].cause = Cause(PROTOCOL_UPGRADED, "", f"classic, {classic.state}")
        out.records.extend(records)
        fields: dict[str, object] = {
            "group": classic.group_id,
            "generation": classic.generation_id,
            "members": len(classic.members),
            "state": classic.state,
        }
        out.facts.append(Fact(INFO, "classic_group_upgraded", fields))
        return group

    def upgraded(self, classic: ClassicGroup, out: Outcome) -> None:
        """The classic group goes: who waits for it has to join the new one."""
        for member in classic.members.values():
            answer_join(classic, member, errors.REBALANCE_IN_PROGRESS, out, member.member_id)
            answer_sync(member, errors.REBALANCE_IN_PROGRESS, out)

    def _check_upgrade(self, classic: ClassicGroup) -> None:
        if self.config.group_consumer_migration_policy not in UPGRADE_POLICIES:
            raise self._refused(classic, "online upgrade is disabled")
        if not classic.uses_consumer_protocol():
            raise self._refused(classic, "the group does not use the consumer embedded protocol")
        if len(classic.members) > self.config.group_consumer_max_size:
            raise self._refused(classic, "the group size exceeds the consumer group maximum size")

    def _refused(self, classic: ClassicGroup, reason: str) -> GroupError:
        return GroupError(
            errors.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {classic.group_id} to consumer group because {reason}.",
        )

    def _protocol_of(self, classic: ClassicGroup) -> str | None:
        """The protocol whose metadata counts. Before the first generation, and when members have changed their
        protocols since the last one, it is the one that the next generation would have."""
        name = classic.protocol_name
        if name is not None and classic.supported_protocols.get(name, 0) == len(classic.members):
            return name
        return classic.select_protocol()

    def _subscriptions(
        self, classic: ClassicGroup, protocol_name: str | None
    ) -> dict[str, ConsumerProtocolSubscription]:
        """By member id. Raises GroupError."""
        subscriptions: dict[str, ConsumerProtocolSubscription] = {}
        try:
            for member in classic.members.values():
                subscriptions[member.member_id] = decode_subscription(member.metadata(protocol_name))
        except DecodeError:
            raise self._refused(classic, MALFORMED) from None
        return subscriptions

    def _upgraded_member(
        self,
        classic: ClassicGroup,
        member: ClassicMember,
        subscription: ConsumerProtocolSubscription,
        assigned: PartitionEpochs,
    ) -> ConsumerMember:
        upgraded = ConsumerMember(member.member_id)
        upgraded.instance_id = member.group_instance_id
        upgraded.rack_id = subscription.rack_id if subscription.rack_id else None
        upgraded.client_id = member.client_id
        upgraded.client_host = member.client_host
        upgraded.rebalance_timeout_ms = member.rebalance_timeout_ms
        upgraded.topic_names = sorted_unique(subscription.topics)
        upgraded.classic = classic_metadata(member.session_timeout_ms, member.protocols)
        upgraded.member_epoch = classic.generation_id
        upgraded.previous_epoch = classic.generation_id
        upgraded.assigned = assigned
        return upgraded

    def _assigned(
        self, classic: ClassicGroup, subscriptions: dict[str, ConsumerProtocolSubscription]
    ) -> dict[str, PartitionEpochs]:
        """What each member has, by member id, with the generation as the epoch in which it was given it.

        That is the last assignment. While a group rebalances there may be none any more, or a member may not have
        asked for it yet: then it also has what it said when it joined, where that is nobody else's. A broker takes
        such partitions for free, and gives them to a second owner. Raises GroupError.
        """
        assigned: dict[str, PartitionEpochs] = {}
        owned: dict[bytes, dict[int, bool]] = {}
        for member in classic.members.values():
            partitions = classic.held.get(member.member_id)
            if partitions is None:
                partitions = self._last_assignment(classic, member)
            own: PartitionEpochs = {}
            for topic_id, of_topic in partitions.items():
                own[topic_id] = dict.fromkeys(sorted(of_topic), classic.generation_id)
                of_others = owned.setdefault(topic_id, {})
                for partition in own[topic_id]:
                    if partition in of_others:
                        raise self._two_owners(classic, member)
                    of_others[partition] = True
            assigned[member.member_id] = own
        unsure: list[tuple[int, str]] = []
        for member_id in classic.members:
            if classic.state != STABLE or member_id in classic.pending_sync:
                # Who was in a later generation is right (KIP-792).
                unsure.append((-subscriptions[member_id].generation_id, member_id))
        unsure.sort()
        for _, member_id in unsure:
            for topic_id, claimed in self.topics.owned_partitions(subscriptions[member_id]).items():
                of_others = owned.setdefault(topic_id, {})
                free = {partition: True for partition in claimed if partition not in of_others}
                if free:
                    of_others.update(free)
                    merged = {
                        **assigned[member_id].get(topic_id, {}),
                        **dict.fromkeys(free, classic.generation_id),
                    }
                    assigned[member_id][topic_id] = dict(sorted(merged.items()))
        return assigned

    def _two_owners(self, classic: ClassicGroup, member: ClassicMember) -> GroupError:
        """The leader gave a partition to two members. A broker stumbles over that, with this very answer."""
        return GroupError(
            errors.UNKNOWN_SERVER_ERROR,
            f"Cannot upgrade classic group {classic.group_id} to consumer group because member {member.member_id} was "
            "assigned a partition that another member was assigned, too.",
        )

    def _last_assignment(self, classic: ClassicGroup, member: ClassicMember) -> Assignment:
        """What the leader assigned to the member last. Raises GroupError."""
        assignment: Assignment = {}
        if not member.assignment:
            # It has just joined.
            return assignment
        try:
            message = decode_assignment(member.assignment)
        except DecodeError:
            raise self._refused(classic, MALFORMED) from None
        if message.user_data:
            raise self._refused(
                classic,
                "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
                "assignor before re-attempting the upgrade",
            )
        for of_topic in message.assigned_partitions:
            topic = self.topics.registry.get(of_topic.topic)
            if topic is not None:
                assignment[topic.topic_id] = of_topic.partitions
        return assignment

    # ---- and back

    def downgrade_without(
        self, group: ConsumerGroup, leaving: list[ConsumerMember], now: Now, out: Outcome
    ) -> bool:
        """Whether the group goes on as a classic one once these members are gone; then `out` says so.

        What is left has to rebalance at once: the assignment was made with those who leave.
        """
        left = len(group.members) - len(leaving)
        classic_left = group.classic_members
        for member in leaving:
            if member.classic is not None:
                classic_left -= 1
        if left == 0 or classic_left != left or not self._may_downgrade(group, left, out):
            return False
        gone = ", ".join(member.member_id for member in leaving[:10])
        cause = Cause(PROTOCOL_DOWNGRADED, leaving[0].member_id, f"without {gone}")
        reason = f"the group is classic again without {gone}"
        return self.downgrade(group, leaving, None, cause, reason, now, out)

    def can_downgrade_with(self, group: ConsumerGroup, replaced: ConsumerMember, out: Outcome) -> bool:
        """Whether the group becomes a classic one when a classic member takes the place of this static one."""
        return (
            replaced.classic is None
            and group.classic_members == len(group.members) - 1
            and self._may_downgrade(group, len(group.members), out)
        )

    def _may_downgrade(self, group: ConsumerGroup, size: int, out: Outcome) -> bool:
        if self.config.group_consumer_migration_policy not in DOWNGRADE_POLICIES:
            return self._stays(group, "online downgrade is disabled", out)
        if size > self.config.group_max_size:
            return self._stays(group, "it is larger than a classic group may be", out)
        return True

    def _stays(self, group: ConsumerGroup, reason: str, out: Outcome) -> bool:
        fields: dict[str, object] = {"group": group.group_id, "reason": reason}
        out.facts.append(Fact(INFO, "consumer_group_not_downgraded", fields))
        return False

    def downgrade(
        self,
        group: ConsumerGroup,
        leaving: list[ConsumerMember],
        joining: ConsumerMember | None,
        cause: Cause,
        rebalance_reason: str,
        now: Now,
        out: Outcome,
    ) -> bool:
        """The group goes on as a classic one without `leaving`, and with `joining` in the place of a static member.

        Earlier records of `out` have put `joining` there. The members keep their target assignments; with a
        `rebalance_reason` they are to join again at once. False where that cannot be.
        """
        replaced_id = ""
        if joining is not None and joining.instance_id is not None:
            replaced_id = group.static_members.get(joining.instance_id, "")
        gone: dict[str, bool] = {}
        for member in leaving:
            gone[member.member_id] = True
        if replaced_id:
            gone[replaced_id] = True
        classic = ClassicGroup(group.group_id, group.log, now.wall_ms)
        classic.state = STABLE
        classic.generation_id = group.epoch
        for member in group.members.values():
            if member.member_id not in gone:
                add_classic_member(classic, member)
        if joining is not None:
            add_classic_member(classic, joining)
        classic.protocol_name = classic.select_protocol()
        if classic.protocol_name is None:
            return self._stays(group, "its members have no protocol in common", out)
        for kept in classic.members.values():
            target_id = kept.member_id
            if joining is not None and target_id == joining.member_id:
                target_id = replaced_id
            kept.assignment = self._target_assignment(group, target_id, kept, classic.protocol_name)
            if rebalance_reason:
                had = joining if joining is not None and kept.member_id == joining.member_id else None
                classic.held[kept.member_id] = held_by(had or group.members[target_id])
        classic.take_subscriptions()
        value = classic.metadata_value()
        if value_bytes_max(group.group_id, value) > self.config.coordinator_batch_bytes_max // 2:
            out.facts.append(Fact(WARNING, "group_record_too_large", {"group": group.group_id}))
            return self._stays(group, "its record would be too large", out)
        by_id = "" if joining is None else joining.member_id
        out.log = group.log
        out.records.extend(group_tombstones(group, replaced_id, by_id))
        out.records.append(CoordinatorRecord(GroupMetadataKey(group.group_id), value, cause))
        fields: dict[str, object] = {
            "group": group.group_id,
            "generation": classic.generation_id,
            "members": len(classic.members),
            "cause": cause.detail,
        }
        out.facts.append(Fact(INFO, "consumer_group_downgraded", fields))
        self.store.making_classic[group.group_id] = classic
        for kept in classic.members.values():
            self.rebalance.schedule_session(classic, kept, kept.session_timeout_ms, now, out)
        if rebalance_reason:
            self.rebalance.prepare_rebalance(classic, rebalance_reason, now, out)
        return True

    def _target_assignment(
        self, group: ConsumerGroup, target_id: str, member: ClassicMember, protocol_name: str
    ) -> bytes:
        try:
            version = version_of(member.metadata(protocol_name))
        except DecodeError:
            # Only the metadata of its first protocol was looked at when it joined.
            version = 0
        return encode_assignment(self.topics.assignment_message(group.target(target_id)), version)


def held_by(member: ConsumerMember) -> Assignment:
    """All that a member has, what it is giving up included."""
    held: Assignment = {topic_id: list(of_topic) for topic_id, of_topic in member.assigned.items()}
    for topic_id, of_topic in member.revoking.items():
        held[topic_id] = held.get(topic_id, []) + list(of_topic)
    return held


def classic_metadata(
    session_timeout_ms: int, protocols: list[JoinGroupRequestProtocol]
) -> ClassicMemberMetadata:
    """What record 5 keeps of a member that speaks the classic protocol."""
    return ClassicMemberMetadata(
        session_timeout_ms, [ClassicProtocol(protocol.name, protocol.metadata) for protocol in protocols]
    )


def add_classic_member(classic: ClassicGroup, member: ConsumerMember) -> None:
    """A member that speaks the classic protocol, in a classic group; its assignment is still to come."""
    stored = member.classic
    if stored is None:
        raise ValueError(f"member {member.member_id} does not speak the classic protocol")
    classic.add_member(
        ClassicMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            stored.session_timeout_ms,
            CONSUMER_PROTOCOL_TYPE,
            [
                JoinGroupRequestProtocol(protocol.name, protocol.metadata)
                for protocol in stored.supported_protocols
            ],
            b"",
        )
    )
