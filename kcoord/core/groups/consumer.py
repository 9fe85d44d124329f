"""One consumer group of KIP-848: its hard state, indexes over it, and a little soft state.

Only `core/groups/replay.py` changes the hard state, through the methods of the last section. A handler that needs a
group as it will be (an upgrade from classic) builds a separate one with the same methods, and writes records whose
replay has the same result. The group's state, its subscriptions and the owners of partitions are derived from its
members, so they cannot contradict them.

A partition has at most one owner at any time. `partition_epochs` maps it to the epoch of the member that owns it,
whether assigned or pending revocation, and it is assigned to no other member while it is in there.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.assignors.spec import Assignment
from kcoord.core.assignors.target_builder import TargetBuilder
from kcoord.core.cause import NO_TIME
from kcoord.core.groups.computation import ClientComputation
from kcoord.core.groups.errors import GroupError
from kcoord.core.groups.members import (
    NO_ANSWER,
    STABLE,
    STATIC_LEAVE_EPOCH,
    AssignorAnswer,
    ConsumerMember,
    PartitionEpochs,
)
from kcoord.core.outcome import LogId, MadeGroup
from kcoord.protocol import errors

# The states, spelled as ConsumerGroupDescribe and ListGroups show them.
EMPTY: Final = "Empty"
ASSIGNING: Final = "Assigning"
RECONCILING: Final = "Reconciling"
STABLE_GROUP: Final = "Stable"

NO_ASSIGNMENT_EPOCH: Final = -1
NO_OWNER: Final = -1


@final
class ResolvedRegex:
    """The sorted topics that a regular expression matched, with the time and the metadata version of the match."""

    def __init__(self, topics: list[str], version: int, timestamp_ms: int) -> None:
        self.topics = topics
        self.version = version
        self.timestamp_ms = timestamp_ms


# The largest number of topic changes that a cause lists.
TOPIC_CHANGES_MAX: Final = 10


@final
class Rebalance:
    """A rebalance that has begun: the epoch that it began with, what caused that, and when, in monotonic time."""

    def __init__(self, epoch: int, cause: str, began_ms: int) -> None:
        self.epoch = epoch
        self.cause = cause
        self.began_ms = began_ms


@final
class ConsumerGroup(MadeGroup):
    def __init__(self, group_id: str, log: LogId) -> None:
        self.group_id = group_id
        self.log = log
        # The offset after the last record that concerns this group, in the log of the group.
        self.end_offset = 0
        # The offset after the last transactional offset commit or marker that concerns this group. Soft state.
        self.transactions_end = 0

        # Hard state: records 3, 5, 6, 7, 8 and 16. Like a broker, a group starts in epoch 1 with an empty assignment of
        # epoch 1.
        self.epoch = 1
        # The timestamp of the epoch's record, NO_TIME if unknown. When the last member leaves, that starts the last
        # epoch, so for an empty group this is the time since which it is empty.
        self.epoch_time_ms = NO_TIME
        self.metadata_hash = 0
        self.members: dict[str, ConsumerMember] = {}
        self.assignment_epoch = 1
        self.assignment_timestamp_ms = 0
        self.targets: dict[str, Assignment] = {}
        # Error and metadata that a client-side assignor returned with the targets, for members that got any.
        self.answers: dict[str, AssignorAnswer] = {}
        self.resolved_regexes: dict[str, ResolvedRegex] = {}
        # The group's size, and whether its assignment was older than its epoch, when its tombstones began.
        self.last_size = 0
        self.last_was_behind = False
        # Brokers before 4.1 stored the group's topics in record 4. The next epoch removes that record.
        self.has_partition_metadata_record = False

        # Indexes over members.
        self.static_members: dict[str, str] = {}
        self.partition_epochs: PartitionEpochs = {}
        self.name_counts: dict[str, int] = {}
        self.regex_counts: dict[str, int] = {}
        # How many resolved expressions of this group match a topic.
        self.regex_topic_counts: dict[str, int] = {}
        self.assignor_counts: dict[str, int] = {}
        self.classic_members = 0
        # Members that have a client-side assignor.
        self.client_assignor_members = 0
        self.classic_protocol_counts: dict[str, int] = {}
        # How many members have reached the target of an epoch, by epoch; STATIC_LEAVE_EPOCH for those that are away.
        self.settled_counts: dict[int, int] = {}

        # Soft state. Losing it costs work, never a promise.
        # The monotonic time of the next check of the topics, unless something requests it earlier.
        self.refresh_deadline_ms = 0
        self.builder: TargetBuilder | None = None
        # The assignor of the last computation; "" if unknown.
        self.builder_assignor = ""
        # The computation that a member's client-side assignor is asked for.
        self.computation: ClientComputation | None = None
        # Changes of topics since the last check, as texts for people.
        self.topic_changes: list[str] = []
        # Members that joined or left since the builder's last computation, or changed what it knows of them. Most
        # records of members only change their assignments.
        self.changed_members: dict[str, bool] = {}
        # The group was upgraded from a classic group during a rebalance: some partitions may be unassigned.
        self.is_unbalanced = False
        # The rebalance in progress, for the server's log. None after a restart.
        self.rebalance: Rebalance | None = None
        # At most one resolution of expressions runs at a time.
        self.regex_job_running = False
        # The earliest monotonic time of the next resolution, after one found more topics than can be stored.
        self.regex_retry_ms = 0

    # ---- queries

    def is_empty(self) -> bool:
        return not self.members

    def state(self) -> str:
        """The state as ConsumerGroupDescribe and ListGroups show it."""
        if not self.members:
            return EMPTY
        if self.epoch > self.assignment_epoch:
            return ASSIGNING
        for member in self.members.values():
            if not member.is_reconciled_to(self.assignment_epoch):
                return RECONCILING
        return STABLE_GROUP

    def is_settled(self) -> bool:
        """Whether every member has reached the target of the group's epoch, in time that is independent of the size.
        Static members that are temporarily away do not count.
        """
        size = len(self.members)
        if size == 0:
            return True
        counts = self.settled_counts
        return self.assignment_epoch == self.epoch and (
            counts.get(self.epoch, 0) + counts.get(STATIC_LEAVE_EPOCH, 0) >= size
        )

    def note_rebalance(self, epoch: int, cause: str, now_ms: int) -> None:
        """An epoch begins, and with it a rebalance unless one is in progress."""
        last = self.rebalance
        # The records of an earlier one may have been discarded: then its epoch never came.
        if last is None or self.epoch < last.epoch:
            self.rebalance = Rebalance(epoch, cause, now_ms)

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target(self, member_id: str) -> Assignment:
        target = self.targets.get(member_id)
        return {} if target is None else target

    def answer(self, member_id: str) -> AssignorAnswer:
        return self.answers.get(member_id, NO_ANSWER)

    def partition_epoch(self, topic_id: bytes, partition: int) -> int:
        """The epoch of the member that owns the partition, or NO_OWNER."""
        of_topic = self.partition_epochs.get(topic_id)
        return NO_OWNER if of_topic is None else of_topic.get(partition, NO_OWNER)

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.name_counts or topic in self.regex_topic_counts

    def subscribed_among(self, names: dict[str, int]) -> list[str]:
        """Those of `names` that have a subscriber. The time is that of walking the shorter of the two lists."""
        if len(names) <= len(self.name_counts) + len(self.regex_topic_counts):
            return [name for name in names if self.is_subscribed_to(name)]
        found = [name for name in self.name_counts if name in names]
        found += [name for name in self.regex_topic_counts if name in names and name not in self.name_counts]
        return found

    def subscribed_topics(self) -> dict[str, bool]:
        """The names of all subscribed topics, by name or by a resolved expression, as keys."""
        topics: dict[str, bool] = {}
        for name in self.name_counts:
            topics[name] = True
        for name in self.regex_topic_counts:
            topics[name] = True
        return topics

    def subscribed_topics_after(self, removed: list[ConsumerMember], added: ConsumerMember | None) -> dict[str, bool]:
        """As `subscribed_topics`, once `removed` have left and `added` has joined.

        A resolved expression ends with its last subscriber, and a new expression matches nothing yet.
        """
        topics: dict[str, bool] = dict.fromkeys(self.name_counts, True)
        gone: dict[str, int] = {}
        regexes = dict(self.regex_counts)
        for member in removed:
            for name in member.topic_names:
                increment(gone, name)
            decrement(regexes, member.regex())
        for name, count in gone.items():
            if self.name_counts.get(name, 0) <= count:
                topics.pop(name, None)
        if added is not None:
            topics.update(dict.fromkeys(added.topic_names, True))
            increment(regexes, added.regex())
        matched = self.regex_topic_counts
        for member in removed:
            regex = member.regex()
            if regex is not None and regex not in regexes and regex in self.resolved_regexes:
                regexes[regex] = 1
                if matched is self.regex_topic_counts:
                    matched = dict(matched)
                for name in self.resolved_regexes[regex].topics:
                    decrement(matched, name)
        for name in matched:
            topics[name] = True
        return topics

    def preferred_assignor(self, member: ConsumerMember | None, updated: ConsumerMember | None) -> str | None:
        """The server assignor that most members name, once `updated` has replaced `member`.

        None if no member names one. In a tie the name that sorts last wins: uniform before range, as in a broker, and
        independent of the order in which members joined.
        """
        counts = dict(self.assignor_counts)
        if member is not None:
            decrement(counts, member.server_assignor)
        if updated is not None:
            increment(counts, updated.server_assignor)
        best: str | None = None
        best_count = 0
        for name, count in counts.items():
            if count > best_count or (count == best_count and best is not None and name > best):
                best = name
                best_count = count
        return best

    def topics_of(self, member: ConsumerMember) -> list[str]:
        """The topics that a member subscribes to, including those of its resolved expression. An unresolved expression
        matches nothing.
        """
        regex = member.regex()
        if regex is None:
            return member.topic_names
        resolved = self.resolved_regexes.get(regex)
        if resolved is None or not resolved.topics:
            return member.topic_names
        if not member.topic_names:
            return resolved.topics
        return sorted(set(member.topic_names) | set(resolved.topics))

    def last_regex_refresh(self) -> tuple[int, int]:
        """Wall time and metadata version of the last resolution, the same for all expressions; -1, -1 if none."""
        if not self.resolved_regexes:
            return -1, -1
        for resolved in self.resolved_regexes.values():
            return resolved.timestamp_ms, resolved.version
        return -1, -1

    def supports_classic_protocols(self, protocol_type: str, names: list[str]) -> bool:
        """Whether a classic member with these protocols can join the classic members of this group."""
        if protocol_type != "consumer":
            return False
        if not self.members:
            return len(names) > 0
        for name in names:
            if self.classic_protocol_counts.get(name, 0) == self.classic_members:
                return True
        return False

    def is_waiting_for_release(self, member: ConsumerMember) -> bool:
        """Whether some partition of the member's target is still owned by another member."""
        for topic_id, partitions in self.target(member.member_id).items():
            assigned = member.assigned.get(topic_id)
            for partition in partitions:
                if (assigned is None or partition not in assigned) and self.partition_epoch(
                    topic_id, partition
                ) != NO_OWNER:
                    return True
        return False

    def empty_or_commit_time_ms(self, commit_timestamp_ms: int) -> int:
        """The later of an offset's commit and the time when the group became empty, if the log has that."""
        return max(commit_timestamp_ms, self.epoch_time_ms)

    def request_refresh(self) -> None:
        """Topics changed: the next heartbeat checks them."""
        self.refresh_deadline_ms = 0

    def note_topic_change(self, text: str) -> bool:
        """Remember a change of a topic until the next check; False if the list is full."""
        if len(self.topic_changes) < TOPIC_CHANGES_MAX:
            self.topic_changes.append(text)
        return len(self.topic_changes) < TOPIC_CHANGES_MAX

    # ---- changes of hard state, for replay and for groups that a handler builds

    def put_member(self, member: ConsumerMember) -> None:
        old = self.members.get(member.member_id)
        # Most changes leave the subscription as it is, and comparing is cheaper than counting long ones again.
        has_same_names = old is not None and old.topic_names == member.topic_names
        if old is not None:
            self._forget(old, not has_same_names)
            if old.instance_id != member.instance_id:
                # The member gave up its instance id.
                self._forget_instance(old)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if not has_same_names:
            for name in member.topic_names:
                increment(self.name_counts, name)
        increment(self.regex_counts, member.regex())
        increment(self.assignor_counts, member.server_assignor)
        if member.client_assignors:
            self.client_assignor_members += 1
        if member.classic is not None:
            self.classic_members += 1
            for protocol in member.classic.supported_protocols:
                increment(self.classic_protocol_counts, protocol.name)
        if is_settled(member):
            self.settled_counts[member.member_epoch] = self.settled_counts.get(member.member_epoch, 0) + 1
        self._own(member.assigned, member.member_epoch)
        self._own(member.revoking, member.member_epoch)
        if old is None or not has_same_names or not old.is_same_to_assignor(member):
            self.changed_members[member.member_id] = True

    def remove_member(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._forget(member, True)
        self._forget_instance(member)
        self.changed_members[member_id] = True

    def set_regex(self, regex: str, resolved: ResolvedRegex) -> None:
        self.remove_regex(regex)
        self.resolved_regexes[regex] = resolved
        for name in resolved.topics:
            increment(self.regex_topic_counts, name)
        self.forget_builder()

    def remove_regex(self, regex: str) -> None:
        resolved = self.resolved_regexes.pop(regex, None)
        if resolved is not None:
            for name in resolved.topics:
                decrement(self.regex_topic_counts, name)
            self.forget_builder()

    def forget_builder(self) -> None:
        """The builder's members or topics are out of date. The next computation makes a new builder."""
        self.builder = None

    def _forget(self, member: ConsumerMember, forgets_names: bool) -> None:
        """Remove a member from every index except the static members, where a replacement may hold its place."""
        if forgets_names:
            for name in member.topic_names:
                decrement(self.name_counts, name)
        decrement(self.regex_counts, member.regex())
        decrement(self.assignor_counts, member.server_assignor)
        if member.client_assignors:
            self.client_assignor_members -= 1
        if member.classic is not None:
            self.classic_members -= 1
            for protocol in member.classic.supported_protocols:
                decrement(self.classic_protocol_counts, protocol.name)
        if is_settled(member):
            left = self.settled_counts[member.member_epoch] - 1
            if left:
                self.settled_counts[member.member_epoch] = left
            else:
                del self.settled_counts[member.member_epoch]
        self._disown(member.assigned, member.member_epoch)
        self._disown(member.revoking, member.member_epoch)

    def _forget_instance(self, member: ConsumerMember) -> None:
        """Remove a member from the index of static members, unless a replacement holds its place."""
        instance_id = member.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member.member_id:
            del self.static_members[instance_id]

    def _own(self, partitions: PartitionEpochs, epoch: int) -> None:
        for topic_id, of_topic in partitions.items():
            owners = self.partition_epochs.get(topic_id)
            if owners is None:
                owners = {}
                self.partition_epochs[topic_id] = owners
            for partition in of_topic:
                # In an old log, the record of the new owner may precede the last record of the previous owner.
                if owners.get(partition, NO_OWNER - 2) < epoch:
                    owners[partition] = epoch

    def _disown(self, partitions: PartitionEpochs, epoch: int) -> None:
        for topic_id, of_topic in partitions.items():
            owners = self.partition_epochs.get(topic_id)
            if owners is None:
                continue
            for partition in of_topic:
                if owners.get(partition, NO_OWNER) == epoch:
                    del owners[partition]
            if not owners:
                del self.partition_epochs[topic_id]


def is_settled(member: ConsumerMember) -> bool:
    """Whether the member has reached the target of its epoch, or is away and keeps what it has."""
    return member.state == STABLE or member.member_epoch == STATIC_LEAVE_EPOCH


def increment(counts: dict[str, int], name: str | None) -> None:
    """Count a name, unless it is empty or None."""
    if name:
        counts[name] = counts.get(name, 0) + 1


def decrement(counts: dict[str, int], name: str | None) -> None:
    """Reduce the count of a name, and remove it at 0."""
    if name:
        count = counts.get(name, 0) - 1
        if count > 0:
            counts[name] = count
        else:
            counts.pop(name, None)


def unknown_member(group: ConsumerGroup, member_id: str) -> GroupError:
    return GroupError(errors.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}.")


def known_member(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    """The member, if there is one. Raises GroupError."""
    member = group.members.get(member_id)
    if member is None:
        raise unknown_member(group, member_id)
    return member
