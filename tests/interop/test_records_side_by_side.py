"""The same scripts leave the same records in __consumer_offsets, on a real broker and on kcoord.

Both logs are read by Kafka's own dumper. Records are compared group by group in the order of the log; member ids are
numbered by appearance and times left out.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.harness import broker_scripts
from tests.harness.broker_scripts_groups import GROUP_LISTING_SCRIPTS, GROUP_SCRIPTS
from tests.harness.kcoord_server import KcoordServer
from tests.harness.real_broker import RealBroker
from tests.harness.session import KcoordCodec, Session
from tests.interop.dump import dump

SCRIPTS = [name for name in (*GROUP_LISTING_SCRIPTS, *GROUP_SCRIPTS) if name != "find_coordinator"]

# Groups whose records differ because kcoord means to answer differently (see test_broker_answers.ALLOWED).
LEFT_OUT = {"": "commits with an empty group id are refused from v4 on (KIP-289)"}

MEMBER_ID = re.compile(r"[\w.-]*[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Records = dict[str, list[dict[str, Any]]]


def normal(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of one group without what differs from run to run."""
    text = json.dumps(records)
    for number, member in enumerate(dict.fromkeys(MEMBER_ID.findall(text))):
        text = text.replace(member, f"<member {number}>")
    text = re.sub(r'"(commitTimestamp|currentStateTimestamp|expireTimestamp)": 1[789]\d{11}', r'"\1": 0', text)
    text = re.sub(r'"topicId": "[\w-]{22}"', '"topicId": "<id>"', text)
    made: list[dict[str, Any]] = json.loads(text)
    for record in made:
        if isinstance(record["payload"], dict) and "members" in record["payload"]["data"]:
            record["payload"]["data"]["members"].sort(key=lambda member: str(member["memberId"]))
    return made


def by_group(server: KcoordServer | RealBroker) -> Records:
    found: Records = {}
    for record in dump("--offsets-decoder", server.data / "__consumer_offsets-0" / f"{0:020d}.log"):
        found.setdefault(record["key"]["data"]["group"], []).append(record)
    return {group: normal(records) for group, records in found.items()}


def after_scripts(server: KcoordServer | RealBroker) -> Records:
    for script in SCRIPTS:
        broker_scripts.run(script, Session("127.0.0.1", server.port, KcoordCodec()))
    return by_group(server)


@pytest.fixture(scope="module")
def both() -> tuple[Records, Records]:
    with RealBroker() as broker:
        expected = after_scripts(broker)
    with KcoordServer() as server:
        actual = after_scripts(server)
    return expected, actual


def test_same_groups_have_records(both: tuple[Records, Records]) -> None:
    expected, actual = both
    assert sorted(expected) == sorted(actual)


def test_same_records(both: tuple[Records, Records]) -> None:
    expected, actual = both
    different = []
    for group, records in expected.items():
        if group in LEFT_OUT or records == actual.get(group):
            continue
        ours = actual.get(group, [])
        for index in range(max(len(records), len(ours))):
            pair = [side[index] if index < len(side) else None for side in (records, ours)]
            if pair[0] != pair[1]:
                different.append(f"{group}[{index}]:\n  Kafka  {json.dumps(pair[0])}\n  kcoord {json.dumps(pair[1])}")
    assert not different, "\n".join(different)
