"""The producer's transactions with kcoord. tests/interop/test_client_transactions.py has the same with Kafka."""

from __future__ import annotations

import pytest

from kcoord.client.producer import transactions
from kcoord.testing.fixture import KcoordServer
from tests.client import transacting


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The version of transactions that the producer uses; for version 1 it overlooks the level of the cluster."""
    if request.param == 1:
        monkeypatch.setattr(transactions, "V2", 99)
    found: int = request.param
    return found


async def test_transactions(kcoord: KcoordServer, version: int) -> None:
    await transacting.check_transactions(kcoord.bootstrap, "t")


async def test_fencing(kcoord: KcoordServer, version: int) -> None:
    await transacting.check_fencing(kcoord.bootstrap, "t")


async def test_fenced_while_sending(kcoord: KcoordServer, version: int) -> None:
    await transacting.check_fenced_while_sending(kcoord.bootstrap, "t")


async def test_abortable_errors(kcoord: KcoordServer, version: int) -> None:
    await transacting.check_abortable(kcoord.bootstrap, "t")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_the_sample_of_kip_447(kcoord: KcoordServer, version: int, protocol: str) -> None:
    await transacting.check_sample(kcoord.bootstrap, protocol)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_old_generations(kcoord: KcoordServer, version: int, protocol: str) -> None:
    await transacting.check_old_generation(kcoord.bootstrap, protocol)
