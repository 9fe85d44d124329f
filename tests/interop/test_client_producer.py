"""The producer of kcoord.client with a broker of Kafka's, as tests/client has it with kcoord."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.producing import check_codec, check_killed_connections
from tests.harness.real_broker import RealBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[RealBroker]:
    with RealBroker() as running:
        yield running


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_records_arrive(broker: RealBroker, codec: str | None) -> None:
    await check_codec(broker.bootstrap, f"codec-{codec}", codec)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_killed_connections(broker: RealBroker, seed: int) -> None:
    await check_killed_connections(broker.bootstrap, f"killed-{seed}", 5000, seed)
