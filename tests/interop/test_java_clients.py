"""Kafka's Java consumer, producer and admin client against the server.

All scenarios of tests/interop/java run in one JVM; each test below compares what one of them reported with what a real
Kafka 4.3 broker gives (check with `pytest tests/interop/test_java_clients.py --target=kafka`).
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.harness import java
from tests.interop.conftest import Target

DEADLINE_S = 300
BOTH = {"groups-empty": "Empty Classic ", "groups-stable": "Stable Classic consumer"}
COMING_AND_GOING = {
    "distinct values": 120,
    "values": 120,
    "events of B": True,
    "B gave all up at once only at its end": True,
}

EXPECTED: dict[str, dict[str, Any]] = {
    **{
        f"compression-{codec}": {"received": 300, "all as sent": True}
        for codec in ("none", "gzip", "snappy", "lz4", "zstd")
    },
    "idempotent-producer": {"offsets without gap or double": True, "read in order": True},
    "acks": {
        "offset with acks 0": -1,
        "offset with acks 1": 1,
        "offset with acks all": 2,
        "values": ["acks 0", "acks 1", "acks all"],
    },
    "auto-created-topic": {"offset": 0, "partitions": 1},
    "positions": {
        "beginning": {"0": 0, "1": 0},
        "end": {"0": 10, "1": 10},
        "offset at a time": 4,
        "time at that offset": 1700000008000,
        "nothing at a late time": True,
        "position after seek": 5,
        "position at the end": 10,
        "first record after seek": "5 value 10 1700000010000",
        "records from the beginning": 20,
        "lag at the end": 0,
        "records while one is paused": 10,
        "records after resume": 10,
        "listed with": {"partitions": 2},
        "a seek beyond the end": "OffsetOutOfRangeException",
    },
    "long-poll": {"received": 1, "woken within a second": True},
    "large-records": {"too large": "RecordTooLargeException", "length through a small fetch": 900000},
    **{
        f"group-{assignor}Assignor": COMING_AND_GOING
        for assignor in ("Range", "RoundRobin", "Sticky", "CooperativeSticky")
    },
    "resume": {"distinct": 40, "received": 40},
    "commits": {
        "nothing committed": True,
        "committed by hand": "3 by hand",
        "asynchronous commit": "done [10]",
        "leader epoch stored": True,
        "metadata too large": "OffsetMetadataTooLarge",
        "generation": 1,
        "same member id": True,
    },
    "auto-commit": {"committed": 10},
    "static-members": {
        "same share": True,
        "events at the neighbour": 0,
        "the first holder's error": "FencedInstanceIdException",
    },
    "mixed-assignors": {"no common assignor": "InconsistentGroupProtocolException", "shares": [2, 2]},
    "pattern": {"topics": ["-one", "-two"]},
    "growing-topic": {"partitions": 3},
    "expired-member": {"a late commit": "CommitFailedException"},
    "standalone-commits": {"committed": "42 standalone"},
    "cluster": {
        "nodes": 1,
        "has a controller": True,
        "has a cluster id": True,
        "bootstrap is the node": True,
    },
    "topics": {
        "create": "none",
        "created partitions": 3,
        "config in the answer": "123456",
        "create again": "TopicExistsException",
        "create a bad name": "InvalidTopicException",
        "create with 0 partitions": "InvalidPartitionsException",
        "create with replication 3": "InvalidReplicationFactorException",
        "create with a bad config": "InvalidConfigurationException",
        "listed": True,
        "described partitions": 3,
        "described replicas": "1 1",
        "same id": True,
        "described by id": True,
        "describe unknown": "UnknownTopicOrPartitionException",
        "describe unknown id": "UnknownTopicIdException",
        "more partitions": "none",
        "fewer partitions": "InvalidPartitionsException",
        "partitions of unknown": "UnknownTopicOrPartitionException",
        "delete": "none",
        "delete again": "UnknownTopicOrPartitionException",
        "another id after recreation": True,
        "delete by old id": "UnknownTopicIdException",
        "delete by id": "none",
    },
    "configs": {
        "retention.ms": "1000 DYNAMIC_TOPIC_CONFIG",
        "cleanup.policy": "delete DEFAULT_CONFIG",
        "alter": "none",
        "retention.ms after": "2000",
        "cleanup.policy after": ["compact", "delete"],
        "delete a key": "none",
        "retention.ms in the end": "604800000",
        "a bad value": "InvalidConfigurationException",
        "an unknown topic": "UnknownTopicOrPartitionException",
        "the broker has configs": True,
        "listed as a resource": True,
    },
    "records": {
        "a timestamp": "5 1700000010000",
        "earliest": "0 -1",
        "latest": "10 -1",
        "max timestamp": "9 1700000018000",
        "low watermark": 4,
        "earliest after": 4,
        "beyond the end": "OffsetOutOfRangeException",
        "everything": 10,
        "still readable": 6,
    },
    "groups": {
        "all": BOTH,
        "stable": {"groups-stable": "Stable Classic consumer"},
        "empty": {"groups-empty": "Empty Classic "},
        "classic": BOTH,
        "new type": {},
        "for consumers": BOTH,
        "the older call": 1,
        "described": "Stable Classic range false",
        "member": "client-a instance-a /127.0.0.1 2",
        "coordinator": True,
        "described empty": "Empty 0",
        "described unknown": "GroupIdNotFoundException",
        "described as classic": "Stable",
        "delete a running group": "GroupNotEmptyException",
        "delete an empty group": "none",
        "delete an unknown group": "GroupIdNotFoundException",
        "after the delete": True,
    },
    "group-offsets": {
        "committed": {"0": 5, "1": 5},
        "alter in a running group": "UnknownMemberIdException",
        "delete a subscribed topic's": "GroupSubscribedToTopicException",
        "alter in an empty group": "none",
        "altered": {"0": 1, "1": 5},
        "alter for an unknown partition": "UnknownTopicOrPartitionException",
        "delete": "none",
        "left": {"0": 1},
        "of an unknown group": 0,
        "delete in an unknown group": "GroupIdNotFoundException",
    },
    "remove-members": {
        "an unknown instance": "UnknownMemberIdException",
        "a static member stays after close": 1,
        "a known instance": "none",
        "members left": 0,
    },
}


class Report:
    """What the JVM printed: facts by scenario, the stack trace of a broken one, and all else."""

    def __init__(self, stdout: str, stderr: str) -> None:
        self.stderr = stderr
        self.facts: dict[str, dict[str, Any]] = {}
        self.errors: dict[str, str] = {}
        for line in stdout.splitlines():
            entry = json.loads(line)
            if "error" in entry:
                self.errors[entry["scenario"]] = entry["error"]
            else:
                self.facts.setdefault(entry["scenario"], {})[entry["fact"]] = entry["value"]


@pytest.fixture(scope="module")
def report(target: Target) -> Report:
    command = java.command("Scenarios", target.bootstrap, "java-", *EXPECTED, heap_mb=512)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        stdout, stderr = done.stdout, done.stderr
    except subprocess.TimeoutExpired as e:
        stdout = e.stdout.decode() if isinstance(e.stdout, bytes) else e.stdout or ""
        stderr = f"ended after {DEADLINE_S} s"
    return Report(stdout, stderr)


@pytest.mark.parametrize("scenario", EXPECTED)
def test_scenario(scenario: str, report: Report, target: Target) -> None:
    assert scenario not in report.errors, f"{report.errors[scenario]}\n{target.log_tail()}"
    facts = dict(report.facts.get(scenario, {}))
    assert facts.pop("milliseconds", None) is not None, f"it never ran to its end: {report.stderr[-2000:]}"
    assert facts == EXPECTED[scenario]
