"""The recordings in tests/golden/consumer are what a live Kafka 4.3 broker answers and writes down.

kcoord is compared with them, without Java, in tests/golden/test_broker_answers_consumer.py. Here the recordings are
checked: all scripts of a kind of broker run against one that is started for them. After a change of the scripts, write
the recordings anew with `python -m tests.golden.make_broker_answers_consumer`.
"""

from __future__ import annotations

import pytest

from tests.golden.make_broker_answers_consumer import disagreements, read, record_profile
from tests.harness.broker_scripts_consumer import PROFILES


@pytest.mark.parametrize("profile", PROFILES)
def test_the_recordings_are_what_a_broker_does(profile: str) -> None:
    scripts = list(PROFILES[profile].scripts)
    found = []
    for name, live in record_profile(PROFILES[profile], scripts).items():
        recorded = read(name)
        found += disagreements(name, (recorded["steps"], recorded["batches"]), live)
    assert not found, "\n".join(found[:40])
