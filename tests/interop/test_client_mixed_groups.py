"""Classic groups of our consumers with Java's and those of other libraries, with kcoord and with Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client import mixed
from tests.client.mixed import MixedGroup, check_from_eager_to_cooperative
from tests.e2e.ownership import Ownership
from tests.e2e.rolling import Member
from tests.harness.kcoord_server import KcoordServer
from tests.harness.real_broker import RealBroker
from tests.interop.conftest import Target
from tests.interop.test_java_migration import KINDS, JavaWorker


@pytest.fixture(params=["kcoord", "kafka"])
def server(request: pytest.FixtureRequest) -> Iterator[Target]:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with KcoordServer(settings) if request.param == "kcoord" else RealBroker(settings) as running:
        yield running


def begin(kind: str, bootstrap: str, group: str, topic: str, notes: Ownership) -> Member:
    if kind in KINDS:
        return JavaWorker(kind, bootstrap, group, topic, notes)
    return mixed.begin(kind, bootstrap, group, topic, notes)


def test_from_eager_to_cooperative(server: Target) -> None:
    check_from_eager_to_cooperative(
        MixedGroup(server.bootstrap, begin),
        ("java-eager", "kcoord-eager", "aiokafka", "confluent"),
        ("kcoord-both", "java-cooperative", "java-cooperative", "kcoord-both"),
        ("kcoord-cooperative", "java-cooperative-only", "confluent-cooperative", "kcoord-cooperative"),
    )


@pytest.mark.parametrize("server", ["kcoord", pytest.param("kafka", marks=pytest.mark.nightly)], indirect=True)
def test_java_leads(server: Target) -> None:
    """Java's assignor understands our members, with our older generations and our user data."""
    check_from_eager_to_cooperative(
        MixedGroup(server.bootstrap, begin),
        ("java-eager", "kcoord-eager"),
        ("java-cooperative", "kcoord-both"),
        ("java-cooperative-only", "kcoord-cooperative"),
    )
