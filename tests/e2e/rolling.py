"""Rolling restarts of a group's members under load, and what must hold of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.e2e.movers import Worker
from tests.e2e.ownership import Ownership

TOPIC = GROUP = "moving"
PARTITIONS = 4
DEADLINE_S = 60.0
# How long members work between two changes.
WORK_S = 0.5


class Member(Protocol):
    """What runs in a thread or a process of its own and notes what it owns and processes; it leaves when stopped."""

    name: str
    failure: BaseException | None

    def owned(self) -> list[int]: ...

    def stop(self) -> None: ...


class Load(threading.Thread):
    """Writes "0", "1", ... to the partitions in turn until it is stopped; `acknowledged` is what the server has."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.stopping = threading.Event()
        self.acknowledged: list[str] = []
        self.start()

    def run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 1, "log_level": 0,
                "reconnect.backoff.max.ms": 200,
            }
        )  # fmt: skip
        number = 0
        while not self.stopping.is_set():
            value = str(number)
            producer.produce(
                TOPIC, value, partition=number % PARTITIONS,
                on_delivery=partial(self._delivered, value),
            )  # fmt: skip
            number += 1
            producer.poll(0.005)
        assert producer.flush(DEADLINE_S) == 0

    def _delivered(self, value: str, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acknowledged.append(value)

    def stop(self) -> None:
        self.stopping.set()
        self.join(DEADLINE_S)


class Rolling:
    """The members, of which `begin` makes one of a kind, and what is known of the group."""

    def __init__(self, bootstrap: str, begin: Callable[..., Member] = Worker) -> None:
        self.bootstrap = bootstrap
        self.begin = begin
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 200, "log_level": 0})
        self.notes = Ownership()
        self.members: list[Member] = []
        self.work_s = WORK_S

    def start(self, kind: str) -> None:
        self.members.append(self.begin(kind, self.bootstrap, GROUP, TOPIC, self.notes))
        self.wait_settled()

    def replace(self, kind: str) -> None:
        """The oldest member goes, another comes."""
        self.members.pop(0).stop()
        self.start(kind)

    def wait_settled(self) -> None:
        """Every partition has an owner, every member has partitions, and they have worked for a while."""
        end = time.monotonic() + DEADLINE_S
        while True:
            shares = [one.owned() for one in self.members]
            if all(shares) and sorted(number for share in shares for number in share) == list(range(PARTITIONS)):
                break
            self.forget_failed()
            failures = {one.name: one.failure for one in self.members if one.failure is not None}
            assert failures == {}, failures
            assert time.monotonic() < end, [(one.name, one.owned()) for one in self.members]
            time.sleep(0.01)
        time.sleep(self.work_s)

    def forget_failed(self) -> None:
        """For members that may fail."""

    def type_of_group(self) -> str:
        found: str = self.admin.describe_consumer_groups([GROUP])[GROUP].result(DEADLINE_S).type.name
        return found

    def create_topic(self) -> None:
        self.admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(DEADLINE_S)

    def check(self, load: Load) -> None:
        """Ends the load, waits until everything is processed, and ends the members."""
        load.stop()
        end = time.monotonic() + DEADLINE_S
        while not self.notes.values() >= set(load.acknowledged):
            missing = sorted(set(load.acknowledged) - self.notes.values(), key=int)
            assert time.monotonic() < end, f"{len(missing)} of {len(load.acknowledged)} lost: {missing[:20]}"
            time.sleep(0.05)
        assert len(load.acknowledged) > 100
        for one in self.members:
            one.stop()
        assert self.notes.overlaps() == []
