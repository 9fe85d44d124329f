"""Conversations about consumer groups that nobody thought of: members that do anything in any order.

What is tried next depends on the seed and on the answers so far, so two servers that answer the same are asked the same.
Members may be static, use either protocol, repeat themselves, tell wrong epochs and own what they should not. Assignments
are to be made by `range`, which leaves no choice; a group must not become classic with members, since JoinGroup would
then wait for others (SETTINGS sees to both).
"""

from __future__ import annotations

import random
from typing import Any

from tests.harness.broker_scripts_consumer import COMMON
from tests.harness.consumer_session import ConsumerSession
from tests.harness.consumer_steps import ClassicMember, Member, delete_topic, described, grow_topic, new_topic
from tests.harness.script_steps import commit_request, wait_for_coordinator

SETTINGS = {**COMMON, "group.consumer.assignors": "range", "group.consumer.migration.policy": "upgrade"}
STEPS = 80
NAMES = "ABCD"
CLASSIC_NAMES = "KL"
INSTANCES = (None, None, None, "one", "two")


class RandomGroup:
    """A group, its topics, and those who talk to it."""

    def __init__(self, s: ConsumerSession, seed: int) -> None:
        self.s = s
        self.rng = random.Random(seed)
        self.group = f"random-{seed}"
        self.topics = [f"random-{seed}-{number}" for number in range(3)]
        self.sizes = dict.fromkeys(self.topics, 0)
        self.members = [Member(s, self.group, name) for name in NAMES]
        self.classic = [ClassicMember(s, self.group, name, [], member_id=name) for name in CLASSIC_NAMES]
        self.before: dict[str, list[dict[str, Any]]] = {}

    def run(self, steps: int) -> None:
        wait_for_coordinator(self.s)
        for topic in self.topics[:2]:
            self.make(topic)
        actions = [
            (self.join, 12),
            (self.owns, 30),
            (self.beat, 14),
            (self.odd_epoch, 8),
            (self.leave, 5),
            (self.commit, 8),
            (self.classic_join, 7),
            (self.classic_beat, 8),
            (self.classic_leave, 2),
            (self.describe, 6),
            (self.change_topics, 1),
        ]
        functions = [action for action, _ in actions]
        weights = [weight for _, weight in actions]
        for _ in range(steps):
            self.rng.choices(functions, weights)[0]()
        described(self.s, self.group, step="in the end")

    # ---- choices

    def make(self, topic: str) -> None:
        self.sizes[topic] = self.rng.randint(1, 5)
        new_topic(self.s, topic, self.sizes[topic])

    def member(self) -> Member:
        """Mostly one that is in the group, as far as it knows."""
        inside = [member for member in self.members if member.epoch > 0]
        return self.rng.choice(inside if inside and self.rng.random() < 0.95 else self.members)

    def some_topics(self, at_least: int = 0) -> list[str]:
        return self.rng.sample(self.topics, max(self.rng.choice((0, 1, 1, 2, 2, 3)), at_least))

    def partitions_of(self, member: Member) -> list[dict[str, Any]] | None:
        """What the member says it owns: what it was given, what it had before, less, nothing, or not a word."""
        choice = self.rng.randrange(8)
        if choice < 4:
            return member.assigned
        if choice == 4:
            return self.before.get(member.name, [])
        if choice == 5:
            # A broker lists the partitions of a topic in the order of a hash set.
            return [{**item, "partitions": sorted(item["partitions"])[:1]} for item in member.assigned]
        return [] if choice == 6 else None

    def note_assigned(self, member: Member, before: list[dict[str, Any]]) -> None:
        if member.assigned is not before:
            self.before[member.name] = before

    # ---- members of the consumer protocol

    def join(self) -> None:
        member = self.rng.choice(self.members)
        # A broker takes all from a member that becomes static while it waits for partitions, until the next assignment.
        if member.epoch in (0, -1) and self.rng.random() < 0.4:
            member.instance = self.rng.choice(INSTANCES)
        before = member.assigned
        # A broker that is joined by a member without topics may take all others for such, too.
        member.join(self.some_topics(1), rebalanceTimeoutMs=self.rng.choice((30000, 30000, 20000)))
        self.note_assigned(member, before)

    def owns(self) -> None:
        member = self.member()
        before = member.assigned
        member.beat("tells what it owns", topicPartitions=member.assigned)
        self.note_assigned(member, before)

    def beat(self) -> None:
        member = self.member()
        fields: dict[str, Any] = {"topicPartitions": self.partitions_of(member)}
        if self.rng.random() < 0.3:
            fields["subscribedTopicNames"] = self.some_topics()
        if self.rng.random() < 0.2:
            fields["rebalanceTimeoutMs"] = 30000
        if self.rng.random() < 0.1:
            fields["rackId"] = self.rng.choice(("r1", "r2"))
        before = member.assigned
        member.beat("says something", **fields)
        self.note_assigned(member, before)

    def odd_epoch(self) -> None:
        member = self.member()
        epoch = max(member.epoch + self.rng.choice((-2, -1, -1, -1, 1)), 1)
        fields: dict[str, Any] = {"topicPartitions": self.partitions_of(member)}
        if self.rng.random() < 0.2:
            fields["instanceId"] = self.rng.choice(INSTANCES)
        before, known = member.assigned, member.epoch
        answer = member.beat("says another epoch", memberEpoch=epoch, **fields)
        if answer["errorCode"]:
            member.epoch = known
        self.note_assigned(member, before)

    def leave(self) -> None:
        member = self.member()
        if member.instance is not None and self.rng.random() < 0.6:
            known = member.epoch
            if member.leave("leaves for a while", epoch=-2)["errorCode"] == 0 and self.rng.random() < 0.5:
                member.epoch = known
            return
        known = member.epoch
        member.leave()
        if self.rng.random() < 0.3:
            member.epoch = known

    def commit(self) -> None:
        members: list[Member | ClassicMember] = [*self.members, *self.classic]
        member = self.rng.choice(members)
        known = member.epoch if isinstance(member, Member) else member.generation
        epoch = known + self.rng.choice((0, 0, 0, -1, -1, -2, 1))
        topic = self.rng.choice(self.topics)
        parts = self.rng.sample(range(6), self.rng.choice((1, 1, 2)))
        listed = [{"partitionIndex": p, "committedOffset": self.rng.randrange(100)} for p in parts]
        request = commit_request(self.group, topic, topics=[{"name": topic, "partitions": listed}])
        request.update({"generationIdOrMemberEpoch": epoch, "memberId": member.id})
        self.s.call(f"{member.name} commits", "OffsetCommit", self.rng.choice((8, 9, 9)), request)

    # ---- members of the classic protocol

    def member_types(self) -> list[int]:
        with self.s.unrecorded():
            group = described(self.s, self.group)["groups"][0]
        return [member["memberType"] for member in group["members"]]

    def classic_join(self) -> None:
        # A broker that refuses to let a member with an id of its own into an empty group forgets the group.
        if not self.member_types():
            return
        member = self.rng.choice(self.classic)
        if not member.topics or self.rng.random() < 0.5:
            member.topics = self.some_topics(1)
        if self.rng.random() < 0.5:
            member.owned = {topic: [0] for topic in member.topics if self.rng.random() < 0.5}
        if self.rng.random() < 0.2:
            member.instance = self.rng.choice(INSTANCES)
        known = member.id
        member.join()
        member.id = known
        member.sync()

    def classic_beat(self) -> None:
        # With classic members alone, ours looks after the group and a broker does not.
        if 1 not in self.member_types():
            return
        member = self.rng.choice(self.classic)
        if member.beat()["errorCode"] == 27 and self.rng.random() < 0.7:
            member.owned = {}
            member.join("joins again")
            member.sync()

    def classic_leave(self) -> None:
        self.rng.choice(self.classic).leave()

    # ---- others

    def describe(self) -> None:
        described(self.s, self.group, version=self.rng.choice((0, 1)))

    def change_topics(self) -> None:
        topic = self.rng.choice(self.topics)
        if not self.sizes[topic]:
            self.make(topic)
        elif self.rng.random() < 0.3:
            self.sizes[topic] = 0
            delete_topic(self.s, topic)
        else:
            self.sizes[topic] += 1
            grow_topic(self.s, topic, self.sizes[topic])


def run(seed: int, session: ConsumerSession, steps: int = STEPS) -> list[dict[str, Any]]:
    """Runs the conversation of a seed and returns its normalised steps."""
    try:
        RandomGroup(session, seed).run(steps)
    finally:
        session.close()
    return session.steps()
