"""The consumer of kcoord.client with a broker of Kafka's, as tests/client has it with kcoord."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client import consuming
from tests.harness.real_broker import RealBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[RealBroker]:
    with RealBroker() as running:
        yield running


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_codecs(broker: RealBroker, codec: str | None) -> None:
    await consuming.check_codec(broker.bootstrap, f"codec-{codec}", codec)


async def test_positions(broker: RealBroker) -> None:
    await consuming.check_positions(broker.bootstrap, "positions")


async def test_iteration(broker: RealBroker) -> None:
    await consuming.check_iteration(broker.bootstrap, "iteration")


async def test_commits(broker: RealBroker) -> None:
    await consuming.check_commits(broker.bootstrap, "commits")


async def test_resets(broker: RealBroker) -> None:
    await consuming.check_resets(broker.bootstrap, "resets")


async def test_isolation(broker: RealBroker) -> None:
    await consuming.check_isolation(broker.bootstrap, "isolation")


async def test_deserializers(broker: RealBroker) -> None:
    await consuming.check_deserializers(broker.bootstrap, "deserializers")


async def test_memory(broker: RealBroker) -> None:
    await consuming.check_memory(broker.bootstrap, "memory")


async def test_group_ids(broker: RealBroker, caplog: pytest.LogCaptureFixture) -> None:
    await consuming.check_group_ids(broker.bootstrap, "group-ids", caplog)
