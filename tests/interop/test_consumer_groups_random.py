"""A real broker and kcoord answer the same, and write the same, in random conversations about consumer groups.

A seed's conversation goes to a live broker and to an engine in this process (tests/harness/consumer_random.py). After a
failure, `run` of that seed against the engine alone shows what it did.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness import consumer_random
from tests.harness.compare import differences
from tests.harness.consumer_session import ConsumerSession, read_log
from tests.harness.engine_session import EngineSession
from tests.harness.real_broker import RealBroker
from tests.harness.session import KcoordCodec

SEEDS = 12
# Texts are our own words; a KRaft cluster sets this config dynamically.
IGNORED = ("errorMessage", "min.insync.replicas")


@pytest.fixture(scope="module")
def broker() -> Iterator[RealBroker]:
    with RealBroker(consumer_random.SETTINGS) as running:
        yield running


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_same_answers_and_records(seed: int, broker: RealBroker) -> None:
    live = ConsumerSession("127.0.0.1", broker.port, KcoordCodec())
    expected = consumer_random.run(seed, live)
    batches = live.batches(read_log(broker.data / "__consumer_offsets-0"))
    ours = EngineSession(consumer_random.SETTINGS)
    actual = consumer_random.run(seed, ours)
    found = [d for d in differences(f"seed {seed}", expected, actual) if not any(name in d.path for name in IGNORED)]
    assert not found, "\n".join(str(difference) for difference in found[:20])
    assert ours.batches(ours.stored()) == batches
