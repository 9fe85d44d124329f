"""Java clients at work while the server is killed with kill -9 and started again on the same directory and port.

Nothing that was acknowledged may be missing afterwards: no record that the producer saw acknowledged, no offset that
the group saw committed; and the clients go on by themselves.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tests.harness.kcoord_server import KcoordServer
from tests.interop import tools

MESSAGES = 1500
PER_SECOND = 400
DEADLINE_S = 120.0


class Events:
    """The JSON lines a running tool prints, gathered on a thread."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                with self._lock:
                    self._events.append(json.loads(line))

    def named(self, name: str) -> list[dict[str, Any]]:
        with self._lock:
            return [event for event in self._events if event["name"] == name]

    def wait_for(self, name: str, count: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while len(self.named(name)) < count:
            seen = len(self.named(name))
            assert time.monotonic() < deadline, f"{seen} events {name!r}, waited for {count}"
            time.sleep(0.02)


def committed(events: Events) -> dict[int, int]:
    """The highest offset by partition that the group saw committed."""
    highest: dict[int, int] = {}
    for event in events.named("offsets_committed"):
        if event["success"]:
            for part in event["offsets"]:
                highest[part["partition"]] = max(highest.get(part["partition"], 0), part["offset"])
    return highest


def wait_for_commits(events: Events, total: int) -> None:
    """Until the group has committed `total` records or more, over all partitions."""
    deadline = time.monotonic() + DEADLINE_S
    while sum(committed(events).values()) < total:
        assert time.monotonic() < deadline, f"{committed(events)} committed, waited for {total} in all"
        time.sleep(0.02)


def stored(at: list[str]) -> dict[int, int]:
    rows = tools.run(tools.GROUPS, *at, "--describe", "--group", "kill", "--offsets").table()
    return {int(row["PARTITION"]): int(row["CURRENT-OFFSET"]) for row in rows if row["CURRENT-OFFSET"] != "-"}


def count_of(bootstrap: str) -> int:
    """How many records there are, of which more may be than were acknowledged."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "count"})
    ends = [consumer.get_watermark_offsets(TopicPartition("kill", number), DEADLINE_S)[1] for number in range(2)]
    consumer.close()
    return sum(ends)


def test_nothing_acknowledged_is_lost_when_the_server_is_killed() -> None:
    with KcoordServer() as server:
        at = ["--bootstrap-server", server.bootstrap]
        assert tools.run(tools.TOPICS, *at, "--create", "--topic", "kill", "--partitions", "2").code == 0
        sending = ["--topic", "kill", "--max-messages", str(MESSAGES), "--throughput", str(PER_SECOND), "--acks", "-1"]
        with (
            tools.running(tools.VERIFIABLE_CONSUMER, *at, "--topic", "kill", "--group-id", "kill") as consumer,
            tools.running(tools.VERIFIABLE_PRODUCER, *at, *sending) as producer,
        ):
            reading, writing = Events(consumer), Events(producer)
            writing.wait_for("producer_send_success", 300)
            reading.wait_for("offsets_committed", 3)
            server.stop(kill=True)
            before = committed(reading)
            server.start()
            after = stored(at)
            assert all(after.get(partition, 0) >= offset for partition, offset in before.items()), (before, after)
            writing.wait_for("tool_data", 1)
            acknowledged = {event["value"] for event in writing.named("producer_send_success")}
            wait_for_commits(reading, len(acknowledged))
        arguments = ["--topic", "kill", "--from-beginning", "--max-messages", str(count_of(server.bootstrap))]
        there = tools.run(tools.CONSOLE_CONSUMER, *at, *arguments).lines
        assert len(acknowledged) > 300
        assert acknowledged <= set(there), sorted(acknowledged - set(there))[:10]
