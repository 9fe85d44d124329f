"""The transactions of kcoord.client with brokers of Kafka's, as tests/client has them with kcoord.

Kafka 3.9 has transactions of version 1 only, and no KIP-848 by default.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client import consuming, rebalancing, transacting
from tests.harness.real_broker import RealBroker

OLDER = "3.9.2"


@pytest.fixture(scope="module", params=["", pytest.param(OLDER, marks=pytest.mark.nightly)])
def broker(request: pytest.FixtureRequest) -> Iterator[RealBroker]:
    with RealBroker(release=request.param) as running:
        yield running


async def test_transactions(broker: RealBroker) -> None:
    await transacting.check_transactions(broker.bootstrap, "transactions")


async def test_fencing(broker: RealBroker) -> None:
    await transacting.check_fencing(broker.bootstrap, "fencing")


async def test_fenced_while_sending(broker: RealBroker) -> None:
    await transacting.check_fenced_while_sending(broker.bootstrap, "fenced")


async def test_abortable_errors(broker: RealBroker) -> None:
    await transacting.check_abortable(broker.bootstrap, "abortable")


async def test_the_sample_of_kip_447(broker: RealBroker) -> None:
    await transacting.check_sample(broker.bootstrap, "classic" if broker.release == OLDER else "consumer")


async def test_old_generations(broker: RealBroker) -> None:
    await transacting.check_old_generation(broker.bootstrap, "classic" if broker.release == OLDER else "consumer")


async def test_the_consumer_with_an_older_broker(broker: RealBroker) -> None:
    if broker.release != OLDER:
        return
    await consuming.check_codec(broker.bootstrap, "codec", "zstd")
    await consuming.check_positions(broker.bootstrap, "positions")
    await consuming.check_commits(broker.bootstrap, "commits")
    await rebalancing.check_topic_subscription(broker.bootstrap, "classic")
