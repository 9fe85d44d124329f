"""kcoord answers the scripts about consumer groups as the recorded Kafka broker did, and writes the same records.

Every script runs against an engine of its own in this process, under a virtual clock, with the settings that the
recorded broker had (make_broker_answers_consumer.py). Answers are compared field by field, records batch by batch.
ALLOWED and ALLOWED_BATCHES list every difference that is meant, with its reason; one that is no longer met fails too.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.golden.make_broker_answers_consumer import ANSWERS, read
from tests.golden.test_broker_answers import Allowed
from tests.harness.broker_scripts_consumer import SCRIPTS, run
from tests.harness.compare import differences
from tests.harness.engine_session import EngineSession

UNIFORM = "uniform moves no more partitions than a broker's and makes the same sizes, but may choose others"

ALLOWED = [
    Allowed(
        "texts are our own words",
        r".*\.(errorMessage|batchIndexErrorMessage)",
    ),
    Allowed(
        "min.insync.replicas is a plain default; a KRaft cluster sets it as a dynamic one",
        r".*configs\[min\.insync\.replicas\].*",
        api="CreateTopics",
    ),
    Allowed(
        "an epoch without a member id is refused as a member that is unknown, where Kafka fails on the null",
        r"response\.groups\[0\]\.errorCode",
        script="consumer_fetches",
        step="no member, its epoch",
        expected="-1",
        actual="25",
    ),
    Allowed(
        "a group whose members' assignments cannot be read is refused like one whose subscriptions cannot",
        r"response\.errorCode",
        script="consumer_upgrade_refused",
        step="A joins cmr-assignment-garbage",
        expected="-1",
        actual="69",
    ),
    Allowed(
        UNIFORM,
        r"response\..*[aA]ssignment\.topicPartitions\[0\]\.partitions\[\d+\]",
        script="consumer_even_shares",
        expected=r"\d+",
        actual=r"\d+",
    ),
    Allowed(
        UNIFORM,
        r"response\..*[aA]ssignment(\.topicPartitions\[0\]\.partitions\[\d+\])?",
        script="consumer_uneven_shares",
    ),
]

# Batches that are meant to differ: (script, index in the recording) to the reason.
ALLOWED_BATCHES: dict[tuple[str, int], str] = {
    **{("consumer_even_shares", index): UNIFORM for index in (*range(14, 20), 23, 24, 25)},
    **{("consumer_uneven_shares", index): UNIFORM for index in (3, 4, 13, 14, 17, *range(19, 23), 24, 29, 30, 31)},
}


class Seen:
    """What the scripts showed, gathered over the module's tests."""

    scripts: set[str] = set()
    used: set[int] = set()
    batches: set[tuple[str, int]] = set()


def unexpected_answers(script: str, expected: list[dict[str, Any]], actual: list[dict[str, Any]]) -> list[str]:
    assert [step["step"] for step in actual] == [step["step"] for step in expected]
    found = []
    for difference in differences(script, expected, actual):
        covering = [index for index, allowed in enumerate(ALLOWED) if allowed.covers(difference)]
        Seen.used.update(covering)
        if not covering:
            found.append(str(difference))
    return found


def unexpected_batches(script: str, expected: list[dict[str, Any]], actual: list[dict[str, Any]]) -> list[str]:
    found = []
    for index in range(max(len(expected), len(actual))):
        kafka, ours = (side[index]["records"] if index < len(side) else [] for side in (expected, actual))
        if kafka == ours:
            continue
        if (script, index) in ALLOWED_BATCHES:
            Seen.batches.add((script, index))
            continue
        found.append(f"{script}: batch {index}: {len(kafka)} records by Kafka, {len(ours)} by kcoord")
        for at in range(max(len(kafka), len(ours))):
            pair = [side[at] if at < len(side) else None for side in (kafka, ours)]
            if pair[0] != pair[1]:
                found.append(f"  Kafka  {json.dumps(pair[0])}\n  kcoord {json.dumps(pair[1])}")
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_answers_and_records_as_the_recorded_broker(script: str) -> None:
    recorded = read(script)
    assert recorded["settings"] == SCRIPTS[script].settings
    session = EngineSession(SCRIPTS[script].settings)
    steps = run(script, session)
    found = unexpected_answers(script, recorded["steps"], steps)
    found += unexpected_batches(script, recorded["batches"], session.batches(session.stored()))
    Seen.scripts.add(script)
    assert not found, f"{len(found)} differences:\n" + "\n".join(found[:40])


def test_every_script_is_recorded_and_nothing_else() -> None:
    assert sorted(path.name.removesuffix(".json.gz") for path in ANSWERS.iterdir()) == sorted(SCRIPTS)


def test_every_allowed_difference_is_still_met() -> None:
    if Seen.scripts != set(SCRIPTS):
        return  # only some scripts were asked for (or this is one of several workers)
    unmet = [allowed.reason for index, allowed in enumerate(ALLOWED) if index not in Seen.used]
    unmet += [reason for at, reason in ALLOWED_BATCHES.items() if at not in Seen.batches]
    assert not unmet
