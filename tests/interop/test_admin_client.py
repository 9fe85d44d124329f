"""The tests of the admin client against a real broker: the same results as from kcoord."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.test_admin import *  # noqa: F403
from tests.harness.real_broker import RealBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[RealBroker]:
    with RealBroker() as running:
        yield running


@pytest.fixture
def bootstrap(broker: RealBroker) -> str:
    return broker.bootstrap
