"""kcoord answers the scripted questions as the recorded Kafka broker did (make_broker_answers.py), field by field.

ALLOWED lists every difference that is meant, with its reason; one that is no longer met fails too, so that the list
stays the truth. Needs no Java; tests/interop/test_side_by_side.py checks the record against a live broker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kcoord.protocol import apis
from tests.harness import broker_scripts
from tests.harness.compare import MISSING, Difference, differences
from tests.harness.kcoord_server import KcoordServer
from tests.harness.session import KcoordCodec, Session

ANSWERS = Path(__file__).parent / "broker"


@dataclass(frozen=True)
class Allowed:
    """Differences that are meant. Every given pattern must match the whole of its text."""

    reason: str
    path: str
    script: str = ".*"
    step: str = ".*"
    api: str = ".*"
    expected: str = ".*"
    actual: str = ".*"

    def covers(self, d: Difference) -> bool:
        pairs = (
            (self.script, d.script),
            (self.step, d.step),
            (self.api, d.api),
            (self.path, d.path),
            (self.expected, str(d.expected)),
            (self.actual, str(d.actual)),
        )
        return all(re.fullmatch(pattern, text, re.DOTALL) for pattern, text in pairs)


ABSENT = re.escape(MISSING)

UNSERVED_FEATURES = r"share|streams|kraft|eligible\.leader\.replicas"
if not apis.APIS[apis.CONSUMER_GROUP_HEARTBEAT].served:
    UNSERVED_FEATURES += "|group"

ALLOWED = [
    Allowed(
        "texts are our own words",
        r".*\.(errorMessage|batchIndexErrorMessage)",
        expected="(?!None$).+",
        actual=".*",
    ),
    Allowed("documentation is in our own words", r".*\.documentation", expected="(?!None$).+", actual="(?!None$).+"),
    Allowed("APIs that kcoord does not serve are not listed", r"response\.apiKeys\[\d+\]", actual=ABSENT),
    Allowed(
        "features are not listed before what they stand for is served; one node has no quorum and no lost replicas",
        rf"response\.(supported|finalized)Features\[({UNSERVED_FEATURES})\.version\]",
        api="ApiVersions",
        actual=ABSENT,
    ),
    Allowed(
        "KIP-289: an empty group id is refused from OffsetCommit v4 on",
        r"response\.topics\[0\]\.partitions\[0\]\.errorCode",
        script="empty_group_id",
        api="OffsetCommit",
        actual="24",
    ),
    Allowed(
        "KIP-289: so the last commit that went through is that of v3",
        r".*\.committedOffset",
        script="empty_group_id",
        api="OffsetFetch",
        expected="10",
        actual="3",
    ),
    Allowed(
        "share groups are not served: their keys are refused",
        r".*\.errorCode",
        script="find_coordinator",
        expected="15",
        actual="42",
    ),
    Allowed(
        "a topic is created before the request that creates it is answered, not after",
        r"response\.topics\[\d+\](\.errorCode|\.topicId|\.partitions\[0\])",
        script="metadata",
        step="auto creation.*|a name that collides",
    ),
    Allowed(
        "a request that is malformed is told so, where Kafka answers UNKNOWN_SERVER_ERROR",
        r".*errorCode",
        script="metadata",
        expected="-1",
        actual="42",
    ),
    Allowed(
        "with a timeout of 0 the answer still waits for the result",
        r"response\.(topics|responses)\[0\]\.(errorCode|topicId|numPartitions|replicationFactor|configs.*)",
        script="create_topics|delete_topics",
        step="timeout 0",
    ),
    Allowed(
        "`__consumer_offsets` exists from the start",
        r"response\.configResources\[\d+\].*",
        script="list_config_resources",
    ),
    Allowed(
        "min.insync.replicas is a plain default; a KRaft cluster sets it as a dynamic one",
        r".*configs\[min\.insync\.replicas\].*",
    ),
    Allowed(
        "settings of share and streams groups, which are not served",
        r".*configs\[(share|streams)\..*",
        script="describe_configs|group_configs",
        actual=ABSENT,
    ),
    Allowed(
        "client metrics are not served",
        r".*configs\[(match|metrics|interval\.ms)\]",
        script="describe_configs",
        actual=ABSENT,
    ),
    Allowed(
        "every write is checked for its transactional id, not only the first one in a partition",
        r"response\.topics\[0\]\.partitions\[0\]\.errorCode",
        script="txn_offset_commit",
        step="an unknown id in the transaction of another",
        expected="0",
        actual="49",
    ),
    Allowed(
        "an InitProducerId with an older epoch is refused, and a broker aborts the current producer's transaction for it",
        r"response\.(errorCode|producerId|producerEpoch)",
        script="txn_init",
        step="an old epoch while .*|the epoch (before|of|after) the (abort|commit)|commit",
    ),
    Allowed(
        "the recorded broker's own settings file",
        r".*configs\[(node\.id|broker\.id|log\.retention\.ms)\].*",
        script="describe_configs",
        step="keys of this broker",
    ),
]


@pytest.fixture(scope="module")
def server() -> Iterator[KcoordServer]:
    with KcoordServer() as running:
        yield running


class Seen:
    """What the scripts showed, gathered over the module's tests."""

    scripts: set[str] = set()
    used: set[int] = set()


def answers(script: str) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = json.loads((ANSWERS / f"{script}.json").read_text(encoding="utf-8"))["steps"]
    return steps


@pytest.mark.parametrize("script", broker_scripts.SCRIPTS)
def test_answers_as_the_recorded_broker(script: str, server: KcoordServer) -> None:
    session = Session("127.0.0.1", server.port, KcoordCodec())
    steps = broker_scripts.run(script, session)
    unexpected = []
    for difference in differences(script, answers(script), steps):
        covering = [index for index, allowed in enumerate(ALLOWED) if allowed.covers(difference)]
        Seen.used.update(covering)
        if not covering:
            unexpected.append(str(difference))
    Seen.scripts.add(script)
    shown = "\n".join(unexpected[:40])
    assert not unexpected, f"{len(unexpected)} differences:\n{shown}\n{server.log_tail(5)}"


def test_every_allowed_difference_is_still_met() -> None:
    if Seen.scripts != set(broker_scripts.SCRIPTS):
        return  # only some scripts were asked for (or this is one of several workers)
    unmet = [allowed.reason for index, allowed in enumerate(ALLOWED) if index not in Seen.used]
    assert not unmet
