"""A server that offers what brokers of earlier releases did: which versions real clients then use."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from kcoord.client import Admin
from kcoord.protocol import apis
from kcoord.testing.double.releases import RELEASES, Caps
from kcoord.testing.fixture import KcoordServer

WAIT_S = 30.0


def use(kcoord: KcoordServer) -> None:
    """Produce a record and read it in a group."""
    producer = Producer({"bootstrap.servers": kcoord.bootstrap})
    producer.produce("orders", b"1")
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer({"bootstrap.servers": kcoord.bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    message = consumer.poll(WAIT_S)
    assert message is not None and message.value() == b"1"
    consumer.close()


def versions(kcoord: KcoordServer, api: str) -> set[int]:
    return {one.version for one in kcoord.requests(api)}


@pytest.mark.parametrize("release", ["2.1", "2.8", "3.9", "4.2"])
def test_librdkafka_uses_the_versions_of_the_release(kcoord: KcoordServer, release: str) -> None:
    kcoord.offer(release)
    use(kcoord)
    caps = Caps(release)
    seen = [one for one in kcoord.requests() if one.api != "ApiVersions"]
    assert {"Produce", "Fetch", "JoinGroup", "OffsetCommit"} <= {one.api for one in seen}
    assert [one for one in seen if not caps.allows(one.request.api_key, one.version)] == []


def test_an_old_release_refuses_a_new_api_versions(kcoord: KcoordServer) -> None:
    """A client that begins with version 3 is told to begin again, as by a broker of 2.3."""
    kcoord.offer("2.3")
    use(kcoord)
    first, second = kcoord.requests("ApiVersions", connection=kcoord.requests()[0].connection)[:2]
    assert (first.version, first.errors) == (3, ["UNSUPPORTED_VERSION"])
    assert second.version < 3 and second.errors == []


async def test_the_offer_is_that_of_the_release(kcoord: KcoordServer) -> None:
    kcoord.offer("3.9")
    async with Admin(bootstrap_servers=kcoord.bootstrap) as admin:
        assert (await admin.describe_features()).finalized == {}
    kcoord.offer()
    async with Admin(bootstrap_servers=kcoord.bootstrap) as admin:
        assert (await admin.describe_features()).finalized != {}


def test_a_cluster_with_the_classic_protocol_only(kcoord: KcoordServer) -> None:
    """As with group.coordinator.rebalance.protocols=classic: the API is listed, and refused."""
    with kcoord.classic_only():
        use(kcoord)
        listed: Any = kcoord.requests("ApiVersions")[-1].answer
        assert apis.CONSUMER_GROUP_HEARTBEAT in {one.api_key for one in listed.api_keys}
        consumer = Consumer(
            {"bootstrap.servers": kcoord.bootstrap, "group.id": "billing", "group.protocol": "consumer"}
        )
        consumer.subscribe(["orders"])
        refused = kcoord.wait_request("ConsumerGroupHeartbeat", timeout=WAIT_S)
        message = consumer.poll(WAIT_S)
        assert refused.errors == ["UNSUPPORTED_VERSION"] and message is not None
        error = message.error()
        assert error is not None and error.code() == KafkaError._FATAL
        consumer.close()
    assert kcoord.faults() == []


def test_one_api_up_to_a_version(kcoord: KcoordServer) -> None:
    kcoord.offer(Fetch=11, OffsetCommit=7)
    use(kcoord)
    assert versions(kcoord, "Fetch") == {11}
    assert versions(kcoord, "OffsetCommit") == {7}


def test_reset_offers_everything_again(kcoord: KcoordServer) -> None:
    kcoord.offer("2.1")
    kcoord.reset()
    use(kcoord)
    assert max(versions(kcoord, "Fetch")) > 10


def test_releases_grow() -> None:
    """No release takes back what an earlier one had."""
    served = [(key, version) for key, api in apis.APIS.items() if api.served for version in range(api.max_version + 1)]
    before: set[tuple[int, int]] = set()
    for release in RELEASES:
        caps = Caps(release)
        offered = {each for each in served if caps.allows(*each)}
        assert before <= offered, release
        before = offered
    assert before == set(served)


def test_mistakes(kcoord: KcoordServer) -> None:
    with pytest.raises(ValueError, match="kafka_release is one of 2.1, 2.2"):
        kcoord.offer("2.0")
    with pytest.raises(ValueError, match="there is no API 'Fetches'"):
        kcoord.offer(Fetches=3)
