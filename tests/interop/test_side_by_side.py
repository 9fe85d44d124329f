"""The recorded answers in tests/golden/broker are what a live Kafka 4.3 broker gives.

kcoord is compared with the record, without Java, in tests/golden/test_broker_answers.py. Here the record itself is
checked: every script runs against a broker started for it, through Kafka's own codec. After a change of the scripts,
write the record anew with `python -m tests.golden.make_broker_answers`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.golden.make_broker_answers import ANSWERS
from tests.harness import broker_scripts
from tests.harness.compare import differences
from tests.harness.real_broker import RealBroker
from tests.harness.session import Session
from tests.interop.oracle import Oracle


@pytest.fixture(scope="module")
def broker() -> Iterator[RealBroker]:
    with RealBroker() as running:
        yield running


@pytest.mark.parametrize("script", broker_scripts.SCRIPTS)
def test_the_record_is_what_a_broker_answers(script: str, broker: RealBroker, oracle: Oracle) -> None:
    recorded = json.loads((ANSWERS / f"{script}.json").read_text(encoding="utf-8"))["steps"]
    steps = broker_scripts.run(script, Session("127.0.0.1", broker.port, oracle))
    assert [step["step"] for step in steps] == [step["step"] for step in recorded]
    found = [str(difference) for difference in differences(script, recorded, steps)]
    assert not found, "\n".join(found[:40])
