"""Random histories of classic groups: members that join in any order, fence each other, come back late, and commit.

Every member has a connection of its own, and another one while the first waits for an answer. Sessions are long, so
that nothing happens by itself.
"""

from __future__ import annotations

import random
import struct
from typing import Any

from tests.differential.sequence import Kind, Step, weighted
from tests.differential.talk import Talk
from tests.harness.script_steps import b64, create_topic, wait_for_coordinator

MEMBERS = 3
PARTITIONS = 2
REBALANCE_IN_PROGRESS = 27
MEMBER_ID_REQUIRED = 79
INSTANCES = (None, None, "one", "two")
# Which member id a request has: the newest known, none, the one before, another member's, one that nobody has.
IDS = {"now": 82, "none": 5, "before": 6, "other": 4, "stranger": 3}
GENERATIONS = {0: 82, -1: 10, 1: 5, -9: 3}
PROTOCOLS = (["range"], ["range"], ["range", "rr"], ["rr", "range"], ["rr"])
STATES: tuple[list[str], ...] = (
    [],
    ["Stable"],
    ["Empty", "Dead"],
    ["PreparingRebalance", "CompletingRebalance"],
    ["stable"],
    ["Nonsense"],
)


def sequence(rng: random.Random) -> list[Step]:
    """A static or dynamic crowd; `version` is what most of its clients speak."""
    length = rng.randint(10, 45)
    version = rng.choice((3, 5, 7, 9, 9))
    static = rng.random() < 0.5
    steps: list[Step] = []
    if rng.random() < 0.8:
        for who in range(rng.randint(1, MEMBERS)):
            # Those that are in the group follow, as their heartbeats would tell them.
            steps += [entering(rng, version, who, rng.choice(INSTANCES) if static else None), Step("follow")]
        steps.append(Step("sync_all"))
    while len(steps) < length:
        steps.append(one_step(rng, version, static))
    return steps


def entering(rng: random.Random, version: int, who: int, instance: str | None) -> Step:
    return Step("enter", {
        "who": who, "ids": "none", "instance": instance, "protocols": ["range"], "metadata": "m", "kind": "consumer",
        "version": rng.choice((version, version, 9)),
    })  # fmt: skip


def one_step(rng: random.Random, version: int, static: bool) -> Step:
    action = weighted(rng, {
        "join": 24, "enter": 10, "sync": 22, "heartbeat": 10, "leave": 6, "commit": 10, "commit_alone": 3, "fetch": 5,
        "describe": 5, "list": 3, "follow": 8, "sync_all": 10, "delete_group": 3, "delete_offsets": 3, "hang_up": 1,
    })  # fmt: skip
    who = rng.randrange(MEMBERS)
    member = {"who": who, "ids": weighted(rng, IDS), "instance": rng.choice(INSTANCES) if static else None}
    if action in ("join", "enter"):
        args = {"protocols": rng.choice(PROTOCOLS), "metadata": weighted(rng, {"m": 70, "n": 30})}
        args["kind"] = weighted(rng, {"consumer": 96, "connect": 4})
        if action == "enter":
            member["ids"] = "none"
        return Step(action, {**member, **args, "version": rng.choice((version, version, version, 2, 4, 9))})
    if action == "sync":
        return Step(action, {**member, "generation": weighted(rng, GENERATIONS), "version": rng.choice((1, 3, 5))})
    if action == "heartbeat":
        return Step(action, {**member, "generation": weighted(rng, GENERATIONS), "version": rng.choice((0, 3, 4))})
    if action == "leave":
        return Step(action, {**member, "version": rng.choice((1, 3, 5))})
    if action == "commit":
        args = {"generation": weighted(rng, GENERATIONS), "version": rng.choice((3, 7, 9)), "offset": rng.randrange(99)}
        return Step(action, {**member, **args})
    if action == "commit_alone":
        return Step(action, {"version": rng.choice((2, 5, 8, 9)), "offset": rng.randrange(99)})
    if action == "fetch":
        return Step(action, {"version": rng.choice((1, 2, 5, 7, 8, 9)), "everything": rng.random() < 0.4})
    if action == "describe":
        return Step(action, {"version": rng.choice((0, 3, 5, 6))})
    if action == "list":
        return Step(action, {"version": rng.choice((0, 3, 4, 5)), "states": rng.choice(STATES)})
    return Step(action, {"who": who} if action == "hang_up" else {})


def subscription(topic: str, user_data: str) -> bytes:
    """What a consumer of one topic sends as its metadata, in version 0."""
    name, data = topic.encode(), user_data.encode()
    return struct.pack(">hih", 0, 1, len(name)) + name + struct.pack(">i", len(data)) + data


class Member:
    """What one client knows of itself and, as a leader, of the others."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ids: list[str] = []
        self.generation = -1
        self.led: list[str] = []
        self.lines = 0
        # Instance, protocols, metadata, kind and version of its last JoinGroup.
        self.said: tuple[str | None, list[str], str, str, int] | None = None

    def learn(self, answer: dict[str, Any]) -> None:
        # An error that only kcoord answers must not teach anything.
        if answer.get("errorCode") in (0, MEMBER_ID_REQUIRED) and answer["memberId"] not in self.ids[-1:]:
            self.ids.append(answer["memberId"])
        if answer.get("errorCode") == 0:
            self.generation = answer["generationId"]
            self.led = [one["memberId"] for one in answer["members"]]


class Groups:
    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.topic, self.group = f"{talk.prefix}-t", f"{talk.prefix}-g"
        self.members = [Member(name) for name in "ABC"]
        # Joins that wait, by connection.
        self.joining: dict[str, Member] = {}

    def prepare(self) -> None:
        with self.talk.unrecorded():
            wait_for_coordinator(self.talk)
            create_topic(self.talk, self.topic, PARTITIONS)

    def finish(self) -> None:
        self.describe(5)
        self.list(5, [])
        self.fetch(8, True)
        self.collect()
        with self.talk.unrecorded():
            self.talk.ask("DeleteTopics", 5, {"topicNames": [self.topic], "timeoutMs": 5000}, on="wait")

    # ---- what requests are made of

    def line(self, member: Member) -> str:
        """A connection of the member that waits for nothing."""
        while self.talk.is_waiting(self.last_line(member)):
            member.lines += 1
        return self.last_line(member)

    def last_line(self, member: Member) -> str:
        return f"{member.name}{member.lines}"

    def id_of(self, who: int, which: str) -> str:
        member = self.members[who]
        if which == "none" or not member.ids:
            return ""
        if which == "stranger":
            return "nobody"
        if which == "other":
            other = self.members[(who + 1) % MEMBERS].ids
            return other[-1] if other else "nobody"
        return member.ids[-2] if which == "before" and len(member.ids) > 1 else member.ids[-1]

    def named(self, who: int, ids: str, instance: str | None) -> dict[str, Any]:
        return {"groupId": self.group, "memberId": self.id_of(who, ids), "groupInstanceId": instance}

    def collect(self) -> None:
        """Takes the answers that came to requests that waited."""
        if not self.talk.waiting():
            return
        self.talk.quiet()
        for on in self.talk.waiting():
            answer = self.talk.take(on)
            if answer is not None:
                self.answered(on, answer)

    def answered(self, on: str, answer: dict[str, Any]) -> None:
        """The answer to a request that waited on this connection."""
        if on in self.joining and answer.get("errorCode") == REBALANCE_IN_PROGRESS:
            # Another JoinGroup of the member has taken its place. A broker never says so: its client would still wait.
            return
        member = self.joining.pop(on, None)
        if member is not None:
            self.learn(member, answer)

    def learn(self, member: Member, answer: dict[str, Any]) -> None:
        """The answer to the member's JoinGroup."""
        member.learn(answer)

    def ask(self, api: str, version: int, request: dict[str, Any], member: Member | None = None) -> Any:
        answer = self.talk.ask(api, version, request, on="a" if member is None else self.line(member))
        self.collect()
        return answer

    # ---- members

    def join(
        self, who: int, ids: str, instance: str | None, protocols: list[str], metadata: str, kind: str, version: int
    ) -> None:
        member = self.members[who]
        listed = [{"name": name, "metadata": b64(subscription(self.topic, f"{metadata}{name}"))} for name in protocols]
        request = {
            **self.named(who, ids, instance if version >= 5 else None), "protocolType": kind, "protocols": listed,
            "sessionTimeoutMs": 60000, "rebalanceTimeoutMs": 60000, "reason": "",
        }  # fmt: skip
        member.said = (instance, protocols, metadata, kind, version)
        on = self.line(member)
        answer = self.talk.post("JoinGroup", version, request, on)
        if answer is None:
            self.joining[on] = member
        else:
            self.learn(member, answer)
        self.collect()

    def enter(
        self, who: int, ids: str, instance: str | None, protocols: list[str], metadata: str, kind: str, version: int
    ) -> None:
        """Joins as a client does: again with the member id that it got, if it has to."""
        self.join(who, ids, instance, protocols, metadata, kind, version)
        if (
            "response" in self.talk.last_step()
            and self.talk.last_step()["response"].get("errorCode") == MEMBER_ID_REQUIRED
        ):
            self.join(who, "now", instance, protocols, metadata, kind, version)
        else:
            self.talk.note("no member id was required")

    def sync(self, who: int, ids: str, instance: str | None, generation: int, version: int) -> None:
        """With assignments for the members that this one was told of, if it was the leader."""
        member = self.members[who]
        named = self.named(who, ids, instance if version >= 3 else None)
        given = [{"memberId": one, "assignment": b64(b"given")} for one in member.led]
        fields: dict[str, Any] = {"generationId": member.generation + generation, "assignments": given}
        if version >= 5:
            fields.update({"protocolType": "consumer", "protocolName": "range"})
        self.talk.post("SyncGroup", version, {**named, **fields}, self.line(member))
        self.collect()

    def follow(self) -> None:
        """All members that take part and wait for nothing join again, with what they said last."""
        for who, member in enumerate(self.members):
            if member.said is not None and member.generation >= 0 and member not in self.joining.values():
                self.join(who, "now", *member.said)
            else:
                self.talk.note("does not follow")

    def sync_all(self) -> None:
        for who, member in enumerate(self.members):
            if member.generation >= 0:
                self.sync(who, "now", None if member.said is None else member.said[0], 0, 5)
            else:
                self.talk.note("does not sync")

    def heartbeat(self, who: int, ids: str, instance: str | None, generation: int, version: int) -> None:
        member = self.members[who]
        named = self.named(who, ids, instance if version >= 3 else None)
        self.ask("Heartbeat", version, {**named, "generationId": member.generation + generation}, member)

    def leave(self, who: int, ids: str, instance: str | None, version: int) -> None:
        named = self.named(who, ids, instance)
        if version < 3:
            request: dict[str, Any] = {"groupId": self.group, "memberId": named["memberId"]}
        else:
            one = {"memberId": named["memberId"], "groupInstanceId": instance}
            request = {"groupId": self.group, "members": [one]}
        self.ask("LeaveGroup", version, request, self.members[who])

    def commit(self, who: int, ids: str, instance: str | None, generation: int, version: int, offset: int) -> None:
        member = self.members[who]
        named = self.named(who, ids, instance if version >= 7 else None)
        self.committed(version, {**named, "generationIdOrMemberEpoch": member.generation + generation}, offset, member)

    def hang_up(self, who: int) -> None:
        """The connection ends; members stay until their session does."""
        on = self.line(self.members[who])
        self.talk.hang_up(on)
        self.collect()

    # ---- others

    def committed(self, version: int, named: dict[str, Any], offset: int, member: Member | None = None) -> None:
        part = {"partitionIndex": offset % (PARTITIONS + 1), "committedOffset": offset, "committedMetadata": "m"}
        self.ask("OffsetCommit", version, {**named, "topics": [{"name": self.topic, "partitions": [part]}]}, member)

    def commit_alone(self, version: int, offset: int) -> None:
        """A client that is no member."""
        self.committed(version, {"groupId": self.group, "generationIdOrMemberEpoch": -1, "memberId": ""}, offset)

    def fetch(self, version: int, everything: bool) -> None:
        listed = [{"name": self.topic, "partitionIndexes": [0, 1, 5]}]
        topics = None if everything and version >= 2 else listed
        if version < 8:
            request: dict[str, Any] = {"groupId": self.group, "topics": topics}
        else:
            request = {"groups": [{"groupId": self.group, "topics": topics}]}
        self.ask("OffsetFetch", version, request)

    def describe(self, version: int) -> None:
        self.ask("DescribeGroups", version, {"groups": [self.group]})

    def list(self, version: int, states: list[str]) -> None:
        answer = self.ask("ListGroups", version, {"statesFilter": states} if version >= 4 else {})
        answer["groups"] = [one for one in answer["groups"] if one["groupId"] == self.group]

    def delete_group(self) -> None:
        self.ask("DeleteGroups", 2, {"groupsNames": [self.group]})

    def delete_offsets(self) -> None:
        topics = [{"name": self.topic, "partitions": [{"partitionIndex": 0}, {"partitionIndex": 5}]}]
        self.ask("OffsetDelete", 0, {"groupId": self.group, "topics": topics})


KIND = Kind("groups", sequence, Groups)
