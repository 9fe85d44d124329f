"""What must be true of the records of groups, in the order of their log, whoever wrote them: a broker or kcoord.

A rule stands here only if no log of a broker can break it. There are two kinds. Those about one record, or one key
(generations do not go back) hold wherever the log begins and whatever compaction took: the records of a key that it
leaves are in order, and a tombstone never goes before what it removes. Those about a state (who owns what, which
records a member has) need all records that made it: they count from the offset that `expect` names. Below the offset
that a log is compacted to, what later records replaced is gone, and states that never were appear; from there on the
newest record of every key is all there is to know.

A broker forgets an empty consumer group, without a tombstone, when a classic member asks to join it under an id that
is unknown. So whoever comes next may begin with the first epochs, or a classic group, over records of the old one.

An atomic batch may take a partition from one member after it gave it to another, so states are looked at between
batches, and the caller says where those are. Whoever expects a log to be whole and then finds that something is
missing calls `expect` again; what was said of states until then was said too early.
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

# For `expect`: the beginning of the log is missing, or something in the middle, and no state can be known.
NEVER: Final = (1 << 63) - 1
# How long a broker remembers a producer that is silent (`producer.id.expiration.ms`).
PRODUCER_EXPIRATION_MS: Final = 86_400_000


@final
class Violation:
    """`offset`: the record that broke the rule. `is_of_state`: the rule is about states, and needs a whole log."""

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
    """What the rules remember of one consumer group, beside what the core knows."""

    def __init__(self) -> None:
        # The epochs of the last records, and where those were.
        self.epoch = -1
        self.epoch_offset = -1
        self.assignment_epoch = NO_ASSIGNMENT_EPOCH
        self.assignment_offset = -1
        # There was no member when the last epoch began: a broker may have forgotten the group since.
        self.may_begin_again = True
        # Members with a member record, and with a current assignment.
        self.described: dict[str, bool] = {}
        self.current: dict[str, bool] = {}
        # Since the group was looked at: members with a record, and its offset; the last record of the group.
        self.changed: dict[str, int] = {}
        self.offset = -1
        # As the group was looked at last: its members, and topic id -> partition -> member id.
        self.held: dict[str, ConsumerMember] = {}
        self.owners: dict[bytes, dict[int, str]] = {}
        # A record of it could not be replayed: until the group goes, its state is not known.
        self.is_broken = False

    def look_again(self, group: ConsumerGroup | None) -> None:
        """Everything counts as changed."""
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
        """The member owns what its record says; a partition (topic id, number) that somebody else has, too, and who."""
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
        # Groups with records since they were looked at.
        self.touched: dict[str, bool] = {}


@final
class GroupInvariants:
    """The rules over any number of logs, or of any part of a log's groups, with the core that is fed by them."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._logs: dict[str, _LogRules] = {}

    def expect(self, log: LogId, from_offset: int) -> None:
        """All that counts for the state at `from_offset` is here, and everything from there on: 0 (as long as nothing
        else is said) for a log from its beginning, the end of what was compacted, or NEVER."""
        rules = self._rules(log)
        rules.expected_from = from_offset
        for group_id, group in rules.consumers.items():
            group.look_again(self.core.groups.consumer_groups.get(group_id))
            rules.touched[group_id] = True

    def lost(self, log: LogId) -> None:
        """Records that should follow cannot be read: what comes behind them is another story."""
        rules = _LogRules()
        rules.expected_from = NEVER
        self._logs[repr(log)] = rules

    def replay(self, log: LogId, offset: int, key: Message | None, value: Message | None) -> list[Violation]:
        """Look at one record and replay it into the core."""
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
            self.core.replay(log, offset, key, value)
        except Exception as error:
            # Whatever it is: a server that starts on this log would meet it.
            text = f"the record cannot be replayed: {type(error).__name__}: {error}"
            found.append(Violation("replay", text, group_id, offset, False))
            if group_id:
                self._group(rules, group_id).is_broken = True
        return found

    def end_batch(self, log: LogId, end_offset: int) -> list[Violation]:
        """A batch ended; `end_offset` is where the next one may begin."""
        rules = self._rules(log)
        found: list[Violation] = []
        if end_offset < rules.expected_from:
            return found
        for group_id in rules.touched:
            state = rules.consumers.get(group_id)
            if state is not None:
                self._look(rules, group_id, state, found)
        rules.touched = {}
        return found

    def end_log(self, log: LogId) -> list[Violation]:
        """There are no more records: what is there is the newest of every key, whatever was compacted."""
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
            text = f"{name} is one of the classic protocol, while members of the new one are left"
            found.append(Violation("kind", text, group_id, offset, True))
        last = rules.generations.get(group_id, -1)
        rules.generations[group_id] = value.generation
        if value.generation < 0:
            text = f"{name} has generation {value.generation}"
            found.append(Violation("generation", text, group_id, offset, False))
        elif value.generation < last and not (last == GENERATION_MAX and value.generation == 1):
            text = f"{name} goes back from generation {last} to {value.generation}"
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
                # A tombstone for something that is not there says nothing.
                return
            state = self._group(rules, group_id)
        classic = self.core.groups.get(group_id)
        is_classic = classic is not None and classic.value is not None
        if is_classic and value is not None and offset >= rules.expected_from:
            text = f"group {group_id!r} is one of the new protocol, while its classic record is left"
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
                        text = f"group {group_id!r} goes back from epoch {state.epoch} to {value.epoch}"
                        found.append(Violation("group epoch", text, group_id, offset, True))
                state.epoch = value.epoch
                state.epoch_offset = offset
                state.may_begin_again = not state.described
        elif isinstance(key, ConsumerGroupTargetAssignmentMetadataKey):
            if isinstance(value, ConsumerGroupTargetAssignmentMetadataValue):
                epoch = value.assignment_epoch
                if epoch < state.assignment_epoch and offset >= rules.expected_from:
                    text = f"group {group_id!r} goes back from assignment epoch {state.assignment_epoch} to {epoch}"
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

    def _check_removal(
        self, group_id: str, state: _ConsumerRules, offset: int, found: list[Violation]
    ) -> None:
        """The group's own tombstone comes after all others: what is left would bring it back to life."""
        group = self.core.groups.consumer_groups.get(group_id)
        left: list[str] = []
        if state.described or state.current:
            left.append(f"{max(len(state.described), len(state.current))} members")
        if group is not None and group.targets:
            left.append(f"{len(group.targets)} targets")
        if state.assignment_epoch != NO_ASSIGNMENT_EPOCH:
            left.append("the assignment epoch")
        if left:
            text = f"group {group_id!r} is removed, but not {' and '.join(left)}"
            found.append(Violation("removal", text, group_id, offset, True))

    def _look(self, rules: _LogRules, group_id: str, state: _ConsumerRules, found: list[Violation]) -> None:
        """The group between two batches. Only members with a new record can have broken a rule."""
        group = self.core.groups.consumer_groups.get(group_id)
        changed = state.changed
        state.changed = {}
        if group is None or state.is_broken:
            return
        name = f"group {group_id!r}"
        # An assignment from before the epoch is one of a group that was forgotten.
        if group.assignment_epoch > group.epoch and state.assignment_offset > state.epoch_offset:
            text = f"{name} is in epoch {group.epoch}, its assignment of epoch {group.assignment_epoch}"
            found.append(Violation("assignment epoch", text, group_id, state.offset, True))
        for member_id in changed:
            state.release(member_id)
        for member_id, offset in changed.items():
            self._look_at_member(group, state, member_id, offset, found)

    def _look_at_member(
        self, group: ConsumerGroup, state: _ConsumerRules, member_id: str, offset: int, found: list[Violation]
    ) -> None:
        """A member as it is now; it takes what it owns."""
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
            text = f"{name}-{partition} is with {member_id!r} and {other!r} of group {group_id!r} at once"
            found.append(Violation("ownership", text, group_id, offset, True))


def _note(members: dict[str, bool], member_id: str, value: Message | None) -> None:
    if value is None:
        members.pop(member_id, None)
    else:
        members[member_id] = True


def _classic_members(value: GroupMetadataValue) -> list[str]:
    """What is wrong with the members of a generation."""
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
        problems.append("has two members of one instance id")
    if value.members:
        if value.leader not in ids:
            problems.append(f"has the leader {value.leader!r}, who is none of its members")
        if value.protocol is None or not value.protocol_type:
            problems.append("has members and no protocol")
    return problems


def group_id_of(key: Message) -> str:
    """The group that a record is about, if it is one of a consumer group; or ""."""
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
    """An epoch fences those before it: in one partition a producer's batches and markers never go back to an older
    one, except after the broker forgot the producer."""

    def __init__(self, expiration_ms: int = PRODUCER_EXPIRATION_MS) -> None:
        self.expiration_ms = expiration_ms
        self._seen: dict[str, dict[int, tuple[int, int]]] = {}

    def check(self, log: LogId, producer_id: int, epoch: int, timestamp_ms: int) -> str:
        """A batch, in the order of its log; `timestamp_ms` is its newest. What is wrong, or ""."""
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
        return f"producer {producer_id} goes back from epoch {last[0]} to {epoch}"
