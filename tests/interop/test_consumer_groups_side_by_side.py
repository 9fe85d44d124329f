"""The recordings in tests/golden/consumer are what a live Kafka 4.3 broker answers and writes down.

kcoord is compared with them, without Java, in tests/golden/test_broker_answers_consumer.py. Here the recordings are
checked: every script runs against a broker of its kind, which is started for all scripts of that kind. CI tries one,
and `make nightly` all of them. After a change of the scripts, write the recordings anew with
`python -m tests.golden.make_broker_answers_consumer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.golden.make_broker_answers_consumer import disagreements, read, record
from tests.harness.broker_scripts_consumer import SCRIPTS, Profile
from tests.harness.real_broker import RealBroker
from tests.interop.oracle import Oracle


class Brokers:
    """One broker at a time, of the profile that was asked for last."""

    def __init__(self) -> None:
        self._profile: Profile | None = None
        self._broker: RealBroker | None = None

    def of(self, profile: Profile) -> RealBroker:
        if self._broker is None or self._profile is not profile:
            self.stop()
            self._broker = RealBroker(profile.settings)
            self._broker.__enter__()
            self._profile = profile
        return self._broker

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.stop()
            self._broker = None


@pytest.fixture(scope="module")
def brokers() -> Iterator[Brokers]:
    made = Brokers()
    yield made
    made.stop()


def samples() -> list[Any]:
    """All scripts. Those after the first are for `make nightly`."""
    first, *others = SCRIPTS
    return [first, *(pytest.param(script, marks=pytest.mark.nightly) for script in others)]


@pytest.mark.parametrize("script", samples())
def test_the_recording_is_what_a_broker_does(script: str, brokers: Brokers, oracle: Oracle) -> None:
    recorded = read(script)
    live = record(script, brokers.of(SCRIPTS[script]), oracle)
    found = disagreements(script, (recorded["steps"], recorded["batches"]), live)
    assert not found, "\n".join(found[:40])
