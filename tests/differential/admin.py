"""Random histories of an administrator: topics that come, grow and go, and configs that are altered step by step."""

from __future__ import annotations

import random
from typing import Any

from tests.differential.sequence import Kind, Step, weighted
from tests.differential.talk import Talk
from tests.harness.schema_json import ZERO_UUID
from tests.harness.script_steps import create_topic, wait_for_coordinator

TOPIC, BROKER, GROUP = 2, 4, 32
TOPICS = ("a", "a", "b", "b.c", "b_c", "no such", "..")
SET, DELETE, APPEND, SUBTRACT = range(4)
CONFIGS: dict[int, dict[str, tuple[str | None, ...]]] = {
    TOPIC: {
        "cleanup.policy": ("compact", "delete", "compact,delete", "", "delete,delete", "nonsense", None),
        "retention.ms": ("-1", "1000", "-2", "x", "", " 5 "),
        "retention.bytes": ("-1", "100", "1.5"),
        "max.message.bytes": ("100", "0", "-1", "2147483648"),
        "compression.type": ("zstd", "producer", "lzma"),
        "message.timestamp.type": ("LogAppendTime", "CreateTime", "logappendtime"),
        "min.cleanable.dirty.ratio": ("0.5", "2", "0"),
        "segment.bytes": ("1048576", "14", "1"),
        "leader.replication.throttled.replicas": ("*", "0:1", "0:1,1:1", "none", "nonsense"),
        "preallocate": ("true", "TRUE", "yes"),
        "no.such.config": ("1",),
    },
    GROUP: {
        "consumer.session.timeout.ms": ("50000", "1", "10000000", "x"),
        "consumer.heartbeat.interval.ms": ("4000", "1", "60000"),
        "no.such.config": ("1",),
    },
}
KINDS = {TOPIC: 75, GROUP: 25}
OPERATIONS = {SET: 50, DELETE: 20, APPEND: 15, SUBTRACT: 15}


def sequence(rng: random.Random) -> list[Step]:
    length = rng.randint(8, 30)
    first = {"topics": ["a"], "partitions": 1, "replicas": 1, "configs": {}, "dry": False, "version": 7}
    steps = [Step("create", first)]
    while len(steps) < length:
        steps.append(one_step(rng))
    return steps


def some_config(rng: random.Random, kind: int) -> tuple[str, str | None]:
    name = rng.choice(list(CONFIGS[kind]))
    return name, rng.choice(CONFIGS[kind][name])


def one_step(rng: random.Random) -> Step:
    action = weighted(rng, {
        "create": 12, "delete": 6, "delete_by_id": 3, "grow": 8, "alter": 30, "replace_configs": 6, "configs": 12,
        "metadata": 8, "partitions_of": 4, "resources": 2,
    })  # fmt: skip
    name, dry = rng.choice(TOPICS), rng.random() < 0.15
    if action == "create":
        given = [some_config(rng, TOPIC) for _ in range(rng.choice((0, 0, 1, 2)))]
        args: dict[str, Any] = {"partitions": rng.choice((1, 2, 3, -1, 0)), "replicas": rng.choice((1, 1, 1, -1, 2, 0))}
        names = rng.choice(([name], [name], [name, "b"], [name, name]))
        args |= {"configs": dict(given), "dry": dry, "version": rng.choice((2, 5, 7))}
        return Step(action, {"topics": names, **args})
    if action == "delete":
        return Step(action, {"topic": name, "version": rng.choice((1, 5, 6))})
    if action == "delete_by_id":
        return Step(action, {"topic": name, "named": rng.random() < 0.2})
    if action == "grow":
        args = {"count": rng.choice((0, 1, 2, 3, 5))}
        args["assign"] = rng.choice((None, None, None, [[1]], [[1], [1]], [[7]]))
        return Step(action, {"topic": name, **args, "dry": dry, "version": rng.choice((0, 2, 3))})
    if action == "alter":
        kind = weighted(rng, KINDS)
        made = [(*some_config(rng, kind), weighted(rng, OPERATIONS)) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
        name = name if kind == TOPIC else rng.choice(("g", "g", ""))
        return Step(action, {"kind": kind, "name": name, "made": made, "dry": dry})
    if action == "replace_configs":
        given = [some_config(rng, TOPIC) for _ in range(rng.choice((0, 1, 2)))]
        return Step(action, {"topic": name, "configs": dict(given), "dry": dry, "version": rng.choice((0, 1, 2))})
    if action == "configs":
        kind = weighted(rng, KINDS)
        keys = rng.choice((None, ["retention.ms", "cleanup.policy", "no.such"], list(CONFIGS[kind]), []))
        args = {"keys": keys, "synonyms": rng.random() < 0.5, "version": rng.choice((1, 3, 4))}
        return Step(action, {"kind": kind, "name": name if kind == TOPIC else "g", **args})
    if action == "metadata":
        return Step(action, {"topic": name, "by_id": rng.random() < 0.4, "version": rng.choice((4, 5, 9, 12, 13))})
    if action == "partitions_of":
        return Step(action, {"topic": name, "limit": rng.choice((1, 2, 100)), "cursor": rng.choice((None, None, 1, 9))})
    return Step(action, {"kinds": rng.choice(([], [GROUP], [TOPIC, 99]))})


class Admin:
    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        # Ids that topics had once, by name.
        self.ids: dict[str, str] = {}

    def prepare(self) -> None:
        with self.talk.unrecorded():
            wait_for_coordinator(self.talk)
            create_topic(self.talk, f"{self.talk.prefix}-t", 1)

    def finish(self) -> None:
        for topic in ("a", "b", "b.c"):
            self.metadata(topic, False, 12)
            self.configs(TOPIC, topic, list(CONFIGS[TOPIC]), True, 4)
        self.configs(GROUP, "g", list(CONFIGS[GROUP]), True, 4)
        with self.talk.unrecorded():
            names = [self.name(topic) for topic in ("a", "b", "b.c", "b_c", "t")]
            self.talk.ask("DeleteTopics", 5, {"topicNames": names, "timeoutMs": 5000})

    def name(self, topic: str) -> str:
        return topic if topic == ".." else f"{self.talk.prefix}-{topic}"

    def id_of(self, topic: str) -> str:
        return self.ids.get(topic, ZERO_UUID)

    # ---- topics

    def create(
        self, topics: list[str], partitions: int, replicas: int, configs: dict[str, str | None], dry: bool, version: int
    ) -> None:
        listed = [{"name": name, "value": value} for name, value in configs.items()]
        made = [
            {"name": self.name(topic), "numPartitions": partitions, "replicationFactor": replicas, "configs": listed}
            for topic in topics
        ]
        request = {"topics": made, "timeoutMs": 5000, "validateOnly": dry}
        answer = self.talk.ask("CreateTopics", version, request)
        for one in answer["topics"]:
            if one.get("configs"):
                one["configs"] = [config for config in one["configs"] if config["name"] in CONFIGS[TOPIC]]
        self.talk.published()
        self.learn()

    def learn(self) -> None:
        with self.talk.unrecorded():
            for topic in ("a", "b", "b.c", "b_c"):
                request = {"topics": [{"name": self.name(topic)}], "allowAutoTopicCreation": False}
                found = self.talk.ask("Metadata", 12, request)["topics"][0]
                if not found["errorCode"]:
                    self.ids[topic] = found["topicId"]

    def delete(self, topic: str, version: int) -> None:
        if version < 6:
            request: dict[str, Any] = {"topicNames": [self.name(topic)], "timeoutMs": 5000}
        else:
            request = {"topics": [{"name": self.name(topic)}], "timeoutMs": 5000}
        self.talk.ask("DeleteTopics", version, request)
        self.talk.published()

    def delete_by_id(self, topic: str, named: bool) -> None:
        one = {"name": self.name(topic) if named else None, "topicId": self.id_of(topic)}
        self.talk.ask("DeleteTopics", 6, {"topics": [one], "timeoutMs": 5000})
        self.talk.published()

    def grow(self, topic: str, count: int, assign: list[list[int]] | None, dry: bool, version: int) -> None:
        given = None if assign is None else [{"brokerIds": ids} for ids in assign]
        one = {"name": self.name(topic), "count": count, "assignments": given}
        self.talk.ask("CreatePartitions", version, {"topics": [one], "timeoutMs": 5000, "validateOnly": dry})
        self.talk.published()

    # ---- configs

    def resource(self, kind: int, name: str) -> dict[str, Any]:
        return {"resourceType": kind, "resourceName": self.name(name) if kind == TOPIC or name else name}

    def alter(self, kind: int, name: str, made: list[tuple[str, str | None, int]], dry: bool) -> None:
        configs = [{"name": key, "value": value, "configOperation": operation} for key, value, operation in made]
        request = {"resources": [{**self.resource(kind, name), "configs": configs}], "validateOnly": dry}
        self.talk.ask("IncrementalAlterConfigs", 1, request)
        self.talk.published()

    def replace_configs(self, topic: str, configs: dict[str, str | None], dry: bool, version: int) -> None:
        listed = [{"name": key, "value": value} for key, value in configs.items()]
        request = {"resources": [{**self.resource(TOPIC, topic), "configs": listed}], "validateOnly": dry}
        self.talk.ask("AlterConfigs", version, request)
        self.talk.published()

    def configs(self, kind: int, name: str, keys: list[str] | None, synonyms: bool, version: int) -> None:
        resource = {**self.resource(kind, name), "configurationKeys": keys}
        self.talk.ask("DescribeConfigs", version, {"resources": [resource], "includeSynonyms": synonyms})

    def resources(self, kinds: list[int]) -> None:
        answer = self.talk.ask("ListConfigResources", 1, {"resourceTypes": kinds})
        answer["configResources"] = [
            one for one in answer["configResources"] if one["resourceName"].startswith(self.talk.prefix)
        ]

    # ---- looking

    def metadata(self, topic: str, by_id: bool, version: int) -> None:
        one: dict[str, Any] = {"name": self.name(topic)}
        if version >= 10:
            one = {"name": None, "topicId": self.id_of(topic)} if by_id else {**one, "topicId": ZERO_UUID}
        request = {"topics": [one], "allowAutoTopicCreation": False}
        self.talk.ask("Metadata", version, request)

    def partitions_of(self, topic: str, limit: int, cursor: int | None) -> None:
        request: dict[str, Any] = {"topics": [{"name": self.name(topic)}], "responsePartitionLimit": limit}
        if cursor is not None:
            request["cursor"] = {"topicName": self.name("a"), "partitionIndex": cursor}
        self.talk.ask("DescribeTopicPartitions", 0, request)


KIND = Kind("admin", sequence, Admin)
