"""Classic groups of our consumers and other libraries'. tests/interop/test_client_mixed_groups.py adds Java's."""

from __future__ import annotations

from kcoord.testing.fixture import KcoordServer
from tests.client.mixed import MixedGroup, check_from_eager_to_cooperative


def test_from_eager_to_cooperative(kcoord: KcoordServer) -> None:
    check_from_eager_to_cooperative(
        MixedGroup(kcoord.bootstrap),
        ("aiokafka", "kcoord-eager", "confluent"),
        ("kcoord-both", "kcoord-both", "kcoord-both"),
        ("kcoord-cooperative", "confluent-cooperative", "kcoord-cooperative"),
    )
