"""Writes tests/golden/consumer/*.json.gz: what a real Kafka 4.3 broker answers to, and writes down during, the scripts
about consumer groups (tests/harness/broker_scripts_consumer*.py).

    python -m tests.golden.make_broker_answers_consumer [SCRIPT ...]
    python -m tests.golden.make_broker_answers_consumer --show SCRIPT

One file per script: an object with "script", "broker", "settings" (those of the broker, in Kafka's names), "steps" in
the form that make_broker_answers.py describes, and "batches", the records that the coordinator wrote for the script's
groups (see tests/harness/consumer_session.py). Every script runs twice, against two brokers, and what the two runs
disagree about stops the writing: it would be chance.
"""

from __future__ import annotations

import gzip
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.harness.broker_scripts_consumer import PROFILES, SCRIPTS, Profile, run
from tests.harness.compare import differences
from tests.harness.consumer_session import ConsumerSession, read_log
from tests.harness.real_broker import RealBroker
from tests.harness.session import Codec
from tests.interop.oracle import Oracle

ANSWERS = Path(__file__).resolve().parent / "consumer"

Recording = tuple[list[dict[str, Any]], list[dict[str, Any]]]


def record(name: str, broker: RealBroker, codec: Codec) -> Recording:
    """Steps and batches of one script."""
    session = ConsumerSession("127.0.0.1", broker.port, codec)
    steps = run(name, session)
    return steps, session.batches(read_log(broker.data / "__consumer_offsets-0"))


def record_profile(profile: Profile, names: list[str]) -> dict[str, Recording]:
    """The profile's scripts that are asked for, against one fresh broker."""
    with Oracle() as oracle, RealBroker(profile.settings) as broker:
        return {name: record(name, broker, oracle) for name in profile.scripts if name in names}


def lines(items: list[dict[str, Any]]) -> str:
    return ",\n".join("  " + json.dumps(item, ensure_ascii=False) for item in items)


def write(script: str, steps: list[dict[str, Any]], batches: list[dict[str, Any]]) -> None:
    settings = json.dumps(SCRIPTS[script].settings)
    head = f'{{"script": "{script}", "broker": "Apache Kafka 4.3.1",\n "settings": {settings},\n'
    text = f'{head} "steps": [\n{lines(steps)}\n ],\n "batches": [\n{lines(batches)}\n ]}}\n'
    # No time and no name in the header, so that the same answers make the same file.
    (ANSWERS / f"{script}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def read(script: str) -> dict[str, Any]:
    """A recording, as `write` wrote it."""
    made: dict[str, Any] = json.loads(gzip.decompress((ANSWERS / f"{script}.json.gz").read_bytes()))
    return made


def disagreements(script: str, first: Recording, second: Recording) -> list[str]:
    found = [str(difference) for difference in differences(script, first[0], second[0])]
    for index in range(max(len(first[1]), len(second[1]))):
        pair = [side[1][index] if index < len(side[1]) else None for side in (first, second)]
        if pair[0] != pair[1]:
            found.append(f"{script}: batch {index}:\n  {json.dumps(pair[0])}\n  {json.dumps(pair[1])}")
    return found


def main(only: list[str]) -> None:
    ANSWERS.mkdir(exist_ok=True)
    chance: list[str] = []
    for profile_name, profile in PROFILES.items():
        names = [name for name in profile.scripts if not only or name in only]
        if not names:
            continue
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(record_profile, [profile] * 2, [names] * 2)
        for name in names:
            found = disagreements(name, first[name], second[name])
            chance += found
            for line in found:
                print(line, flush=True)
            if not found:
                write(name, *first[name])
            steps, batches = first[name]
            print(
                f"{profile_name}: {name}: {len(steps)} steps, {len(batches)} batches, {len(found)} by chance",
                flush=True,
            )
    if chance:
        sys.exit(f"{len(chance)} differences by chance")


def show(script: str) -> None:
    sys.stdout.write(gzip.decompress((ANSWERS / f"{script}.json.gz").read_bytes()).decode())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--show"]:
        show(sys.argv[2])
    else:
        main(sys.argv[1:])
