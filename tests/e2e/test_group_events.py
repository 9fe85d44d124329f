"""A real client watches `__group_events` while others come and go, and the server is killed in between."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.e2e.process import ServerProcess, run_to_end
from tests.harness.present import present

TOPIC = "__group_events"
SECONDS = 60.0
QUICK = (
    "--set", "group.consumer.min.heartbeat.interval.ms=100", "--set", "group.consumer.heartbeat.interval.ms=200",
    "--set", "group.consumer.assignment.interval.ms=0",
)  # fmt: skip


def member(bootstrap: str, group: str, protocol: str, name: str) -> Consumer:
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "client.id": name, "log_level": 0}
    settings |= {"auto.offset.reset": "earliest", "group.protocol": protocol}
    if protocol == "classic":
        settings |= {"session.timeout.ms": 30_000, "partition.assignment.strategy": "range"}
    consumer = Consumer(settings)
    consumer.subscribe(["orders"])
    return consumer


def until_assigned(*consumers: Consumer) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        for consumer in consumers:
            consumer.poll(0.05)
        counts = [len(consumer.assignment()) for consumer in consumers]
        if sum(counts) == 4 and all(counts):
            return
    raise AssertionError([consumer.assignment() for consumer in consumers])


class Watcher:
    """Reads the topic from its beginning, without a group."""

    def __init__(self, bootstrap: str) -> None:
        self.consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "watcher", "enable.auto.commit": False, "log_level": 0}
        )
        self.seen: list[tuple[int, str, dict[str, Any]]] = []

    def read_until(self, event: str, group: str, count: int) -> None:
        """Until there are so many events of this kind and group."""
        self.consumer.assign([TopicPartition(TOPIC, 0, 0)])
        self.seen = []
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            message = self.consumer.poll(0.2)
            if message is not None and message.error() is None:
                value = json.loads(message.value() or b"")
                self.seen.append((present(message.offset()), (message.key() or b"").decode(), value))
            if len(self.of(event, group)) >= count:
                self.consumer.close()
                return
        self.consumer.close()
        raise AssertionError(self.seen)

    def of(self, event: str, group: str) -> list[dict[str, Any]]:
        return [value for _, _, value in self.seen if value["event"] == event and value["group"] == group]


def test_a_client_reads_why_groups_rebalanced(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess(data, *QUICK) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic("orders", 4, 1)]).values():
            future.result(SECONDS)
        producer = Producer({"bootstrap.servers": server.bootstrap, "log_level": 0})
        producer.produce("orders", b"x")
        producer.flush(SECONDS)
        for protocol in ("consumer", "classic"):
            one = member(server.bootstrap, protocol, protocol, "one")
            until_assigned(one)
            two = member(server.bootstrap, protocol, protocol, "two")
            until_assigned(one, two)
            two.close()
            until_assigned(one)
            one.close()
        watcher = Watcher(server.bootstrap)
        watcher.read_until("rebalance_finished", "classic", 4)
        first = watcher.seen
        for protocol in ("consumer", "classic"):
            causes = [event["cause"] for event in watcher.of("epoch_changed", protocol)]
            assert causes[0] == "member_joined" and causes[-1] == "member_left", causes
            assert causes.count("member_left") == 2, causes
            finished = watcher.of("rebalance_finished", protocol)
            assert (finished[0]["members"], finished[0]["partitions"]) == (1, 4)
            assert finished[-1]["members"] == 0
        assert any(event["members"] == 2 for event in watcher.of("rebalance_finished", "consumer"))
        assert admin.list_topics(timeout=SECONDS).topics[TOPIC].partitions.keys() == {0}
        server.kill()

    with ServerProcess(data, *QUICK) as server:
        # Nobody was in a group any more: the same events and no others, once.
        again = member(server.bootstrap, "consumer", "consumer", "three")
        until_assigned(again)
        watcher = Watcher(server.bootstrap)
        watcher.read_until("rebalance_finished", "consumer", len(
            [1 for _, _, e in first if e["event"] == "rebalance_finished" and e["group"] == "consumer"]) + 1,
        )  # fmt: skip
        assert watcher.seen[: len(first)] == first
        keys = [(key, value["event"]) for _, key, value in watcher.seen]
        assert len(keys) == len(set(keys))
        epochs = [event["epoch"] for event in watcher.of("epoch_changed", "consumer")]
        assert epochs == list(range(epochs[0], epochs[0] + len(epochs)))
        again.close()
        assert server.stop() == 0

    told = run_to_end("log", "timeline", str(data), "--group", "consumer", "-o", "json")
    assert told.returncode == 0, told.stderr
    by_log = run_to_end("log", "timeline", str(data), "--group", "consumer", "-o", "json", "--source", "log")
    assert json.loads(told.stdout)["epochs"] == json.loads(by_log.stdout)["epochs"]
