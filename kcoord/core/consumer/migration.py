"""Online migration between the classic and the consumer protocol, while members work (KIP-848).

An empty group is converted by the first member of the other protocol. A classic group with members is converted by the
first member of the consumer protocol, as far as `group.consumer.migration.policy` allows. It is converted back when the
last of these leaves, expires or is replaced by a classic member.

The order matters. The handler builds the new group here as a separate object, with its soft state, and adds records
that describe the same: first the tombstones of the old group, then the records of the new one. Replay receives the
group object with the outcome (`Outcome.made`). Until all records are replayed, the old group is unchanged, so a request
that fails later has no effect.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.assignors.spec import Assignment
from kcoord.core.cause import PROTOCOL_DOWNGRADED, PROTOCOL_UPGRADED, Cause
from kcoord.core.choices import MIGRATION_BIDIRECTIONAL, MIGRATION_DOWNGRADE, MIGRATION_UPGRADE
from kcoord.core.classic.rebalance import ClassicRebalance, answer_join, answer_sync
from kcoord.core.config import CoreConfig
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
from kcoord.core.groups.records import group_records, group_tombstones, tombstone_bytes
from kcoord.core.groups.store import GroupStore
from kcoord.core.outcome import INFO, LIMIT, WARNING, CoordinatorRecord, Fact, Now, Outcome
from kcoord.core.topics.group_topics import GroupTopics
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
    def __init__(self, config: CoreConfig, store: GroupStore, topics: GroupTopics, rebalance: ClassicRebalance) -> None:
        self.config = config
        self.store = store
        self.topics = topics
        self.rebalance = rebalance

    # ---- from classic to consumer

    def upgrade(self, classic: ClassicGroup, out: Outcome) -> ConsumerGroup:
        """A consumer group with the members of the classic one. Adds the records that replace it.

        Raises GroupError. Once the whole request has succeeded, the caller has to call `upgraded`.
        """
        self._check_upgrade(classic)
        # An earlier consumer group of this id may have armed join and rebalance timers of the same members.
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
            # The last assignment of the classic group becomes both the current and the target assignment.
            group.targets[known.member_id] = {topic_id: list(of_topic) for topic_id, of_topic in known.assigned.items()}
        # The rebalance that was running must be completed, although no subscription may have changed.
        group.is_unbalanced = classic.state != STABLE or bool(classic.pending_sync)
        group.metadata_hash = self.topics.metadata_hash(group.subscribed_topics())
        # The tombstone of the classic group comes first, in the same batch: the log never has both groups.
        out.add(classic.log, GroupMetadataKey(classic.group_id), None)
        records = group_records(group)
        # This cause belongs to the epoch that equals the generation. The request itself then starts the next epoch.
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
        """The classic group no longer exists: answer its parked requests so that these members rejoin the new group."""
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
        """The protocol whose metadata counts. Before the first generation, and if members have changed their protocols
        since the last one, that is the protocol that the next generation would select.
        """
        name = classic.protocol_name
        if name is not None and classic.supported_protocols.get(name, 0) == len(classic.members):
            return name
        return classic.select_protocol()

    def _subscriptions(
        self, classic: ClassicGroup, protocol_name: str | None
    ) -> dict[str, ConsumerProtocolSubscription]:
        """Subscriptions by member id. Raises GroupError."""
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
        """The partitions that each member owns, by member id. The generation becomes their assignment epoch.

        These are the last assignment. While a group rebalances, there may be none, or a member may not have received it
        yet: then a member also keeps the partitions that it reported when it joined, unless another member owns them. A
        broker treats such partitions as free and assigns them to a second owner. Raises GroupError.
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
                # Of two members that report a partition, the one with the later generation owns it (KIP-792).
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
        """The leader assigned a partition to two members. A broker fails in this case, with this answer."""
        return GroupError(
            errors.UNKNOWN_SERVER_ERROR,
            f"Cannot upgrade classic group {classic.group_id} to consumer group because member {member.member_id} was "
            "assigned a partition that another member was assigned, too.",
        )

    def _last_assignment(self, classic: ClassicGroup, member: ClassicMember) -> Assignment:
        """The member's part of the leader's last assignment. Raises GroupError."""
        assignment: Assignment = {}
        if not member.assignment:
            # The member joined after that.
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

    # ---- from consumer to classic

    def downgrade_without(self, group: ConsumerGroup, leaving: list[ConsumerMember], now: Now, out: Outcome) -> bool:
        """Convert the group to a classic one without these members. Returns whether it did; `out` then has the records.

        The remaining members have to rebalance at once, because the target assignment includes those who leave.
        """
        left = len(group.members) - len(leaving)
        classic_left = group.classic_members
        for member in leaving:
            if member.classic is not None:
                classic_left -= 1
        if left == 0 or classic_left != left or not self._may_downgrade(group, left, out):
            return False
        removed = ", ".join(member.member_id for member in leaving[:10])
        cause = Cause(PROTOCOL_DOWNGRADED, leaving[0].member_id, f"after the removal of {removed}")
        reason = f"the group was downgraded after the removal of {removed}"
        return self.downgrade(group, leaving, None, cause, reason, now, out)

    def can_downgrade_with(self, group: ConsumerGroup, replaced: ConsumerMember, out: Outcome) -> bool:
        """Whether the group becomes classic when a classic member replaces this static member."""
        return (
            replaced.classic is None
            and group.classic_members == len(group.members) - 1
            and self._may_downgrade(group, len(group.members), out)
        )

    def _may_downgrade(self, group: ConsumerGroup, size: int, out: Outcome) -> bool:
        if self.config.group_consumer_migration_policy not in DOWNGRADE_POLICIES:
            return self._cannot_downgrade(group, "online downgrade is disabled", out)
        if size > self.config.group_max_size:
            return self._cannot_downgrade(group, "the group is larger than group.max.size", out)
        return True

    def _cannot_downgrade(self, group: ConsumerGroup, reason: str, out: Outcome) -> bool:
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
        """Convert the group to a classic one, without `leaving`, and with `joining` as a static member's replacement.

        Earlier records of `out` already replace that static member. The other members keep their target assignments;
        with a `rebalance_reason` they have to rejoin at once. Returns False if the group cannot be converted.
        """
        replaced_id = ""
        if joining is not None and joining.instance_id is not None:
            replaced_id = group.static_members.get(joining.instance_id, "")
        gone: dict[str, bool] = {}
        for member in leaving:
            gone[member.member_id] = True
        if replaced_id:
            gone[replaced_id] = True
        classic = ClassicGroup(group.group_id, group.log, now.wall_ms, STABLE)
        classic.generation_id = group.epoch
        for member in group.members.values():
            if member.member_id not in gone:
                add_classic_member(classic, member)
        if joining is not None:
            add_classic_member(classic, joining)
        classic.protocol_name = classic.select_protocol()
        if classic.protocol_name is None:
            return self._cannot_downgrade(group, "the members have no common protocol", out)
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
        by_id = "" if joining is None else joining.member_id
        batch_bytes = self.config.coordinator_batch_bytes_max
        size = value_bytes_max(group.group_id, value)
        # An eighth is left for the records that replace a static member.
        if size > batch_bytes // 2 or size + _tombstone_bytes(group) > batch_bytes - batch_bytes // 8:
            out.facts.append(Fact(WARNING, "group_record_too_large", {"group": group.group_id}, LIMIT))
            return self._cannot_downgrade(group, "the record of the classic group would be too large", out)
        out.log = group.log
        # The tombstones come first, directly followed by the classic group, in one batch: after a crash the log has
        # one of the two groups. From the tombstones replay learns whether the classic group has to rebalance.
        out.records.extend(group_tombstones(group, replaced_id, by_id))
        out.records.append(CoordinatorRecord(GroupMetadataKey(group.group_id), value, cause))
        fields: dict[str, object] = {
            "group": group.group_id,
            "generation": classic.generation_id,
            "members": len(classic.members),
            "cause": cause.detail,
        }
        out.facts.append(Fact(INFO, "consumer_group_downgraded", fields))
        out.made = classic
        for kept in classic.members.values():
            self.store.timers.start_session(classic.group_id, kept.member_id, kept.session_timeout_ms, now, out)
        # The record has the Stable group. If the rebalance is lost in a crash, start-up begins it again.
        if rebalance_reason:
            self.rebalance.prepare_rebalance(classic, rebalance_reason, now, out)
        return True

    def _target_assignment(
        self, group: ConsumerGroup, target_id: str, member: ClassicMember, protocol_name: str
    ) -> bytes:
        try:
            version = version_of(member.metadata(protocol_name))
        except DecodeError:
            # JoinGroup checked only the metadata of the first protocol.
            version = 0
        return encode_assignment(self.topics.assignment_message(group.target(target_id)), version)


def _tombstone_bytes(group: ConsumerGroup) -> int:
    """An upper bound of the bytes of the group's tombstones in a batch: three of each member, and of the group."""
    size = 3 * tombstone_bytes(group.group_id, "")
    for member_id in group.members:
        size += 3 * tombstone_bytes(group.group_id, member_id)
    for regex in group.resolved_regexes:
        size += tombstone_bytes(group.group_id, regex)
    return size


def held_by(member: ConsumerMember) -> Assignment:
    """All partitions that a member owns, including those it is revoking."""
    held: Assignment = {topic_id: list(of_topic) for topic_id, of_topic in member.assigned.items()}
    for topic_id, of_topic in member.revoking.items():
        held[topic_id] = held.get(topic_id, []) + list(of_topic)
    return held


def classic_metadata(session_timeout_ms: int, protocols: list[JoinGroupRequestProtocol]) -> ClassicMemberMetadata:
    """The part of record 5 that describes a classic member."""
    return ClassicMemberMetadata(
        session_timeout_ms, [ClassicProtocol(protocol.name, protocol.metadata) for protocol in protocols]
    )


def add_classic_member(classic: ClassicGroup, member: ConsumerMember) -> None:
    """Add a classic member of a consumer group to a classic group. Its assignment follows."""
    stored = member.classic
    if stored is None:
        raise ValueError(f"member {member.member_id} does not use the classic protocol")
    classic.add_member(
        ClassicMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            stored.session_timeout_ms,
            CONSUMER_PROTOCOL_TYPE,
            [JoinGroupRequestProtocol(protocol.name, protocol.metadata) for protocol in stored.supported_protocols],
            b"",
        )
    )
