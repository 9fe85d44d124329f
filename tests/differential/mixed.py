"""Random histories of groups whose members speak both protocols: upgrades, downgrades, and what happens between them.

Consumers A to D speak the new protocol (KIP-848), clients K to M the classic one. D is the same static member as K, so
each of them replaces the other. `range` orders members by instance id, then by member id: only M gets ids from the
server, and those of consumers come before any of them.

Left out is what docs/kips.md lists as different, such as an upgrade while a downgraded group still rebalances.
"""

from __future__ import annotations

import random
from typing import Any

from tests.differential import consumer
from tests.differential.consumer import TOPICS, Consumers
from tests.differential.groups import MEMBER_ID_REQUIRED, STATES, Groups, Member
from tests.differential.sequence import Kind, Step, weighted
from tests.differential.talk import Talk
from tests.harness.consumer_session import classic_assignment
from tests.harness.consumer_steps import Partitions, assignment, subscription
from tests.harness.script_steps import b64

UNKNOWN_MEMBER_ID = 25
REBALANCE_IN_PROGRESS = 27
CLIENTS = "KLM"
# The dynamic one has no instance id.
INSTANCES = {"K": "one", "L": "two", "M": None, "A": None, "B": None, "C": "three", "D": "one"}
IDS = {"now": 88, "before": 5, "stranger": 3, "none": 4}
GENERATIONS = {0: 84, -1: 10, 1: 4, -9: 2}
PROTOCOLS = (*(["range"],) * 8, *(["range", "rr"],) * 3, *(["rr", "range"],) * 3, ["rr"])
OWNED = {"assigned": 70, "before": 10, "part": 10, "nothing": 10}
QUIET = ("Stable", "Empty", "Dead")
# Rounds in which members do what they are told, until nobody is told anything.
ROUNDS = 6


def sequence(rng: random.Random) -> list[Step]:
    """A group that begins with either protocol, and mostly gets the other one soon."""
    length = rng.randint(12, 50)
    steps = [some_join(rng, rng.random() < 0.5), Step("follow"), some_join(rng, rng.random() < 0.5), Step("follow")]
    while len(steps) < length:
        steps.append(one_step(rng))
    return steps


def some_join(rng: random.Random, is_new: bool) -> Step:
    if is_new:
        topics = rng.sample(TOPICS, rng.choice((1, 2, 2, 3)))
        return Step("new_join", {"who": rng.randrange(4), "topics": topics, "regex": rng.random() < 0.15})
    return classic_join(rng, "enter")


def classic_join(rng: random.Random, action: str) -> Step:
    return Step(action, {
        "who": rng.randrange(3), "ids": weighted(rng, IDS), "topics": rng.sample(TOPICS, rng.choice((1, 2, 2, 3))),
        "owned": weighted(rng, OWNED), "protocols": rng.choice(PROTOCOLS), "metadata": rng.choice((0, 1, 1, 2, 3)),
        "version": rng.choice((2, 5, 7, 9, 9, 9)),
    })  # fmt: skip


def one_step(rng: random.Random) -> Step:
    action = weighted(rng, {
        "new_join": 9, "enter": 10, "rejoin": 12, "sync": 12, "heartbeat": 9, "leave": 5, "leave_many": 2, "commit": 5,
        "fetch": 3, "follow": 12, "new": 26, "adopt": 1, "groups_listed": 3, "described": 4,
    })  # fmt: skip
    if action in ("new_join", "enter"):
        return some_join(rng, action == "new_join")
    who = rng.randrange(3)
    member = {"who": who, "ids": weighted(rng, IDS)}
    if action == "rejoin":
        return classic_join(rng, action)
    if action == "adopt":
        return Step(action, {"topics": rng.sample(TOPICS, rng.choice((1, 2, 3)))})
    if action == "sync":
        args = {"generation": weighted(rng, GENERATIONS), "version": rng.choice((2, 3, 5, 5))}
        return Step(action, {**member, **args, "protocol": weighted(rng, {"": 90, "rr": 5, "range": 5})})
    if action == "heartbeat":
        return Step(action, {**member, "generation": weighted(rng, GENERATIONS), "version": rng.choice((0, 3, 4))})
    if action == "leave":
        return Step(action, {**member, "by_instance": rng.random() < 0.2, "version": rng.choice((1, 3, 5))})
    if action == "leave_many":
        return Step(action, {"new": rng.sample(range(4), rng.choice((0, 1, 2))), "classic": rng.sample(range(3), 2)})
    if action == "commit":
        args = {"generation": weighted(rng, GENERATIONS), "version": rng.choice((7, 8, 9)), "offset": rng.randrange(99)}
        return Step(action, {**member, **args})
    if action == "fetch":
        return Step(action, {**member, "generation": weighted(rng, GENERATIONS)})
    if action == "described":
        return Step(action, {"version": rng.choice((0, 3, 5, 6))})
    if action == "groups_listed":
        return Step(action, {"states": rng.choice(STATES), "types": rng.choice(([], ["consumer"], ["Classic"]))})
    return new_step(rng) if action == "new" else Step(action)


def new_step(rng: random.Random) -> Step:
    """What members of the new protocol do besides joining."""
    while True:
        step = consumer.one_step(rng, True)
        if step.action not in ("join", "listed", "delete_topic") and step.args.get("topics") != []:
            return Step("new", {"action": step.action, "args": step.args})


class NewMembers(Consumers):
    """Consumers whose instance ids are their own."""

    def __init__(self, talk: Talk) -> None:
        super().__init__(talk)
        for member in self.members:
            member.id, member.instance = f"!{member.name}", INSTANCES[member.name]


class ClassicMembers(Groups):
    """Clients of the classic protocol with consumer subscriptions. Each waits for its JoinGroup and SyncGroup."""

    def __init__(self, talk: Talk, sizes: dict[str, int]) -> None:
        super().__init__(talk)
        self.sizes = sizes
        self.members = [Member(name) for name in CLIENTS]
        self.protocol = dict.fromkeys(CLIENTS, "range")
        self.topics: dict[str, list[str]] = {name: [] for name in CLIENTS}
        self.metadata = dict.fromkeys(CLIENTS, 1)
        # What SyncGroup gave each client last, and before that.
        self.given: dict[str, list[Partitions]] = {name: [{}, {}] for name in CLIENTS}
        self.syncing: dict[str, Member] = {}
        # Whether M speaks the new protocol now.
        self.moved = False

    def busy(self, member: Member) -> bool:
        """Whether the client can say nothing more."""
        return self.talk.is_waiting(self.last_line(member)) or (self.moved and member.name == "M")

    def said_ids(self, who: int, ids: str) -> str:
        """Only a static member joins without an id while it has one."""
        return "now" if ids == "none" and self.members[who].name == "M" else ids

    def answered(self, on: str, answer: dict[str, Any]) -> None:
        super().answered(on, answer)
        member = self.syncing.pop(on, None)
        if member is not None:
            self.learn_assignment(member, answer)

    def learn(self, member: Member, answer: dict[str, Any]) -> None:
        super().learn(member, answer)
        if answer.get("errorCode") == 0:
            self.protocol[member.name] = answer["protocolName"] or "range"

    def learn_assignment(self, member: Member, answer: dict[str, Any]) -> None:
        if answer.get("errorCode") == 0:
            self.given[member.name] = [partitions_of(answer["assignment"]), self.given[member.name][0]]
        else:
            self.told(member, answer.get("errorCode"))

    def told(self, member: Member, error: int | None) -> None:
        if error == UNKNOWN_MEMBER_ID:
            member.ids.clear()
            self.given[member.name] = [{}, {}]

    def owned(self, member: Member, which: str) -> Partitions:
        now, before = self.given[member.name]
        if which == "part":
            return {topic: partitions[:1] for topic, partitions in now.items()}
        return {"assigned": now, "before": before}.get(which, {})

    # ---- requests

    def post_join(
        self, who: int, ids: str, topics: list[str], owned: Partitions, names: list[str], metadata: int, version: int
    ) -> int:
        """The error; -1 while the request waits for others."""
        member = self.members[who]
        instance = INSTANCES[member.name]
        # Older versions have no instance ids, and `range` would order static members by the ids that a server makes.
        version = version if instance is None else max(version, 5)
        fields = {"generationId": member.generation} if metadata >= 2 else {}
        said = subscription([f"{self.talk.prefix}-{topic}" for topic in topics], metadata, owned, **fields)
        request = {
            **self.named(who, self.said_ids(who, ids), instance),
            "protocolType": "consumer", "protocols": [{"name": name, "metadata": b64(said)} for name in names],
            "sessionTimeoutMs": 60000, "rebalanceTimeoutMs": 60000, "reason": "",
        }  # fmt: skip
        self.topics[member.name] = topics
        member.said = (None, names, "", "consumer", version)
        self.metadata[member.name] = metadata
        on = self.line(member)
        answer = self.talk.post("JoinGroup", version, request, on)
        if answer is None:
            self.joining[on] = member
        else:
            self.learn(member, answer)
            if ids == "now":
                self.told(member, answer.get("errorCode"))
        self.collect()
        return -1 if answer is None else answer.get("errorCode", 0)

    def shares(self, member: Member) -> list[dict[str, str]]:
        """What a leader assigns: the partitions of each topic in turn to those who want it, in the clients' order."""
        parts: dict[str, Partitions] = {}
        for topic, size in self.sizes.items():
            wanting = [one for one in self.members if topic in self.topics[one.name] and set(one.ids) & set(member.led)]
            for partition in range(size if wanting else 0):
                name = wanting[partition % len(wanting)].name
                parts.setdefault(name, {}).setdefault(f"{self.talk.prefix}-{topic}", []).append(partition)
        owners = {one_id: one.name for one in self.members for one_id in one.ids}
        return [
            {"memberId": one_id, "assignment": b64(assignment(parts.get(owners.get(one_id, ""), {})))}
            for one_id in member.led
        ]

    def post_sync(self, who: int, ids: str, generation: int, version: int, protocol: str = "") -> None:
        member = self.members[who]
        named = self.named(who, ids, INSTANCES[member.name] if version >= 3 else None)
        fields: dict[str, Any] = {"generationId": member.generation + generation, "assignments": self.shares(member)}
        if version >= 5:
            fields.update({"protocolType": "consumer", "protocolName": protocol or self.protocol[member.name]})
        on = self.line(member)
        answer = self.talk.post("SyncGroup", version, {**named, **fields}, on)
        if answer is None:
            self.syncing[on] = member
        elif ids == "now":
            self.learn_assignment(member, answer)
        self.collect()


def partitions_of(text: str) -> Partitions:
    """What an assignment of SyncGroup has, as members say it in their subscriptions."""
    found = classic_assignment(text) if text else ""
    listed = found["assignedPartitions"] if isinstance(found, dict) else []
    return {one["topic"]: sorted(one["partitions"]) for one in listed}


class Mixed:
    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.consumers = NewMembers(talk)
        self.classic = ClassicMembers(talk, self.consumers.sizes)
        self.group = self.consumers.group
        # Whether the group was a consumer group once: then its classic members may have said what they own.
        self.was_new = False

    def prepare(self) -> None:
        self.classic.prepare()
        self.consumers.prepare()

    def finish(self) -> None:
        self.described(6)
        self.consumers.describe(1, False)
        self.follow()
        self.described(6)
        self.consumers.finish()
        self.classic.collect()
        with self.talk.unrecorded():
            self.talk.ask("DeleteTopics", 5, {"topicNames": [self.classic.topic], "timeoutMs": 5000}, on="wait")

    # ---- looking, unrecorded

    def look(self) -> tuple[str, str]:
        """The group's type and state."""
        with self.talk.unrecorded():
            found = self.talk.ask("ConsumerGroupDescribe", 1, {"groupIds": [self.group]}, on="wait")["groups"][0]
            if found["errorCode"] == 0:
                self.was_new = True
                return "consumer", found["groupState"]
            state = self.talk.ask("DescribeGroups", 5, {"groups": [self.group]}, on="wait")["groups"][0]["groupState"]
        return "classic", state

    def at_rest(self) -> bool:
        """Whether all have what they are to have, after they did what they are told."""
        self.follow()
        for who in range(len(CLIENTS)):
            self.sync(who, "now", 0, 5, "")
        return self.look()[1] in QUIET

    def may_replace(self, name: str, ids: str) -> bool:
        """K and D, who replace each other, do so while nothing changes hands."""
        return name not in ("K", "D") or ids != "none" or self.at_rest()

    def may_join(self, name: str, regex: bool) -> bool:
        """Whether both servers agree on what a new member finds.

        If a group rebalances when it is upgraded, kcoord assigns again. A broker does not, if the new member brings no
        other topics: an expression that is not resolved, or those of the member that it replaces.
        """
        kind, state = self.look()
        if kind == "classic" and state not in QUIET and self.was_new:
            return False
        if regex and not (self.consumers.is_assigned() and (kind == "consumer" or self.at_rest())):
            return False
        return self.may_replace(name, "none")

    # ---- members of the new protocol

    def new_join(self, who: int, topics: list[str], regex: bool) -> None:
        member = self.consumers.members[who]
        if not self.may_join(member.name, regex):
            self.talk.note("the group is not at rest")
            return
        named = {"subscribedTopicNames": [f"{self.talk.prefix}-{topic}" for topic in topics]}
        matched = {"subscribedTopicRegex": f"{self.talk.prefix}-[{''.join(topics)}]"}
        said: dict[str, Any] = matched if regex else named
        self.consumers.heartbeat(member, 0, rebalanceTimeoutMs=60000, topicPartitions=[], **said)
        self.look()
        self.classic.collect()

    def adopt(self, topics: list[str]) -> None:
        """M changes its protocol and keeps its id: B is what it becomes, unless B is in the group."""
        member, old = self.consumers.members[1], self.classic.members[2]
        if member.epoch > 0 or self.classic.busy(old) or not self.at_rest() or not old.ids:
            self.talk.note("does not change its protocol")
            return
        self.classic.moved = True
        member.id = old.ids[-1]
        self.new_join(1, topics, False)

    def new(self, action: str, args: dict[str, Any]) -> None:
        getattr(self.consumers, action)(**args)
        self.classic.collect()

    # ---- members of the classic protocol

    def rejoin(
        self, who: int, ids: str, topics: list[str], owned: str, protocols: list[str], metadata: int, version: int
    ) -> int:
        member = self.classic.members[who]
        kind, state = self.look()
        ids = self.classic.said_ids(who, ids)
        if self.classic.busy(member):
            self.talk.note("waits already")
        elif kind == "consumer" and state == "Empty" and self.classic.id_of(who, ids):
            # A broker forgets an empty consumer group that is joined with an id (docs/kips.md).
            self.talk.note("would make a broker forget the group")
        elif not self.may_replace(member.name, ids if member.ids else "none"):
            self.talk.note("partitions change hands")
        else:
            said = self.classic.owned(member, owned) if kind == "consumer" else {}
            error = self.classic.post_join(who, ids, topics, said, protocols, metadata, version)
            self.consumers.resolved()
            return error
        return -1

    def enter(
        self, who: int, ids: str, topics: list[str], owned: str, protocols: list[str], metadata: int, version: int
    ) -> None:
        """Joins as a client does: again with the member id that it got, if it has to."""
        if self.rejoin(who, "now", topics, owned, protocols, metadata, version) == MEMBER_ID_REQUIRED:
            self.rejoin(who, "now", topics, owned, protocols, metadata, version)
        else:
            self.talk.note("no member id was required")
        self.sync(who, "now", 0, 5, "")

    def sync(self, who: int, ids: str, generation: int, version: int, protocol: str) -> None:
        member = self.classic.members[who]
        if self.classic.busy(member) or member.generation < 0:
            self.talk.note("does not sync")
        else:
            self.classic.post_sync(who, ids, generation, version, protocol)

    def heartbeat(self, who: int, ids: str, generation: int, version: int) -> None:
        member = self.classic.members[who]
        named = self.classic.named(who, ids, INSTANCES[member.name] if version >= 3 else None)
        request = {**named, "generationId": member.generation + generation}
        self.classic.ask("Heartbeat", version, request, member)

    def leave(self, who: int, ids: str, by_instance: bool, version: int) -> None:
        member = self.classic.members[who]
        instance = INSTANCES[member.name]
        named = self.classic.named(who, ids, instance)
        if self.classic.busy(member):
            # A broker never answers the waiting SyncGroup of a member that is removed.
            self.talk.note("waits for others")
            return
        if version < 3:
            request: dict[str, Any] = {"groupId": self.group, "memberId": named["memberId"]}
        else:
            is_admin = by_instance and instance is not None
            one = {"memberId": "" if is_admin else named["memberId"], "groupInstanceId": instance}
            request = {"groupId": self.group, "members": [one]}
        answer = self.classic.ask("LeaveGroup", version, request, member)
        if ids == "now" and answer.get("errorCode") == 0:
            self.classic.told(member, UNKNOWN_MEMBER_ID)

    def leave_many(self, new: list[int], classic: list[int]) -> None:
        """An administrator removes several members at once."""
        listed = [{"memberId": self.consumers.members[who].id} for who in new]
        listed += [
            {"memberId": self.classic.id_of(who, "now")}
            for who in classic
            if not self.classic.busy(self.classic.members[who])
        ]
        self.classic.ask("LeaveGroup", 5, {"groupId": self.group, "members": listed})

    def follow(self) -> None:
        """All members do what they are told until nobody is told anything: the classic ones rejoin and sync."""
        for _ in range(ROUNDS):
            before = [(one.epoch, one.assigned) for one in self.consumers.members]
            for member in self.consumers.members:
                if member.epoch > 0:
                    self.consumers.heartbeat(member, member.epoch, topicPartitions=member.assigned)
            told = [self.follow_one(who) for who in range(len(CLIENTS))]
            self.classic.collect()
            if not any(told) and before == [(one.epoch, one.assigned) for one in self.consumers.members]:
                break
        self.talk.note("followed")

    def follow_one(self, who: int) -> bool:
        member = self.classic.members[who]
        if not member.ids or member.said is None or self.classic.busy(member):
            return False
        named = self.classic.named(who, "now", INSTANCES[member.name])
        beat = self.classic.ask("Heartbeat", 4, {**named, "generationId": member.generation}, member)
        self.classic.told(member, beat.get("errorCode"))
        if beat.get("errorCode") != REBALANCE_IN_PROGRESS:
            return False
        topics, metadata = self.classic.topics[member.name], self.classic.metadata[member.name]
        self.rejoin(who, "now", topics, "assigned", member.said[1], metadata, member.said[4])
        self.sync(who, "now", 0, 5, "")
        return True

    # ---- offsets, and others

    def commit(self, who: int, ids: str, generation: int, version: int, offset: int) -> None:
        member = self.classic.members[who]
        named = self.classic.named(who, ids, INSTANCES[member.name])
        part = {"partitionIndex": offset % 3, "committedOffset": offset, "committedMetadata": ""}
        topics = [{"name": f"{self.talk.prefix}-x", "partitions": [part]}]
        request = {**named, "generationIdOrMemberEpoch": member.generation + generation, "topics": topics}
        self.classic.ask("OffsetCommit", version, request, member)

    def fetch(self, who: int, ids: str, generation: int) -> None:
        member = self.classic.members[who]
        named = {"memberId": self.classic.id_of(who, ids), "memberEpoch": member.generation + generation}
        self.classic.ask("OffsetFetch", 9, {"groups": [{"groupId": self.group, **named, "topics": None}]})

    def described(self, version: int) -> None:
        self.classic.describe(version)

    def groups_listed(self, states: list[str], types: list[str]) -> None:
        self.consumers.listed(states, types)


KIND = Kind("mixed", sequence, Mixed)
