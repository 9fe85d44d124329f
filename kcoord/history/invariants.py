"""Rules for the records of groups, in the order of their log, whether a broker or kcoord wrote them.

A rule is only here if no log of a broker can break it. There are two kinds. Rules about one record, or one key
(generations never decrease), hold wherever the log begins and whatever compaction removed: the records of a key that
remain are in order, and a tombstone never disappears before what it deletes. Rules about a state (who owns what, which
records a member has) need all records that produced it: they apply from the offset that `expect` names. Below the
offset up to which a log is compacted, replaced records are gone, and replay sees states that never existed; from there
on the newest record of every key determines the state.

A broker forgets an empty consumer group, without a tombstone, when a classic member asks to join it under an unknown
member id. So the next member may start with the first epochs, or with a classic group, on top of the old group's
records.

An atomic batch may take a partition from one member after giving it to another. So states are checked between batches,
and the caller reports where a batch ends. A caller that finds a gap in a log it considered complete calls `expect`
again; violations of state that were reported until then may be wrong.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.coordinator import Core
from kcoord.core.groups.classic import GENERATION_MAX
from kcoord.core.groups.consumer import NO_ASSIGNMENT_EPOCH, ConsumerGroup
from kcoord.core.groups.members import ConsumerMember, PartitionEpochs
from kcoord.core.outcome import LogId
from kcoord.protocol.records.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
)
from kcoord.protocol.records.consumer_group_member_metadata import ConsumerGroupMemberMetadataKey
from kcoord.protocol.records.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from kcoord.protocol.records.consumer_group_partition_metadata import ConsumerGroupPartitionMetadataKey
from kcoord.protocol.records.consumer_group_regular_expression import ConsumerGroupRegularExpressionKey
from kcoord.protocol.records.consumer_group_target_assignment_member import (
    ConsumerGroupTargetAssignmentMemberKey,
)
from kcoord.protocol.records.consumer_group_target_assignment_metadata import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from kcoord.wire.message import Message
from kcoord.wire.record_batch import NO_PRODUCER_ID

# For `expect`: records at the beginning or in the middle are missing, so no state is known.
NEVER: Final = (1 << 63) - 1
# How long a broker remembers an idle producer (`producer.id.expiration.ms`).
PRODUCER_EXPIRATION_MS: Final = 86_400_000


@final
class Violation:
    """`offset` is that of the record that broke the rule. `is_of_state`: the rule is about states and needs a complete
    log.
    """

    def __init__(self, rule: str, text: str, group: str, offset: int, is_of_state: bool) -> None:
        self.rule = rule
        self.text = text
        self.group = group
        self.offset = offset
        self.is_of_state = is_of_state

    def __repr__(self) -> str:
        return f"{self.rule} at {self.offset}: {self.text}"


@final
class _ConsumerRules:
    """What the rules remember of one consumer group, in addition to the core."""

    def __init__(self) -> None:
        # The epochs of the last records, and the offsets of these records.
        self.epoch = -1
        self.epoch_offset = -1
        self.assignment_epoch = NO_ASSIGNMENT_EPOCH
        self.assignment_offset = -1
        # The group had no members when the last epoch began, so a broker may have forgotten it since.
        self.may_begin_again = True
        # Members with a member record, and members with a current assignment.
        self.described: dict[str, bool] = {}
        self.current: dict[str, bool] = {}
        # Since the last check: members with a record and its offset, and the last record of the group.
        self.changed: dict[str, int] = {}
        self.offset = -1
        # As of the last check: the members, and topic id -> partition -> member id.
        self.held: dict[str, ConsumerMember] = {}
        self.owners: dict[bytes, dict[int, str]] = {}
        # One of its records could not be replayed: the state is unknown until the group is removed.
        self.is_broken = False

    def mark_changed(self, group: ConsumerGroup | None) -> None:
        """Mark everything as changed."""
        for member_id in self.described:
            self.changed.setdefault(member_id, self.offset)
        for member_id in self.current:
            self.changed.setdefault(member_id, self.offset)
        if group is not None:
            for member_id in group.targets:
                self.changed.setdefault(member_id, self.offset)
        self.held = {}
        self.owners = {}

    def release(self, member_id: str) -> None:
        member = self.held.pop(member_id, None)
        if member is None:
            return
        for partitions in (member.assigned, member.revoking):
            for topic_id, of_topic in partitions.items():
                owners = self.owners.get(topic_id)
                if owners is None:
                    continue
                for partition in of_topic:
                    if owners.get(partition) == member_id:
                        del owners[partition]
                if not owners:
                    del self.owners[topic_id]

    def take(self, member: ConsumerMember) -> tuple[bytes, int, str] | None:
        """Give the member the partitions of its record. Returns one (topic id, number) that already has an owner, and
        that owner.
        """
        self.held[member.member_id] = member
        assigned = self._take(member.member_id, member.assigned)
        revoking = self._take(member.member_id, member.revoking)
        return revoking if assigned is None else assigned

    def _take(self, member_id: str, partitions: PartitionEpochs) -> tuple[bytes, int, str] | None:
        twice: tuple[bytes, int, str] | None = None
        for topic_id, of_topic in partitions.items():
            owners = self.owners.get(topic_id)
            if owners is None:
                owners = {}
                self.owners[topic_id] = owners
            for partition in of_topic:
                other = owners.get(partition, member_id)
                if other != member_id:
                    twice = (topic_id, partition, other)
                owners[partition] = member_id
        return twice


@final
class _LogRules:
    def __init__(self) -> None:
        self.expected_from = 0
        self.generations: dict[str, int] = {}
        self.consumers: dict[str, _ConsumerRules] = {}
        # Groups with records since their last check.
        self.touched: dict[str, bool] = {}


@final
class GroupInvariants:
    """The rules for any number of logs, or for some groups of a log, with the core that replays their records."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._logs: dict[str, _LogRules] = {}

    def expect(self, log: LogId, from_offset: int) -> None:
        """State is complete at `from_offset` and all records from there on follow. 0 (the default) is for a complete
        log; else it is the end of what was compacted, or NEVER.
        """
        rules = self._rules(log)
        rules.expected_from = from_offset
        for group_id, group in rules.consumers.items():
            group.mark_changed(self.core.groups.consumer_groups.get(group_id))
            rules.touched[group_id] = True

    def lost(self, log: LogId) -> None:
        """Records that should follow cannot be read, so nothing is known about the state after them."""
        rules = _LogRules()
        rules.expected_from = NEVER
        self._logs[repr(log)] = rules

    def replay(
        self, log: LogId, offset: int, key: Message | None, value: Message | None, producer_id: int = NO_PRODUCER_ID
    ) -> list[Violation]:
        """Check one record and replay it into the core. `producer_id` is that of its batch."""
        found: list[Violation] = []
        rules = self._rules(log)
        group_id = ""
        if isinstance(key, GroupMetadataKey):
            self._classic(rules, offset, key.group, value, found)
        elif key is not None:
            group_id = group_id_of(key)
            if group_id:
                self._consumer(rules, offset, group_id, key, value, found)
        try:
            self.core.replay(log, offset, key, value, producer_id=producer_id)
        except Exception as error:
            # Any exception: a server that opens this log would fail in the same way.
            text = f"the record cannot be replayed: {type(error).__name__}: {error}"
            found.append(Violation("replay", text, group_id, offset, False))
            if group_id:
                self._group(rules, group_id).is_broken = True
        return found

    def end_batch(self, log: LogId, end_offset: int) -> list[Violation]:
        """A batch ended; `end_offset` is the lowest offset of the next one."""
        rules = self._rules(log)
        found: list[Violation] = []
        if end_offset < rules.expected_from:
            return found
        for group_id in rules.touched:
            state = rules.consumers.get(group_id)
            if state is not None:
                self._check_group(group_id, state, found)
        rules.touched = {}
        return found

    def end_log(self, log: LogId) -> list[Violation]:
        """The log ended: its state is that of the newest record of every key, whatever was compacted."""
        rules = self._rules(log)
        if rules.expected_from == NEVER:
            return []
        return self.end_batch(log, rules.expected_from)

    def _rules(self, log: LogId) -> _LogRules:
        rules = self._logs.get(repr(log))
        if rules is None:
            rules = _LogRules()
            self._logs[repr(log)] = rules
        return rules

    def _group(self, rules: _LogRules, group_id: str) -> _ConsumerRules:
        state = rules.consumers.get(group_id)
        if state is None:
            state = _ConsumerRules()
            rules.consumers[group_id] = state
        return state

    # ---- classic groups

    def _classic(
        self, rules: _LogRules, offset: int, group_id: str, value: Message | None, found: list[Violation]
    ) -> None:
        if not isinstance(value, GroupMetadataValue):
            rules.generations.pop(group_id, None)
            return
        name = f"group {group_id!r}"
        state = rules.consumers.pop(group_id, None)
        is_known = offset >= rules.expected_from
        if state is not None and is_known and not state.is_broken and (state.described or state.current):
            text = f"{name} is a classic group, but records of consumer group members remain"
            found.append(Violation("kind", text, group_id, offset, True))
        last = rules.generations.get(group_id, -1)
        rules.generations[group_id] = value.generation
        if value.generation < 0:
            text = f"{name} has generation {value.generation}"
            found.append(Violation("generation", text, group_id, offset, False))
        elif value.generation < last and not (last == GENERATION_MAX and value.generation == 1):
            text = f"the generation of {name} decreases from {last} to {value.generation}"
            found.append(Violation("generation", text, group_id, offset, False))
        for text in _classic_members(value):
            found.append(Violation("members", f"{name} {text}", group_id, offset, False))

    # ---- consumer groups

    def _consumer(
        self,
        rules: _LogRules,
        offset: int,
        group_id: str,
        key: Message,
        value: Message | None,
        found: list[Violation],
    ) -> None:
        state = rules.consumers.get(group_id)
        if state is None:
            if value is None:
                # A tombstone without a record to delete proves nothing.
                return
            state = self._group(rules, group_id)
        classic = self.core.groups.get(group_id)
        is_classic = classic is not None and classic.value is not None
        if is_classic and value is not None and offset >= rules.expected_from:
            text = f"group {group_id!r} is a consumer group, but its classic record remains"
            found.append(Violation("kind", text, group_id, offset, True))
        rules.touched[group_id] = True
        state.offset = offset
        if isinstance(key, ConsumerGroupMetadataKey):
            if value is None:
                if offset >= rules.expected_from and not state.is_broken:
                    self._check_removal(group_id, state, offset, found)
                del rules.consumers[group_id]
                rules.touched.pop(group_id, None)
            elif isinstance(value, ConsumerGroupMetadataValue):
                if value.epoch < state.epoch:
                    if state.may_begin_again:
                        state.assignment_epoch = NO_ASSIGNMENT_EPOCH
                    elif offset >= rules.expected_from:
                        text = f"the epoch of group {group_id!r} decreases from {state.epoch} to {value.epoch}"
                        found.append(Violation("group epoch", text, group_id, offset, True))
                state.epoch = value.epoch
                state.epoch_offset = offset
                state.may_begin_again = not state.described
        elif isinstance(key, ConsumerGroupTargetAssignmentMetadataKey):
            if isinstance(value, ConsumerGroupTargetAssignmentMetadataValue):
                epoch = value.assignment_epoch
                if epoch < state.assignment_epoch and offset >= rules.expected_from:
                    text = (
                        f"the assignment epoch of group {group_id!r} decreases from {state.assignment_epoch} to {epoch}"
                    )
                    found.append(Violation("assignment epoch", text, group_id, offset, True))
                state.assignment_epoch = epoch
                state.assignment_offset = offset
            else:
                state.assignment_epoch = NO_ASSIGNMENT_EPOCH
        elif isinstance(key, ConsumerGroupMemberMetadataKey):
            _note(state.described, key.member_id, value)
            state.changed[key.member_id] = offset
        elif isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
            _note(state.current, key.member_id, value)
            state.changed[key.member_id] = offset
        elif isinstance(key, ConsumerGroupTargetAssignmentMemberKey):
            state.changed[key.member_id] = offset

    def _check_removal(self, group_id: str, state: _ConsumerRules, offset: int, found: list[Violation]) -> None:
        """The group's own tombstone follows all others: anything that remains would create the group again."""
        group = self.core.groups.consumer_groups.get(group_id)
        left: list[str] = []
        if state.described or state.current:
            left.append(f"{max(len(state.described), len(state.current))} members")
        if group is not None and group.targets:
            left.append(f"{len(group.targets)} targets")
        if state.assignment_epoch != NO_ASSIGNMENT_EPOCH:
            left.append("the assignment epoch")
        if left:
            text = f"group {group_id!r} is removed, but {' and '.join(left)} remain"
            found.append(Violation("removal", text, group_id, offset, True))

    def _check_group(self, group_id: str, state: _ConsumerRules, found: list[Violation]) -> None:
        """Check the group between two batches. Only members with a new record can have broken a rule."""
        group = self.core.groups.consumer_groups.get(group_id)
        changed = state.changed
        state.changed = {}
        if group is None or state.is_broken:
            return
        name = f"group {group_id!r}"
        # An older assignment may be from a group that the broker has forgotten.
        if group.assignment_epoch > group.epoch and state.assignment_offset > state.epoch_offset:
            text = f"{name} is in epoch {group.epoch}, its assignment of epoch {group.assignment_epoch}"
            found.append(Violation("assignment epoch", text, group_id, state.offset, True))
        for member_id in changed:
            state.release(member_id)
        for member_id, offset in changed.items():
            self._check_member(group, state, member_id, offset, found)

    def _check_member(
        self, group: ConsumerGroup, state: _ConsumerRules, member_id: str, offset: int, found: list[Violation]
    ) -> None:
        """Check the member in its current state, and give it its partitions."""
        group_id = group.group_id
        who = f"member {member_id!r} of group {group_id!r}"
        if member_id not in state.described:
            if member_id in state.current:
                text = f"{who} has a current assignment, but no member record"
                found.append(Violation("members", text, group_id, offset, True))
            if member_id in group.targets:
                text = f"{who} has a target assignment, but no member record"
                found.append(Violation("members", text, group_id, offset, True))
        member = group.members.get(member_id)
        if member is None:
            return
        if member.member_epoch > group.epoch:
            text = f"{who} is in epoch {member.member_epoch}, the group in {group.epoch}"
            found.append(Violation("member epoch", text, group_id, offset, True))
        twice = state.take(member)
        if twice is not None:
            topic_id, partition, other = twice
            topic = self.core.topics.by_id(topic_id)
            name = topic_id.hex() if topic is None else topic.name
            text = f"{name}-{partition} is owned by both {member_id!r} and {other!r} of group {group_id!r}"
            found.append(Violation("ownership", text, group_id, offset, True))


def _note(members: dict[str, bool], member_id: str, value: Message | None) -> None:
    if value is None:
        members.pop(member_id, None)
    else:
        members[member_id] = True


def _classic_members(value: GroupMetadataValue) -> list[str]:
    """Check the members of a generation. Returns a list of problems."""
    problems: list[str] = []
    ids: dict[str, bool] = {}
    instances: dict[str, bool] = {}
    statics = 0
    for member in value.members:
        ids[member.member_id] = True
        if member.group_instance_id is not None:
            statics += 1
            instances[member.group_instance_id] = True
    if len(ids) != len(value.members):
        problems.append("has a member twice")
    if len(instances) != statics:
        problems.append("has two members with one instance id")
    if value.members:
        if value.leader not in ids:
            problems.append(f"has the leader {value.leader!r}, which is not a member")
        if value.protocol is None or not value.protocol_type:
            problems.append("has members but no protocol")
    return problems


def group_id_of(key: Message) -> str:
    """The group of a consumer group's record; "" for other records."""
    if isinstance(
        key,
        (
            ConsumerGroupCurrentMemberAssignmentKey,
            ConsumerGroupTargetAssignmentMemberKey,
            ConsumerGroupMemberMetadataKey,
            ConsumerGroupMetadataKey,
            ConsumerGroupTargetAssignmentMetadataKey,
            ConsumerGroupRegularExpressionKey,
            ConsumerGroupPartitionMetadataKey,
        ),
    ):
        return key.group_id
    return ""


@final
class ProducerEpochs:
    """An epoch fences earlier ones: in one partition the epochs of a producer's batches and markers never decrease,
    except after the broker has forgotten the producer.
    """

    def __init__(self, expiration_ms: int = PRODUCER_EXPIRATION_MS) -> None:
        self.expiration_ms = expiration_ms
        self._seen: dict[str, dict[int, tuple[int, int]]] = {}

    def check(self, log: LogId, producer_id: int, epoch: int, timestamp_ms: int) -> str:
        """Check a batch in the order of its log; `timestamp_ms` is its largest. Returns the problem, or ""."""
        if producer_id < 0:
            return ""
        seen = self._seen.get(repr(log))
        if seen is None:
            seen = {}
            self._seen[repr(log)] = seen
        last = seen.get(producer_id)
        seen[producer_id] = (epoch, timestamp_ms)
        if last is None or epoch >= last[0] or timestamp_ms - last[1] >= self.expiration_ms:
            return ""
        return f"the epoch of producer {producer_id} decreases from {last[0]} to {epoch}"
