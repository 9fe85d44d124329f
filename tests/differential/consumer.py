"""Random histories of consumer groups (KIP-848): old and later epochs, partitions owned or not, static members.

Assignments are made by `range`, which leaves no choice. tests/harness/consumer_random.py has members of both protocols,
and compares what the servers store; docs/kips.md lists the differences that both leave out.
"""

from __future__ import annotations

import random
import time
from typing import Any

from tests.differential.sequence import Kind, Step, weighted
from tests.differential.talk import Talk
from tests.harness.script_steps import create_topic, wait_for_coordinator

MEMBERS = "ABCD"
# In version 0 the server makes the ids, and `range` gives partitions in their order.
VERSION = 1
TOPICS = ("x", "y", "z")
INSTANCES = (None, "one", "two")
EPOCHS = {0: 86, -1: 6, -2: 3, 1: 3, 50: 2}
OWNED = {"assigned": 50, "before": 8, "part": 8, "nothing": 8, "unsaid": 26}
# A broker tells its coordinator of groups about topics a moment after it answers for them.
TOPICS_S = 0.3
RESOLVED_S = 0.02


def sequence(rng: random.Random) -> list[Step]:
    length = rng.randint(12, 60)
    static = rng.random() < 0.5
    steps = [joining(rng, 0, static), joining(rng, 1, static)]
    while len(steps) < length:
        steps.append(one_step(rng, static))
    return steps


def joining(rng: random.Random, who: int, static: bool) -> Step:
    args = {
        "topics": rng.sample(TOPICS, rng.choice((1, 2, 2, 3))),
        "instance": rng.choice(INSTANCES) if static else None,
    }
    return Step("join", {"who": who, **args})


def one_step(rng: random.Random, static: bool) -> Step:
    action = weighted(rng, {
        "join": 14, "beat": 40, "leave": 7, "commit": 9, "fetch": 8, "describe": 5, "listed": 3, "delete_group": 2,
        "delete_offsets": 2, "grow": 1, "delete_topic": 1, "everyone": 10,
    })  # fmt: skip
    who = rng.randrange(len(MEMBERS))
    if action == "join":
        return joining(rng, who, static)
    if action == "beat":
        topics = rng.sample(TOPICS, rng.choice((1, 2, 3))) if rng.random() < 0.15 else None
        args = {"epoch": weighted(rng, EPOCHS), "owned": weighted(rng, OWNED), "topics": topics}
        return Step(action, {"who": who, **args, "stranger": rng.random() < 0.03})
    if action == "leave":
        return Step(
            action, {"who": who, "epoch": rng.choice((-1, -1, -2)) if static else weighted(rng, {-1: 9, -2: 1})}
        )
    if action == "commit":
        args = {"epoch": weighted(rng, EPOCHS), "member": weighted(rng, {"it": 85, "": 7, "nobody": 8})}
        return Step(action, {"who": who, **args, "version": rng.choice((6, 8, 9, 9)), "offset": rng.randrange(90)})
    if action == "fetch":
        args = {"epoch": weighted(rng, EPOCHS), "member": weighted(rng, {"it": 60, "": 30, "nobody": 10})}
        return Step(action, {"who": who, **args, "version": rng.choice((8, 9, 9)), "everything": rng.random() < 0.4})
    if action == "describe":
        return Step(action, {"version": rng.choice((0, 1)), "classic": rng.random() < 0.3})
    if action == "listed":
        args = {"states": rng.choice(([], ["Stable"], ["Empty"], ["assigning"], ["Reconciling"]))}
        return Step(action, {**args, "types": rng.choice(([], ["consumer"], ["Classic"], ["nonsense"]))})
    if action in ("grow", "delete_topic"):
        return Step(action, {"topic": rng.choice(TOPICS)})
    return Step(action, {})


class Member:
    def __init__(self, name: str) -> None:
        self.id = name
        self.name = name
        self.instance: str | None = None
        self.epoch = 0
        self.assigned: list[dict[str, Any]] = []
        self.before: list[dict[str, Any]] = []

    def learn(self, answer: dict[str, Any]) -> None:
        if answer.get("errorCode") != 0:
            return
        self.id, self.epoch = answer["memberId"] or self.id, answer["memberEpoch"]
        if answer["assignment"] is not None:
            self.before, self.assigned = self.assigned, answer["assignment"]["topicPartitions"]


class Consumers:
    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.group = f"{talk.prefix}-g"
        self.members = [Member(name) for name in MEMBERS]
        self.sizes = dict.fromkeys(TOPICS, 0)
        # Whether a member subscribed by an expression, which a server resolves after it has answered.
        self.has_regexes = False

    def prepare(self) -> None:
        with self.talk.unrecorded():
            wait_for_coordinator(self.talk)
            for number, topic in enumerate(TOPICS):
                self.sizes[topic] = number + 2
                create_topic(self.talk, self.name(topic), self.sizes[topic])
        time.sleep(TOPICS_S * self.talk.patience)

    def finish(self) -> None:
        self.describe(1, False)
        self.everyone()
        self.describe(1, False)
        self.listed([], [])
        self.fetch(0, 0, "", 8, True)
        with self.talk.unrecorded():
            names = [self.name(topic) for topic in TOPICS]
            self.talk.ask("DeleteTopics", 5, {"topicNames": names, "timeoutMs": 5000})

    def name(self, topic: str) -> str:
        return f"{self.talk.prefix}-{topic}"

    # ---- members

    def heartbeat(self, member: Member, epoch: int, **fields: Any) -> None:
        request = {"groupId": self.group, "memberId": member.id, "memberEpoch": epoch, **fields}
        request.setdefault("instanceId", member.instance)
        answer = self.talk.ask("ConsumerGroupHeartbeat", VERSION, request, on=member.name)
        if request["memberId"] == member.id:
            member.learn(answer)
        self.has_regexes = self.has_regexes or bool(request.get("subscribedTopicRegex"))
        self.resolved()

    def resolved(self) -> None:
        """Until expressions that the last request has brought, or made due, are resolved."""
        if self.has_regexes:
            time.sleep(RESOLVED_S * self.talk.patience)
            self.talk.quiet()

    def is_assigned(self) -> bool:
        """Whether the group's target is of its last epoch, after heartbeats if they are needed.

        If it is not, a broker that a member joins without topics may take all others for such, too (docs/kips.md).
        """
        for member in [None, *self.members]:
            if member is not None and member.epoch > 0:
                self.heartbeat(member, member.epoch)
            with self.talk.unrecorded():
                request = {"groupIds": [self.group]}
                group = self.talk.ask("ConsumerGroupDescribe", 1, request, on="wait")["groups"][0]
            if group["errorCode"] or group["assignmentEpoch"] == group["groupEpoch"]:
                return True
        self.talk.note("no member makes a target")
        return False

    def join(self, who: int, topics: list[str], instance: str | None) -> None:
        member = self.members[who]
        if member.epoch in (0, -1):
            # A broker takes all from a member that becomes static while it waits for partitions (docs/kips.md).
            member.instance = instance
        names = [self.name(topic) for topic in topics]
        self.heartbeat(member, 0, rebalanceTimeoutMs=60000, topicPartitions=[], subscribedTopicNames=names)

    def owned(self, member: Member, which: str) -> list[dict[str, Any]] | None:
        if which == "part":
            return [{**one, "partitions": sorted(one["partitions"])[:1]} for one in member.assigned]
        known = {"assigned": member.assigned, "before": member.before, "nothing": []}
        return known.get(which)

    def beat(self, who: int, epoch: int, owned: str, topics: list[str] | None, stranger: bool) -> None:
        member = self.members[who]
        fields: dict[str, Any] = {"topicPartitions": self.owned(member, owned)}
        if topics is not None:
            fields["subscribedTopicNames"] = [self.name(topic) for topic in topics]
        if stranger:
            fields["memberId"] = "nobody"
        told = member.epoch + epoch
        self.heartbeat(member, told if told > 0 else member.epoch or 1, **fields)

    def everyone(self) -> None:
        """All members in the group heartbeat in turn, twice, with what they own."""
        for member in self.members * 2:
            if member.epoch > 0:
                self.heartbeat(member, member.epoch, topicPartitions=member.assigned)
            else:
                self.talk.note("is no member")

    def leave(self, who: int, epoch: int) -> None:
        self.heartbeat(self.members[who], epoch)

    # ---- offsets

    def who(self, who: int, member: str) -> str:
        return self.members[who].id if member == "it" else member

    def commit(self, who: int, epoch: int, member: str, version: int, offset: int) -> None:
        part = {"partitionIndex": offset % 3, "committedOffset": offset, "committedMetadata": ""}
        told = self.members[who].epoch + epoch if member else -1
        self.talk.ask("OffsetCommit", version, {
            "groupId": self.group, "generationIdOrMemberEpoch": told, "memberId": self.who(who, member),
            "topics": [{"name": self.name("x"), "partitions": [part]}],
        })  # fmt: skip

    def fetch(self, who: int, epoch: int, member: str, version: int, everything: bool) -> None:
        topics = None if everything else [{"name": self.name("x"), "partitionIndexes": [0, 1, 9]}]
        group: dict[str, Any] = {"groupId": self.group, "topics": topics}
        if version >= 9 and member:
            group |= {"memberId": self.who(who, member), "memberEpoch": self.members[who].epoch + epoch}
        self.talk.ask("OffsetFetch", version, {"groups": [group]})

    def delete_offsets(self) -> None:
        topics = [{"name": self.name(topic), "partitions": [{"partitionIndex": 0}]} for topic in TOPICS]
        self.talk.ask("OffsetDelete", 0, {"groupId": self.group, "topics": topics})

    # ---- others

    def describe(self, version: int, classic: bool) -> None:
        if classic:
            self.talk.ask("DescribeGroups", 6 * version, {"groups": [self.group]})
        else:
            self.talk.ask("ConsumerGroupDescribe", version, {"groupIds": [self.group]})

    def listed(self, states: list[str], types: list[str]) -> None:
        answer = self.talk.ask("ListGroups", 5, {"statesFilter": states, "typesFilter": types})
        answer["groups"] = [one for one in answer["groups"] if one["groupId"] == self.group]

    def delete_group(self) -> None:
        self.talk.ask("DeleteGroups", 2, {"groupsNames": [self.group]})

    def grow(self, topic: str) -> None:
        self.sizes[topic] += 1
        one = {"name": self.name(topic), "count": self.sizes[topic], "assignments": None}
        self.talk.ask("CreatePartitions", 3, {"topics": [one], "timeoutMs": 5000})
        time.sleep(TOPICS_S * self.talk.patience)

    def delete_topic(self, topic: str) -> None:
        self.talk.ask("DeleteTopics", 5, {"topicNames": [self.name(topic)], "timeoutMs": 5000})
        time.sleep(TOPICS_S * self.talk.patience)


KIND = Kind("consumer", sequence, Consumers)
