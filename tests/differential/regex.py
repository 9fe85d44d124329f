"""Random histories of consumer groups whose members subscribe by regular expression, while topics come and go.

A group that has a resolved expression resolves others at most every 10 s, so some sequences wait that long.
"""

from __future__ import annotations

import random
import time
from typing import Any

from tests.differential import consumer
from tests.differential.consumer import INSTANCES, Consumers
from tests.differential.sequence import Kind, Step, weighted
from tests.differential.talk import Talk
from tests.harness.script_steps import create_topic, wait_for_coordinator

TOPICS = ("t", "x", "xy", "y", "Z")
SIZES = {"t": 1, "x": 2, "xy": 3, "y": 4, "Z": 2}
# `@` becomes the prefix of the sequence's names: other expressions would match the topics of other sequences.
VALID = (
    "@-x", "@-[xy]", "@-(y|Z)", "@-.*", "@-.", "@-.+y", "(?i)@-z", "(?i:@)-[X-Z]", "@-(?P<name>x|Z)", "@-[^x]", r"@-\w",
    "@-xy?", "@-none", ".*@-Z", "@-[[:alpha:]]", r"@-\Qx\E", "@-x|@-y", "^@-x$", r"@-\pL", r"@-x\b", r"@-\x78",
    "@-x{1,2}", "@-x.*?", "(@-)((x)|(y))", "@-(?:)y", "@-X", "-x", "(?s)@-.", r"@-[\x41-\x7a]", r"@-\p{Lu}",
)  # fmt: skip
INVALID = (
    "@-(", "*", "@-[", "@-(?=x)", r"@-\1", "@-[z-a]", "x**", "x{1001}", "x{2,1}", "(?P<n", r"@-\8", "@-)", "(?z)x",
    "\\", r"\pX", "[[:word]",
)  # fmt: skip
NONE = ""
# A server that resolves again at once after this long.
REFRESH_S = 10.2


def some_regex(rng: random.Random) -> str:
    kind = weighted(rng, {"valid": 84, "invalid": 8, "none": 8})
    return NONE if kind == "none" else rng.choice(VALID if kind == "valid" else INVALID)


def sequence(rng: random.Random) -> list[Step]:
    length = rng.randint(8, 40)
    static = rng.random() < 0.4
    steps = [joining(rng, 0, static)]
    while len(steps) < length:
        steps.append(one_step(rng, static))
    return steps


def joining(rng: random.Random, who: int, static: bool) -> Step:
    by = weighted(rng, {"regex": 75, "both": 15, "names": 10})
    return Step("join_by", {
        "who": who, "regex": None if by == "names" else some_regex(rng),
        "topics": None if by == "regex" else rng.sample(TOPICS, rng.choice((1, 2))),
        "instance": rng.choice(INSTANCES) if static else None,
    })  # fmt: skip


def one_step(rng: random.Random, static: bool) -> Step:
    action = weighted(rng, {
        "join_by": 14, "change": 16, "beat": 24, "everyone": 12, "leave": 7, "describe": 6, "create": 5,
        "delete_topic": 4, "grow": 1, "delete_offsets": 2, "commit": 2, "refresh": 1,
    })  # fmt: skip
    who = rng.randrange(len(consumer.MEMBERS))
    if action == "join_by":
        return joining(rng, who, static)
    if action == "change":
        topics = rng.sample(TOPICS, rng.choice((0, 1, 2))) if rng.random() < 0.25 else None
        return Step(action, {"who": who, "regex": some_regex(rng), "topics": topics, "owned": rng.random() < 0.6})
    if action == "beat":
        owned = weighted(rng, consumer.OWNED)
        return Step(action, {"who": who, "epoch": 0, "owned": owned, "topics": None, "stranger": False})
    if action == "leave":
        return Step(action, {"who": who, "epoch": rng.choice((-1, -2)) if static else -1})
    if action == "describe":
        return Step(action, {"version": 1, "classic": False})
    if action in ("create", "delete_topic", "grow"):
        return Step(action, {"topic": rng.choice(TOPICS[1:])})
    if action == "commit":
        return Step(action, {"who": who, "epoch": 0, "member": "it", "version": 9, "offset": rng.randrange(9)})
    return Step(action, {})


class Regexes(Consumers):
    def __init__(self, talk: Talk) -> None:
        super().__init__(talk)
        self.sizes = dict(SIZES)

    def prepare(self) -> None:
        with self.talk.unrecorded():
            wait_for_coordinator(self.talk)
            for topic in ("t", "x", "y"):
                create_topic(self.talk, self.name(topic), self.sizes[topic])
        self.talk.published()

    def finish(self) -> None:
        self.describe(1, False)
        self.everyone()
        self.describe(1, False)
        with self.talk.unrecorded():
            for who in range(len(self.members)):
                self.leave(who, -1)
            names = [self.name(topic) for topic in TOPICS]
            self.talk.ask("DeleteTopics", 5, {"topicNames": names, "timeoutMs": 5000})

    def spelled(self, regex: str) -> str:
        return regex.replace("@", self.talk.prefix)

    # ---- members

    def join_by(self, who: int, regex: str | None, topics: list[str] | None, instance: str | None) -> None:
        member = self.members[who]
        if member.epoch in (0, -1):
            member.instance = instance
        fields: dict[str, Any] = {} if topics is None else {"subscribedTopicNames": [self.name(one) for one in topics]}
        if regex is not None:
            fields["subscribedTopicRegex"] = self.spelled(regex)
        if self.is_assigned():
            self.heartbeat(member, 0, rebalanceTimeoutMs=60000, topicPartitions=[], **fields)

    def change(self, who: int, regex: str, topics: list[str] | None, owned: bool) -> None:
        """A member changes its expression, and perhaps the names beside it."""
        member = self.members[who]
        fields: dict[str, Any] = {"topicPartitions": member.assigned if owned else None}
        if topics is not None:
            fields["subscribedTopicNames"] = [self.name(one) for one in topics]
        if self.is_assigned():
            self.heartbeat(member, member.epoch or 1, subscribedTopicRegex=self.spelled(regex), **fields)

    # ---- topics

    def create(self, topic: str) -> None:
        made = {"name": self.name(topic), "numPartitions": self.sizes[topic], "replicationFactor": 1}
        answer = self.talk.ask("CreateTopics", 7, {"topics": [made], "timeoutMs": 5000})
        for one in answer["topics"]:
            one["configs"] = []
        self.talk.published()

    def delete_topic(self, topic: str) -> None:
        self.sizes[topic] = SIZES[topic]
        self.talk.ask("DeleteTopics", 5, {"topicNames": [self.name(topic)], "timeoutMs": 5000})
        self.talk.published()

    def grow(self, topic: str) -> None:
        one = {"name": self.name(topic), "count": self.sizes[topic] + 1, "assignments": None}
        answer = self.talk.ask("CreatePartitions", 3, {"topics": [one], "timeoutMs": 5000})
        if not answer["results"][0]["errorCode"]:
            self.sizes[topic] += 1
        self.talk.published()

    def refresh(self) -> None:
        """Long enough that the next heartbeat may have expressions resolved again."""
        self.talk.note("waits")
        time.sleep(REFRESH_S)


KIND = Kind("regex", sequence, Regexes)
