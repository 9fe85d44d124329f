"""Consumer groups (KIP-848) with Kafka's Java consumer and admin client, beside what a real broker gives them.

As test_java_clients.py; `pytest tests/interop/test_java_consumer_protocol.py --target=kafka` checks the facts.
"""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.harness import java
from tests.interop.conftest import Target
from tests.interop.test_java_clients import Report

DEADLINE_S = 200
EXPECTED: dict[str, dict[str, Any]] = {
    "consumer-uniform": {
        "distinct values": 120,
        "values": 120,
        "B gave all up at once only at its end": True,
        "afterwards": "Empty uniform",
    },
    "consumer-range": {
        "distinct values": 120,
        "values": 120,
        "B gave all up at once only at its end": True,
        "afterwards": "Empty uniform",
    },
    "consumer-assignor": {
        "an unknown assignor": "UnsupportedAssignorException",
        "the preferred one": "range",
    },
    "consumer-pattern": {
        "topics": [0, 1],
        "a bad expression": "InvalidRegularExpression",
    },
    "consumer-growing-topic": {
        "given up at once": True,
    },
    "consumer-static": {
        "same share": True,
        "events at the neighbour": 0,
        "the second holder's error": "UnreleasedInstanceIdException",
        "the first holder's error": "none",
    },
    "consumer-close": {
        "left": {
            " DEFAULT": "[]",
            " LEAVE_GROUP": "[]",
            " REMAIN_IN_GROUP": "[]",
            "static DEFAULT": "[static -2]",
            "static LEAVE_GROUP": "[]",
            "static REMAIN_IN_GROUP": "[static -2]",
        },
    },
    "consumer-expired": {
        "after the group's own session timeout": True,
        "a late commit": "CommitFailedException",
    },
    "consumer-commits": {
        "first": 5,
        "committed": 5,
        "generation is the member epoch": True,
        "the rest begins with": "value 5",
        "committed at close": 20,
    },
    "consumer-admin": {
        "listed": {"-classic": "Stable Classic consumer", "-running": "Stable Consumer consumer"},
        "of the type": {"-running": "Stable Consumer consumer"},
        "for consumers": {"-classic": "Stable Classic consumer", "-running": "Stable Consumer consumer"},
        "described": [
            "Stable Consumer uniform false epochs true",
            "client-a instance-a rack-a /127.0.0.1 2 target true at group's epoch true upgraded true",
            "client-b ? ? /127.0.0.1 2 target true at group's epoch true upgraded true",
        ],
        "both kinds": "Consumer Classic",
        "described as classic": "GroupIdNotFoundException",
        "delete": "GroupNotEmptyException",
        "alter offsets": "UnknownMemberIdException",
        "delete offsets": "GroupSubscribedToTopicException",
        "remove a static member": "none",
        "the removed one": "none",
        "empty": ["Empty Consumer uniform false epochs false"],
        "alter offsets of an empty group": "none",
        "delete an empty group": "none",
        "in the end": {"-classic": "Empty Classic consumer"},
    },
    "consumer-mixed": {
        "mixed": [
            "Stable Consumer uniform false epochs true",
            "new ? ? /127.0.0.1 2 target true at group's epoch true upgraded true",
            "old ? ? /127.0.0.1 2 target true at group's epoch true upgraded false",
        ],
        "downgraded": "Classic Stable",
        "after an empty one": "Consumer",
    },
}


@pytest.fixture(scope="module")
def report(quick_target: Target) -> Report:
    command = java.command("Scenarios", quick_target.bootstrap, "java-", *EXPECTED, heap_mb=512)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        stdout, stderr = done.stdout, done.stderr
    except subprocess.TimeoutExpired as e:
        stdout = e.stdout.decode() if isinstance(e.stdout, bytes) else e.stdout or ""
        stderr = f"ended after {DEADLINE_S} s"
    return Report(stdout, stderr)


@pytest.mark.parametrize("scenario", EXPECTED)
def test_scenario(scenario: str, report: Report, quick_target: Target) -> None:
    assert scenario not in report.errors, f"{report.errors[scenario]}\n{quick_target.log_tail()}"
    facts = dict(report.facts.get(scenario, {}))
    assert facts.pop("milliseconds", None) is not None, f"it never ran to its end: {report.stderr[-2000:]}"
    assert facts == EXPECTED[scenario]
