"""What all that talks to the broker of make_broker_logs shares: the admin, consumers, and the record of their doings.

`Life.commits` and `Life.events` are what the answers are made of: they hold what clients asked for and were told, in
the order of asking. All of them are librdkafka's, kafka-python's or Java's; nothing here reads a log.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka import KafkaAdminClient

from tests.interop import tools

DEADLINE_S = 40.0
# A commit that meets a rebalance is refused and writes nothing; it is sent again.
PASSING = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)

Commit = tuple[str, int, int, str]  # topic, partition, offset, metadata
# How clients are named whose metadata arrives as it was given; confluent_kafka sends its terminating zero with it.
EXACT = ("kp", "aio", "by hand", "java-")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def wait_until(what: str, holds: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    end = time.monotonic() + deadline_s
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {deadline_s:g} s in vain for {what}")
        time.sleep(0.1)


class Life:
    """One broker's clients. `bootstrap` changes when the broker is started anew.

    `release` is the broker's, where that is not the release that the interop tests are about.
    """

    def __init__(self, release: str = "") -> None:
        self.release = release
        self.bootstrap = ""
        self.commits: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None

    def use(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    @property
    def admin(self) -> AdminClient:
        assert self._admin is not None
        return self._admin

    def note(self, client: str, did: str, **facts: Any) -> None:
        with self._lock:
            self.events.append({"at_ms": now_ms(), "client": client, "did": did, **facts})

    def note_commit(
        self, client: str, group: str, commit: Commit, how: str, transaction: str = ""
    ) -> dict[str, Any]:
        """`how`: commit, admin, request or transaction; then `outcome` is set once it is known."""
        topic, partition, offset, metadata = commit
        if not client.startswith(EXACT):
            metadata += "\0"
        entry: dict[str, Any] = {"at_ms": now_ms(), "client": client, "group": group, "topic": topic}
        entry.update(partition=partition, offset=offset, metadata=metadata, how=how)
        if transaction:
            entry.update(transaction=transaction, outcome="open")
        with self._lock:
            self.commits.append(entry)
        return entry

    def note_forgotten(self, group: str, topic: str, partition: int, why: str) -> None:
        """The broker removed a committed offset, which leaves a tombstone."""
        entry = {"at_ms": now_ms(), "client": "broker", "group": group, "topic": topic}
        with self._lock:
            self.commits.append(
                {**entry, "partition": partition, "offset": None, "metadata": None, "how": why}
            )

    def create(self, topic: str, partitions: int, **settings: str) -> None:
        config = {name.replace("_", "."): value for name, value in settings.items()}
        done(self.admin.create_topics([NewTopic(topic, partitions, 1, config=config)]))
        self.note("admin", "create topic", topic=topic, partitions=partitions, config=config)
        wait_until(topic, lambda: topic in self.admin.list_topics(timeout=10).topics)

    def alter(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        done(self.admin.incremental_alter_configs([resource]))

    def commit_as_admin(self, group: str, commits: list[Commit], noted: bool = True) -> None:
        offsets = [TopicPartition(topic, p, offset, metadata) for topic, p, offset, metadata in commits]
        asked = ConsumerGroupTopicPartitions(group, offsets)

        def accepted() -> bool:
            """False while the coordinator is loading; partitions may have errors of their own."""
            told = self.admin.alter_consumer_group_offsets([asked])[group].result(20)
            errors = [at.error for at in told.topic_partitions if at.error is not None]
            assert not errors or len(errors) == len(offsets), errors
            assert all(error.code() in PASSING for error in errors), errors
            return not errors

        wait_until(f"a commit in {group}", accepted)
        for commit in commits if noted else ():
            self.note_commit("admin", group, commit, "admin")

    def committed(self, group: str) -> list[list[Any]]:
        """[topic, partition, offset, metadata, leader epoch or -1] by topic and partition."""
        # Through kafka-python: confluent_kafka raised UnicodeDecodeError for metadata it had been given.
        with closing(KafkaAdminClient(bootstrap_servers=self.bootstrap)) as admin:
            told = admin.list_group_offsets(group)[group]
        return sorted([at.topic, at.partition, *offset] for at, offset in told.items() if offset.offset >= 0)

    def describe(self, group: str) -> dict[str, Any]:
        """What the admin client says of a group; noted as an event, too."""
        told = self.admin.describe_consumer_groups([group])[group].result(20)
        members = []
        for member in told.members:
            owned = sorted([at.topic, at.partition] for at in member.assignment.topic_partitions)
            members.append(
                {
                    "member_id": member.member_id,
                    "instance_id": member.group_instance_id,
                    "client_id": member.client_id,
                    "host": member.host,
                    "assignment": owned,
                }
            )
        members.sort(key=lambda member: str(member["client_id"]))
        found = {
            "group": group,
            "type": told.type.name,
            "state": told.state.name,
            "assignor": told.partition_assignor,
        }
        found["members"] = members
        self.note("admin", "describe", **found)
        return found

    def wait_stable(self, group: str, members: int) -> None:
        def stable() -> bool:
            told = self.admin.describe_consumer_groups([group])[group].result(20)
            return told.state.name == "STABLE" and len(told.members) == members

        wait_until(f"{group} with {members} members", stable)

    def groups(self) -> dict[str, list[str]]:
        """Type and protocol of every group, of whatever type, as Kafka's tool lists them."""
        at = ["--bootstrap-server", self.bootstrap]
        listed = tools.run(tools.GROUP_LISTING, *at, "--list", release=self.release)
        assert listed.code == 0, listed
        return {row["GROUP"]: [row["TYPE"], row.get("PROTOCOL", "")] for row in listed.table()}


def done(futures: dict[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result(20)


class Member:
    """A consumer of librdkafka that a thread of its own keeps polling. Commits only what it is told to."""

    def __init__(self, life: Life, name: str, group: str, topics: list[str], **settings: str) -> None:
        self.life = life
        self.name = name
        self.group = group
        config: dict[str, Any] = {
            "bootstrap.servers": life.bootstrap,
            "group.id": group,
            "client.id": name,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 500,
            "log_level": 0,
        }
        config.update({key.replace("_", "."): value for key, value in settings.items()})
        if config.get("group.protocol") != "consumer":
            config.update({"session.timeout.ms": 6000, "heartbeat.interval.ms": 300})
        self.consumer = Consumer(config)
        self.consumer.subscribe(topics, on_assign=self._assigned, on_revoke=self._revoked)
        self._owned: list[list[Any]] = []
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        life.note(name, "join", group=group, topics=topics, settings=settings)
        self._thread.start()

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.life.note(self.name, "assigned", group=self.group, partitions=pairs(partitions))

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.life.note(self.name, "revoked", group=self.group, partitions=pairs(partitions))

    def _poll(self) -> None:
        while not self._ending.is_set():
            self.consumer.poll(0.05)
            self._owned = pairs(self.consumer.assignment())
            while not self._tasks.empty():
                future, task = self._tasks.get()
                try:
                    future.set_result(task())
                except BaseException as e:
                    future.set_exception(e)

    def ask(self, task: Callable[[], Any]) -> Any:
        """What the task returns, or raises, in the thread that polls: calls from two of them can lock each other."""
        future: Future[Any] = Future()
        self._tasks.put((future, task))
        return future.result(DEADLINE_S)

    def metadata(self) -> Any:
        """What a transaction must know of the group."""
        return self.ask(self.consumer.consumer_group_metadata)

    def owned(self) -> list[list[Any]]:
        return self._owned

    def positions(self) -> list[list[Any]]:
        """[topic, partition, offset] of the next message of what it owns, or -1 before the first; noted, too."""
        at = self.ask(lambda: self.consumer.position(self.consumer.assignment()))
        found = sorted([one.topic, one.partition, max(one.offset, -1)] for one in at)
        self.life.note(self.name, "positions", group=self.group, positions=found)
        return found

    def committed(self) -> list[list[Any]]:
        """[topic, partition, offset] that it is told of what it owns, -1 where there is none; noted, too."""
        at = self.ask(lambda: self.consumer.committed(self.consumer.assignment(), timeout=20))
        found = sorted([one.topic, one.partition, max(one.offset, -1)] for one in at)
        self.life.note(self.name, "committed", group=self.group, committed=found)
        return found

    def wait_owned(self, count: int) -> None:
        wait_until(f"{self.name} to own {count}", lambda: len(self.owned()) == count)

    def commit(self, *commits: Commit) -> None:
        offsets = [TopicPartition(topic, p, offset, metadata) for topic, p, offset, metadata in commits]
        for attempt in range(20):
            try:
                told = self.ask(lambda: self.consumer.commit(offsets=offsets, asynchronous=False))
            except KafkaException as e:
                if e.args[0].code() not in PASSING or attempt == 19:
                    raise
                time.sleep(0.3)
                continue
            for at in told or []:
                if at.error is not None:
                    raise KafkaException(at.error)
            break
        for commit in commits:
            self.life.note_commit(self.name, self.group, commit, "commit")

    def close(self) -> None:
        self._ending.set()
        self._thread.join(10)
        self.consumer.close()
        self.life.note(self.name, "close", group=self.group)


def pairs(partitions: list[TopicPartition]) -> list[list[Any]]:
    return sorted([at.topic, at.partition] for at in partitions)


class Victim:
    """A client in a process of its own, to be killed in the middle of what it does. See broker_victims."""

    def __init__(self, life: Life, kind: str, *args: str) -> None:
        self.life = life
        self.name = args[0]
        command = [sys.executable, "-m", "tests.data.broker_victims", kind, life.bootstrap, *args]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended before it was ready")
        self.did: dict[str, Any] = json.loads(line)
        life.note(self.name, "ready to be killed", **self.did)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self.life.note(self.name, "killed")
