"""Transactions of Kafka's Java producer, which is on transaction version 2, beside what a real broker gives it.

As test_java_clients.py; `pytest tests/interop/test_java_transactions.py --target=kafka` checks the facts.
"""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest

from tests.harness import java
from tests.harness.kcoord_server import KcoordServer
from tests.harness.present import present
from tests.interop.conftest import Target
from tests.interop.test_java_clients import Report

DEADLINE_S = 280
KILLS = 4
# How many transactions a second there were: printed, not checked.
RATE = "transactions per second"

OFFSETS = {"committed": {"0": 10, "1": 10}, "copies": "20 20", "some were aborted": True}
PENDING = {
    "while pending": "TimeoutException",
    "afterwards": {"0": 1},
    "plain while pending": {"0": 1},
    "after an abort": {"0": 1},
}
ZOMBIE = {
    "an unknown member": "CommitFailedException",
    "without membership": "none",
    "the present one": "none",
    "committed": {"0": 2},
}
EXPECTED: dict[str, dict[str, Any]] = {
    "txn-commit-and-abort": {
        "committed": "7 [kept 0, kept 1, kept 2, last]",
        "uncommitted": 10,
        "ends": {"0": 12, "1": 8},
        "ends of what is committed": {"0": 12, "1": 8},
    },
    "txn-open": {
        "end while open": "{0=2} {0=0}",
        "read while open": [],
        "read uncommitted while open": ["in it", "value 0"],
        "read afterwards": ["in it", "value 0"],
    },
    "txn-offsets-classic": OFFSETS,
    "txn-offsets-consumer": OFFSETS,
    "txn-zombie-classic": {
        "an old generation": "CommitFailedException",
        "commit after it": "KafkaException by CommitFailedException",
        **ZOMBIE,
    },
    # The member still has the partitions that the older epoch gave it (KIP-1251).
    "txn-zombie-consumer": {"an old generation": "none", "commit after it": "none", **ZOMBIE},
    "txn-pending-classic": PENDING,
    "txn-pending-consumer": PENDING,
    "txn-fencing": {
        "a commit of the first": "ProducerFencedException",
        "an abort of the first": "ProducerFencedException",
        "a begin of the first": "ProducerFencedException",
        "a send when fenced": "ExecutionException by InvalidProducerEpochException",
        "a commit when fenced": "InvalidProducerEpochException",
        "read": ["of the second"],
    },
    "txn-timeout": {
        "a late commit": "InvalidTxnStateException",
        "a late abort": "KafkaException by InvalidTxnStateException",
        "read": [],
        "a timeout too large": "KafkaException",
    },
    "txn-misuse": {
        "no transaction": "IllegalStateException",
        "a record too large": "ExecutionException by RecordTooLargeException",
        "commit with it": "RecordTooLargeException",
        "read": ["better"],
    },
    "txn-wide": {"read": "600 600"},
    "txn-many": {"read": "900 900"},
    "txn-admin": {
        "new": "EMPTY",
        "described": "Ongoing 0 60000 [0]",
        "has a start": True,
        "unknown": "TransactionalIdNotFoundException",
        "by producer": ["java-admin Ongoing"],
        "by state": ["java-admin Ongoing"],
        "by pattern": ["java-admin Ongoing"],
        "by duration": [],
        "producers": "0 0 false OptionalLong[0] true",
        "fence": "none",
        "afterwards": "EMPTY",
        "a commit when fenced": "ProducerFencedException",
        "terminate": "none",
        "terminated": "EMPTY",
        "read": [],
    },
}


@pytest.fixture(scope="module")
def report(target: Target) -> Report:
    command = java.command("Scenarios", target.bootstrap, "java-", *EXPECTED, heap_mb=512)
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    return Report(done.stdout, done.stderr)


@pytest.mark.parametrize("scenario", EXPECTED)
def test_scenario(scenario: str, report: Report, target: Target) -> None:
    assert scenario not in report.errors, f"{report.errors[scenario]}\n{target.log_tail()}"
    facts = dict(report.facts.get(scenario, {}))
    assert facts.pop("milliseconds", None) is not None, f"it never ran to its end: {report.stderr[-2000:]}"
    if RATE in facts:
        print(f"{facts.pop(RATE)} {RATE}")
    assert facts == EXPECTED[scenario]


def test_every_copy_is_there_once_after_kills() -> None:
    """A consume-transform-produce loop goes on while the server is killed and started again."""
    with KcoordServer() as server:
        command = java.command("Scenarios", server.bootstrap, "java-", "txn-copies", heap_mb=512)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = [present(process.stdout).readline().strip()]
        assert json.loads(lines[0])["fact"] == "started", lines
        for number in range(KILLS):
            time.sleep(0.4 + 0.17 * number)
            server.stop(kill=True)
            server.start()
        try:
            lines += process.communicate(timeout=DEADLINE_S)[0].splitlines()
        finally:
            process.kill()
        report = Report("\n".join(line for line in lines if line.startswith("{")), "")
        assert not report.errors, f"{report.errors}\n{server.log_tail()}"
        print(report.facts)
        facts = report.facts["txn-copies"]
        assert facts["copies"] == "600 600", facts
