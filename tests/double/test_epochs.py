"""Epochs that a test makes grow, and what their clients do about it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from kcoord.client.errors import FencedInstanceId
from kcoord.testing.fixture import KcoordServer

WAIT_S = 30.0


class Reader:
    """A librdkafka consumer that polls on a thread of its own, and notes values and errors."""

    def __init__(self, kcoord: KcoordServer, **settings: Any) -> None:
        self.consumer = Consumer(
            {"bootstrap.servers": kcoord.bootstrap, "group.id": "billing", "auto.offset.reset": "earliest", **settings}
        )
        self.values: list[bytes | None] = []
        self.errors: list[KafkaError] = []
        self._changed = threading.Condition()
        self._is_over = threading.Event()
        self.consumer.subscribe(["orders"])
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._is_over.is_set():
            message = self.consumer.poll(0.05)
            with self._changed:
                error = None if message is None else message.error()
                if error is not None:
                    self.errors.append(error)
                elif message is not None:
                    self.values.append(message.value())
                self._changed.notify_all()

    def wait_value(self, value: bytes) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: value in self.values, WAIT_S), (self.values, self.errors)

    def wait_error(self) -> int:
        with self._changed:
            assert self._changed.wait_for(lambda: self.errors, WAIT_S)
            return self.errors[0].code()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(WAIT_S)
        self.consumer.close()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, kcoord: KcoordServer) -> Iterator[KcoordServer]:
    if request.param == 1:
        yield kcoord
        return
    with KcoordServer(brokers=request.param) as server:
        yield server


@pytest.mark.parametrize("cluster", [1, 2], indirect=True)
def test_a_client_takes_over_a_new_leader_epoch(cluster: KcoordServer) -> None:
    cluster.produce("orders", "1")
    reader = Reader(cluster)
    try:
        reader.wait_value(b"1")
        assert [cluster.bump_leader_epoch("orders", 0) for _ in range(2)] == [1, 2]
        cluster.produce("orders", "2")
        reader.wait_value(b"2")  # perhaps by a Fetch that has waited
        cluster.produce("orders", "3")
        reader.wait_value(b"3")
    finally:
        reader.close()
    errors = [name for one in cluster.requests("Fetch") for name in one.errors]
    assert "FENCED_LEADER_EPOCH" in errors and reader.errors == []
    last: Any = cluster.requests("Fetch")[-1].body
    assert last.topics[0].partitions[0].current_leader_epoch == 2
    with pytest.raises(LookupError, match="no partition orders-1"):
        cluster.bump_leader_epoch("orders", 1)


def test_members_move_to_a_new_group_epoch(kcoord: KcoordServer) -> None:
    kcoord.create_topic("orders", 2)
    reader = Reader(kcoord, **{"group.protocol": "consumer"})
    try:
        kcoord.wait_stable("billing", members=1)
        epoch = kcoord.bump_group_epoch("billing")
        assert kcoord.bump_group_epoch("billing") == epoch + 1
        kcoord.wait_stable("billing", members=1)
        beat = kcoord.wait_request(
            "ConsumerGroupHeartbeat", count=len(kcoord.requests("ConsumerGroupHeartbeat")) + 1, timeout=WAIT_S
        )
        answer: Any = beat.answer
        assert answer.member_epoch == epoch + 1
    finally:
        reader.close()
    with pytest.raises(LookupError, match="there is no consumer group 'shipping'"):
        kcoord.bump_group_epoch("shipping")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_whose_instance_id_is_taken(kcoord: KcoordServer, protocol: str) -> None:
    kcoord.create_topic("orders", 2)
    settings = {"heartbeat.interval.ms": 100} if protocol == "classic" else {}
    reader = Reader(kcoord, **{"group.protocol": protocol, "group.instance.id": "one", **settings})
    try:
        kcoord.wait_stable("billing", members=1)
        rival = kcoord.fence_instance("billing", "one")
        assert reader.wait_error() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)
        errors = [name for one in kcoord.requests(group="billing") for name in one.errors]
        if protocol == "classic":
            assert "FENCED_INSTANCE_ID" in errors
        else:
            # librdkafka names its instance id only when it joins.
            assert errors == ["UNKNOWN_MEMBER_ID", "UNRELEASED_INSTANCE_ID"]
            sent: list[Any] = [one.body for one in kcoord.requests("ConsumerGroupHeartbeat")]
            assert {(one.member_epoch == 0, one.instance_id) for one in sent} == {(True, "one"), (False, None)}
        kcoord.wait_members("billing", 1)
        assert kcoord.remove_member("billing", instance_id="one") == rival
        kcoord.wait_empty("billing")
    finally:
        reader.close()
    with pytest.raises(LookupError, match="no member with the instance id 'one'"):
        kcoord.fence_instance("billing", "one")


def test_a_member_of_a_consumer_group_that_names_its_instance_id(kcoord: KcoordServer) -> None:
    """As Java's client does with each heartbeat."""
    kcoord.create_topic("orders", 2)
    phantom = kcoord.phantom("billing", ["orders"], protocol="consumer", instance_id="one")
    phantom.wait_assigned(2, WAIT_S)
    kcoord.fence_instance("billing", "one")
    assert isinstance(phantom.wait_over(WAIT_S), FencedInstanceId)


def test_a_transaction_is_aborted(kcoord: KcoordServer) -> None:
    producer = Producer(
        {"bootstrap.servers": kcoord.bootstrap, "transactional.id": "one", "metadata.recovery.strategy": "none"}
    )
    producer.init_transactions(WAIT_S)
    with pytest.raises(LookupError, match="no transaction of 'one' is open"):
        kcoord.abort_transaction("one")
    producer.begin_transaction()
    producer.produce("orders", b"1")
    producer.flush(WAIT_S)
    assert kcoord.abort_transaction("one") > 0
    assert len(kcoord.records("orders")) == 1
    assert kcoord.records("orders", isolation="read_committed") == []
    with pytest.raises(KafkaException) as failure:
        producer.commit_transaction(WAIT_S)
    assert failure.value.args[0].fatal()
    kcoord.produce("orders", "2")
    assert [one.text for one in kcoord.records("orders", isolation="read_committed")] == ["2"]
