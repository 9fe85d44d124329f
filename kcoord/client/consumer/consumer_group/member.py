"""One member of a consumer group: its state, its epoch, its assignment and its heartbeats. No I/O.

**Two sides.** The coordinator's side is `target`: the partitions that the member should have. The user's side is
`owned`: the partitions that the user has got and has not given up. Answers to heartbeats change only the target;
`owned` changes only in the user's calls, one step at a time: partitions that are not in the target are given up, the
coordinator hears of it at once, then the new ones are taken. So no partition belongs to two members at a time, whatever
is delayed or lost.

**Reports.** The coordinator may give a partition of the target to another member as soon as a heartbeat reports that it
is not owned. So after such a report nothing is taken until its answer is here, which has the target of that moment.

**Acknowledgement.** The coordinator moves a member on when a heartbeat reports the partitions that it owns. They are
reported when they have changed, and after each new target, also if it changes nothing here.

**What is sent.** A heartbeat has only what has changed since the last one. After an error, or without an answer, nobody
knows what has arrived, so the next one has everything.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, final

from kcoord.client.consumer.consumer_group.state import BEATING, BEFORE, COMMITTING, MemberState
from kcoord.client.consumer.options import log
from kcoord.client.errors import IllegalState
from kcoord.client.metadata import TopicPartition
from kcoord.protocol.consumer_group_heartbeat import (
    Assignment,
    ClientAssignor,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OwnedTopicPartitions,
)

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
# A static member goes away for a while: its partitions wait for it until the session timeout.
LEAVE_STATIC_EPOCH: Final = -2
# The first version in which the client makes the member id, and in which the coordinator matches patterns.
CLIENT_IDS_FROM: Final = 1
PATTERNS_FROM: Final = 1

# Partition numbers by topic id.
Target = dict[bytes, frozenset[int]]
# Topic ids by partition. A topic that was deleted and created again is another topic.
Owned = dict[TopicPartition, bytes]
# (error, version of the metadata, metadata) of a client-side assignor.
AssignorAnswer = tuple[int, int, bytes]


class AssignorOffer(NamedTuple):
    """A client-side assignor of the member, with what it tells the others."""

    name: str
    minimum_version: int
    maximum_version: int
    reason: int
    metadata_version: int
    metadata_bytes: bytes


def new_member_id() -> str:
    """A random id as Kafka's clients make it: a UUID in URL-safe base 64 that does not begin with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the member asks for. `pattern` is matched by the coordinator; without one it is empty."""

    topics: frozenset[str] = frozenset()
    pattern: str = ""
    assignors: tuple[AssignorOffer, ...] = ()


@dataclass(frozen=True, slots=True)
class Fixed:
    """What stays the same for the whole life of the consumer."""

    group_id: str
    instance_id: str | None
    rack: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None


class Plan(NamedTuple):
    """The steps to the target as far as its topics are known by name."""

    whole: Owned
    revoked: list[TopicPartition]
    added: list[TopicPartition]
    unresolved: frozenset[bytes]


@final
class Member:
    """Its methods follow the order of a life: join, heartbeats, reconciliation, the end."""

    def __init__(self, fixed: Fixed) -> None:
        self.fixed = fixed
        self.state = MemberState.UNSUBSCRIBED
        self.member_id = new_member_id()
        self.epoch = JOIN_EPOCH
        self.target: Target | None = None
        self.owned: Owned = {}
        # What a client-side assignor has sent with the assignment, until the user has got it.
        self.assignor_answer: AssignorAnswer | None = None
        # The number of the target that came with the last such answer, and that answer.
        self._last_answer: tuple[int, AssignorAnswer] | None = None
        # Whether a coordinator may know the member id.
        self.is_known = False
        # Counters: of targets, and of changes of `owned`, with their values at the last acknowledgement or heartbeat.
        self._target_number = 0
        self._acknowledged_target = 0
        self._owned_number = 0
        self._sent_owned = -1
        self._sent: Wanted | None = None
        # Whether no heartbeat was answered since the last report of the partitions that are owned.
        self.awaits_answer = False

    def enter(self, state: MemberState) -> None:
        """Raises IllegalState for a change that is not foreseen: a fault of this client."""
        if state is self.state:
            return
        if self.state not in BEFORE[state]:
            raise IllegalState(f"a member that is {self.state.value} cannot become {state.value}")
        log.debug("member %s of %s: %s -> %s", self.member_id, self.fixed.group_id, self.state.value, state.value)
        self.state = state

    @property
    def is_in_group(self) -> bool:
        """Whether the member has an epoch with which it can commit offsets."""
        return self.epoch > 0 and self.state in COMMITTING

    # --- heartbeats

    def join(self) -> None:
        """Ask to join with the next heartbeat. Nothing must be owned."""
        if self.owned:
            raise IllegalState("a member joins without partitions")
        self.enter(MemberState.JOINING)
        self._forget()
        self.epoch = JOIN_EPOCH

    def _forget(self) -> None:
        self.target = None
        self.awaits_answer = False
        self.assignor_answer = self._last_answer = None
        self._acknowledged_target = self._target_number
        self._sent = None

    def wants_beat(self, wanted: Wanted) -> bool:
        """Whether the next heartbeat has news, so that it is sent at once."""
        if self.state not in BEATING or self._sent is None:
            return False
        return self.state is MemberState.ACKNOWLEDGING or self._sent_owned != self._owned_number or self._sent != wanted

    def heartbeat(self, version: int, wanted: Wanted) -> ConsumerGroupHeartbeatRequest:
        """The next heartbeat, and the note of what it says."""
        fixed = self.fixed
        # What the coordinator knows, if that is certain.
        sent = None if self.state is MemberState.JOINING else self._sent
        request = ConsumerGroupHeartbeatRequest(fixed.group_id, self.member_id, self.epoch, fixed.instance_id)
        if version < CLIENT_IDS_FROM and not self.is_known:
            request.member_id = ""
        if sent is None:
            request.rack_id = fixed.rack
            request.rebalance_timeout_ms = fixed.rebalance_timeout_ms
            request.server_assignor = fixed.server_assignor
        if sent is None or sent.topics != wanted.topics:
            request.subscribed_topic_names = sorted(wanted.topics)
        if version >= PATTERNS_FROM and (sent is None or sent.pattern != wanted.pattern):
            # The empty pattern takes back an earlier one.
            request.subscribed_topic_regex = wanted.pattern if wanted.pattern or self.epoch else None
        if wanted.assignors if sent is None else sent.assignors != wanted.assignors:
            request.client_assignors = [ClientAssignor(*offer) for offer in wanted.assignors]
        if sent is None or self._sent_owned != self._owned_number or self.state is MemberState.ACKNOWLEDGING:
            request.topic_partitions = _by_topic(self.owned)
            self.awaits_answer = True
        self._sent = wanted
        self._sent_owned = self._owned_number
        if version >= CLIENT_IDS_FROM:
            self.is_known = True
        if self.state is MemberState.ACKNOWLEDGING:
            self.enter(MemberState.STABLE if self._is_reconciled() else MemberState.RECONCILING)
        return request

    def leave(self) -> ConsumerGroupHeartbeatRequest:
        """The last heartbeat."""
        fixed = self.fixed
        epoch = LEAVE_EPOCH if fixed.instance_id is None else LEAVE_STATIC_EPOCH
        return ConsumerGroupHeartbeatRequest(fixed.group_id, self.member_id, epoch, fixed.instance_id)

    def failed(self) -> None:
        """The last heartbeat has no answer, or an error: the next one says everything."""
        self._sent = None

    def answered(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        """The coordinator has taken a heartbeat."""
        if self.state not in BEATING:
            return
        if answer.member_id:
            self.member_id = answer.member_id
        self.is_known = True
        self.awaits_answer = False
        self.epoch = answer.member_epoch
        if answer.assignment is not None and self.state is not MemberState.PREPARE_LEAVING:
            self._take(answer.assignment)

    def _take(self, assignment: Assignment) -> None:
        target: Target = {}
        for topic in assignment.topic_partitions:
            if topic.partitions:
                target[topic.topic_id] = target.get(topic.topic_id, frozenset()) | frozenset(topic.partitions)
        if target != self.target:
            self.target = target
            self._target_number += 1
        if self._sent is not None and self._sent.assignors:
            answer = (assignment.error, assignment.metadata_version, assignment.metadata_bytes)
            if self._last_answer != (self._target_number, answer):
                self._last_answer = (self._target_number, answer)
                self.assignor_answer = answer
        if not self._is_reconciled():
            if self.state is not MemberState.ACKNOWLEDGING:
                self.enter(MemberState.RECONCILING)
        elif self.state in (MemberState.JOINING, MemberState.RECONCILING):
            self.enter(MemberState.STABLE)

    def fenced(self) -> None:
        """The coordinator does not count the member any more."""
        self._forget()
        self.epoch = JOIN_EPOCH
        if self.state is MemberState.PREPARE_LEAVING:
            self.enter(MemberState.UNSUBSCRIBED)
        elif self.state in BEATING:
            self.enter(MemberState.FENCED)

    def fail(self) -> None:
        """An error that only the user can mend."""
        self._forget()
        self.epoch = JOIN_EPOCH
        if self.state in BEATING:
            self.enter(MemberState.FATAL)

    def end(self, *, is_stale: bool) -> None:
        """The member has left."""
        self._forget()
        self.epoch = JOIN_EPOCH
        if self.state in BEATING:
            self.enter(MemberState.PREPARE_LEAVING)
            self.enter(MemberState.LEAVING)
        self.enter(MemberState.STALE if is_stale else MemberState.UNSUBSCRIBED)

    # --- reconciliation, in the user's calls

    def _is_reconciled(self) -> bool:
        if self.target is None:
            return True
        if self._acknowledged_target != self._target_number:
            return False
        owned: dict[bytes, set[int]] = {}
        for partition, topic_id in self.owned.items():
            owned.setdefault(topic_id, set()).add(partition.partition)
        return owned == self.target

    def topic_names(self, known: Mapping[bytes, str]) -> dict[bytes, str]:
        """The names of the topics of the target. Those of owned partitions are known without metadata."""
        names = {topic_id: partition.topic for partition, topic_id in self.owned.items()}
        for topic_id in self.target or ():
            name = known.get(topic_id)
            if name is not None:
                # Last in the order, because what the metadata says is newer.
                names.pop(topic_id, None)
                names[topic_id] = name
        return names

    def plan(self, known: Mapping[bytes, str]) -> Plan:
        """What is left to do. `known` has the names of topics by their ids."""
        target = self.target if self.target is not None else {}
        names = self.topic_names(known)
        whole: Owned = {}
        for topic_id, name in names.items():
            for number in target.get(topic_id, ()):
                whole[TopicPartition(name, number)] = topic_id
        revoked = sorted(partition for partition, topic_id in self.owned.items() if whole.get(partition) != topic_id)
        added = sorted(partition for partition, topic_id in whole.items() if self.owned.get(partition) != topic_id)
        return Plan(whole, revoked, added, frozenset(target.keys() - names.keys()))

    @property
    def has_new_target(self) -> bool:
        """Whether there is a target that was not acknowledged yet."""
        return self.target is not None and self._acknowledged_target != self._target_number

    def give_up(self, partitions: Collection[TopicPartition]) -> None:
        """The user has given up partitions: the next heartbeat says so."""
        for partition in partitions:
            self.owned.pop(partition, None)
        self._owned_number += 1

    def own(self, whole: Owned) -> None:
        """The user has these partitions and no others."""
        if whole != self.owned:
            self.owned = dict(whole)
            self._owned_number += 1

    def acknowledge(self) -> None:
        """The target is adopted, as far as its topics are known."""
        if self.state is MemberState.RECONCILING:
            self._acknowledged_target = self._target_number
            self.enter(MemberState.ACKNOWLEDGING)


def _by_topic(owned: Owned) -> list[OwnedTopicPartitions]:
    topics: dict[bytes, list[int]] = {}
    for partition in sorted(owned):
        topics.setdefault(owned[partition], []).append(partition.partition)
    return [OwnedTopicPartitions(topic_id, numbers) for topic_id, numbers in topics.items()]
