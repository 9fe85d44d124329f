"""One consumer group of KIP-848: what its records say, indexes over that, and the little that is not in the log.

Everything down to `Soft part` is hard state and is changed by `consumer_replay` alone, through the methods of the
last section; a handler that needs a group "as it will be" (an upgrade from classic) builds one of its own with the
same methods and writes records that say the same. The group's state, its subscriptions and who owns what are derived
from members, so they cannot disagree with them.

A partition has at most one owner at any time: `partition_epochs` holds the epoch of the member that has it, be it
assigned or on its way out, and nobody else is given it while it stands there.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.assignors.spec import Assignment
from kcoord.core.assignors.target_builder import TargetBuilder
from kcoord.core.client_assignors.computation import ClientComputation
from kcoord.core.groups.cause import NO_TIME
from kcoord.core.groups.members import NO_ANSWER, AssignorAnswer, ConsumerMember, PartitionEpochs
from kcoord.core.outcome import LogId

# The states, spelled as describe and list show them.
EMPTY: Final = "Empty"
ASSIGNING: Final = "Assigning"
RECONCILING: Final = "Reconciling"
STABLE_GROUP: Final = "Stable"

NO_ASSIGNMENT_EPOCH: Final = -1
NO_OWNER: Final = -1


@final
class ResolvedRegex:
    """The topics that a regular expression matched (sorted), when, and in which version of the metadata."""

    def __init__(self, topics: list[str], version: int, timestamp_ms: int) -> None:
        self.topics = topics
        self.version = version
        self.timestamp_ms = timestamp_ms


# How many changes of topics a cause names at most.
TOPIC_CHANGES_MAX: Final = 10


@final
class ConsumerGroup:
    def __init__(self, group_id: str, log: LogId) -> None:
        self.group_id = group_id
        self.log = log
        # The log's offset after the last record that concerns this group.
        self.end_offset = 0

        # Records 3, 5, 6, 7, 8 and 16.
        # Kafka begins at 1 with an assignment for it: nobody has anything.
        self.epoch = 1
        # The timestamp of the epoch's record, NO_TIME where it is not known. No epoch follows the one that the last
        # member's leaving began, so for an empty group this is since when it is empty.
        self.epoch_time_ms = NO_TIME
        self.metadata_hash = 0
        self.members: dict[str, ConsumerMember] = {}
        self.assignment_epoch = 1
        self.assignment_timestamp_ms = 0
        self.targets: dict[str, Assignment] = {}
        # What a client-side assignor said with its targets; for members to whom it said nothing there is none.
        self.answers: dict[str, AssignorAnswer] = {}
        self.resolved_regexes: dict[str, ResolvedRegex] = {}
        # How many members there were, and whether they had to be assigned anew, when the group's tombstones began.
        self.last_size = 0
        self.last_was_behind = False
        # Brokers before 4.1 kept topics of the group in record 4; the next change of epoch removes it.
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
        # Members that could do with an assignor of their own.
        self.client_assignor_members = 0
        self.classic_protocol_counts: dict[str, int] = {}

        # Soft part. Losing it costs work, never a promise.
        # When the topics are looked at again (monotonic), unless something asks for it before.
        self.refresh_deadline_ms = 0
        self.builder: TargetBuilder | None = None
        # Who computed last; "" is not known.
        self.builder_assignor = ""
        # A member that was asked for the next assignment.
        self.computation: ClientComputation | None = None
        # What happened to topics of the group since it looked at them, for people.
        self.topic_changes: list[str] = []
        # Members that changed since the builder computed last.
        self.changed_members: dict[str, bool] = {}
        # It was made of a classic group that rebalanced: some partitions may be meant for nobody.
        self.is_unbalanced = False
        # One resolution of expressions at a time.
        self.regex_job_running = False
        # The next one not before then (monotonic), since the last one found more than can be stored.
        self.regex_retry_ms = 0

    # ---- questions

    def is_empty(self) -> bool:
        return not self.members

    def state(self) -> str:
        """As describe and list show it."""
        if not self.members:
            return EMPTY
        if self.epoch > self.assignment_epoch:
            return ASSIGNING
        for member in self.members.values():
            if not member.is_reconciled_to(self.assignment_epoch):
                return RECONCILING
        return STABLE_GROUP

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target(self, member_id: str) -> Assignment:
        target = self.targets.get(member_id)
        return {} if target is None else target

    def answer(self, member_id: str) -> AssignorAnswer:
        return self.answers.get(member_id, NO_ANSWER)

    def partition_epoch(self, topic_id: bytes, partition: int) -> int:
        """The epoch of the member that has it, or NO_OWNER."""
        of_topic = self.partition_epochs.get(topic_id)
        return NO_OWNER if of_topic is None else of_topic.get(partition, NO_OWNER)

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.name_counts or topic in self.regex_topic_counts

    def subscribed_among(self, names: dict[str, int]) -> list[str]:
        """Those of `names` that somebody subscribes to. It takes as long as the shorter of the two lists."""
        if len(names) <= len(self.name_counts) + len(self.regex_topic_counts):
            return [name for name in names if self.is_subscribed_to(name)]
        found = [name for name in self.name_counts if name in names]
        found += [name for name in self.regex_topic_counts if name in names and name not in self.name_counts]
        return found

    def subscribed_topics(self) -> dict[str, bool]:
        """Names of all topics that somebody subscribes to, by name or through a resolved expression, as keys."""
        topics: dict[str, bool] = {}
        for name in self.name_counts:
            topics[name] = True
        for name in self.regex_topic_counts:
            topics[name] = True
        return topics

    def subscribed_topics_after(
        self, removed: list[ConsumerMember], added: ConsumerMember | None
    ) -> dict[str, bool]:
        """As subscribed_topics, once `removed` are gone and `added` is there.

        An expression goes with the last member that subscribes with it, and a new one matches nothing yet.
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
        """The server assignor most members ask for, once `updated` stands in the place of `member`.

        None if nobody asks. Of equals the name that sorts last: like brokers, uniform before range, and whatever
        the order in which members came.
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
        """Names a member subscribes to, its resolved expression included; unresolved ones match nothing."""
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
        """(wall time, metadata version) of the last resolution, which is that of all expressions; -1, -1 for none."""
        if not self.resolved_regexes:
            return -1, -1
        for resolved in self.resolved_regexes.values():
            return resolved.timestamp_ms, resolved.version
        return -1, -1

    def supports_classic_protocols(self, protocol_type: str, names: list[str]) -> bool:
        """Whether a member of the classic protocol with these protocols can be among the classic ones here."""
        if protocol_type != "consumer":
            return False
        if not self.members:
            return len(names) > 0
        for name in names:
            if self.classic_protocol_counts.get(name, 0) == self.classic_members:
                return True
        return False

    def is_waiting_for_release(self, member: ConsumerMember) -> bool:
        """Whether part of the member's target is still with somebody else."""
        for topic_id, partitions in self.target(member.member_id).items():
            assigned = member.assigned.get(topic_id)
            for partition in partitions:
                if (assigned is None or partition not in assigned) and self.partition_epoch(
                    topic_id, partition
                ) != NO_OWNER:
                    return True
        return False

    def empty_or_commit_time_ms(self, commit_timestamp_ms: int) -> int:
        """The later one of an offset's commit and when the group became empty, where the log says that."""
        return max(commit_timestamp_ms, self.epoch_time_ms)

    def request_refresh(self) -> None:
        """Topics changed: the next heartbeat looks at them."""
        self.refresh_deadline_ms = 0

    def note_topic_change(self, text: str) -> bool:
        """Remember what happened to a topic until the group looks; whether there is room for more."""
        if len(self.topic_changes) < TOPIC_CHANGES_MAX:
            self.topic_changes.append(text)
        return len(self.topic_changes) < TOPIC_CHANGES_MAX

    # ---- changes of the hard part, for replay and for groups that are being made

    def put_member(self, member: ConsumerMember) -> None:
        old = self.members.get(member.member_id)
        # Most changes leave the subscription as it is, which may be long.
        has_same_names = old is not None and old.topic_names == member.topic_names
        if old is not None:
            self._forget(old, not has_same_names)
            if old.instance_id != member.instance_id:
                # An instance id that it no longer has is free.
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
        self._own(member.assigned, member.member_epoch)
        self._own(member.revoking, member.member_epoch)
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
        """What it knows of members or topics is no longer true; the next computation makes a new one."""
        self.builder = None

    def _forget(self, member: ConsumerMember, forgets_names: bool) -> None:
        """Take a member out of every index but the static ones, which a successor may have taken over."""
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
        self._disown(member.assigned, member.member_epoch)
        self._disown(member.revoking, member.member_epoch)

    def _forget_instance(self, member: ConsumerMember) -> None:
        """Take a member out of the index of static members, unless a successor has taken its place there."""
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
                # While an old log is read, the new owner's record may come before the old one's last.
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


def increment(counts: dict[str, int], name: str | None) -> None:
    """Count a name; none and the empty one are not counted."""
    if name:
        counts[name] = counts.get(name, 0) + 1


def decrement(counts: dict[str, int], name: str | None) -> None:
    """Uncount a name; at 0 it goes."""
    if name:
        count = counts.get(name, 0) - 1
        if count > 0:
            counts[name] = count
        else:
            counts.pop(name, None)
