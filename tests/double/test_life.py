"""Restarts, kills, power cuts and snapshots, with real clients that live through them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer

from kcoord.server.failures import ServerError
from kcoord.testing.double.exchanges import Exchange
from kcoord.testing.fixture import KcoordServer
from tests.harness.present import present

WAIT_S = 30.0


@pytest.fixture(params=["memory", "os", "always", "disk"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KcoordServer]:
    """Where the data is: with log.sync = memory, on a disk in memory, and on a real disk."""
    if request.param == "disk":
        made = KcoordServer({"log.dirs": str(tmp_path), "log.sync": "always"})
    else:
        made = KcoordServer({"log.sync": request.param}, memory_disk=request.param != "memory")
    made.start()
    yield made
    made.stop()


def values(server: KcoordServer, topic: str) -> list[bytes | None]:
    return [record.value for record in server.records(topic)]


class Writer:
    """A producer in a thread. `acknowledged` has the values whose writes were confirmed."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: list[bytes] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(bootstrap, topic), daemon=True)
        self._thread.start()

    def _run(self, bootstrap: str, topic: str) -> None:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True,
                "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50,
            }
        )  # fmt: skip
        number = 0
        while not self._is_over.is_set():
            producer.produce(topic, b"%d" % number, on_delivery=self._delivered)
            number += 1
            producer.poll(0.001)
        producer.flush(WAIT_S)

    def _delivered(self, error: object, message: object) -> None:
        if error is None:
            self.acknowledged.append(message.value())  # type: ignore[attr-defined]

    def wait_for(self, count: int) -> None:
        end = time.monotonic() + WAIT_S
        while len(self.acknowledged) < count:
            assert time.monotonic() < end, f"{len(self.acknowledged)} of {count} acknowledged"
            time.sleep(0.005)

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


def test_a_restart_keeps_everything(server: KcoordServer) -> None:
    address = server.bootstrap
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": "t"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("orders", b"1")
    producer.commit_transaction(WAIT_S)
    server.commit("billing", {("orders", 0): 1})
    server.restart()
    assert server.bootstrap == address
    assert values(server, "orders") == [b"1"]
    assert server.committed("billing") == {("orders", 0): 1}
    # The client reconnects and goes on.
    producer.begin_transaction()
    producer.produce("orders", b"2")
    producer.commit_transaction(WAIT_S)
    assert [record.value for record in server.records("orders", isolation="read_committed")] == [b"1", b"2"]
    server.restart()
    assert values(server, "orders") == [b"1", b"2"]


def test_a_kill_keeps_what_was_acknowledged(server: KcoordServer) -> None:
    server.create_topic("orders")
    writer = Writer(server.bootstrap, "orders")
    for count in (20, 200, 400):
        writer.wait_for(count)
        server.kill()
        assert not server.is_running
        with pytest.raises(ServerError, match="the server is not running"):
            server.topics()
        acknowledged = list(writer.acknowledged)
        server.start()
        found = values(server, "orders")
        assert set(acknowledged) <= set(found)
        # An idempotent producer repeats what was not acknowledged, and every record is there once.
        assert len(found) == len(set(found))
    writer.end()
    found = values(server, "orders")
    assert len(found) == len(set(found)) and set(writer.acknowledged) <= set(found)


def test_a_kill_cuts_connections(kcoord: KcoordServer) -> None:
    """Without an answer to the request that was read."""
    kcoord.create_topic("orders")
    hold = kcoord.hold("Produce")
    producer = Producer({"bootstrap.servers": kcoord.bootstrap, "message.timeout.ms": 1000, "retries": 0})
    failed: list[object] = []
    producer.produce("orders", b"1", on_delivery=lambda error, _: failed.append(error))
    producer.poll(0.1)
    hold.wait()
    kcoord.kill()
    producer.flush(WAIT_S)
    assert len(failed) == 1 and failed[0] is not None
    kcoord.start()
    hold.release()
    assert values(kcoord, "orders") == []


def test_the_next_test_has_a_server_1(kcoord: KcoordServer) -> None:
    kcoord.kill()


def test_the_next_test_has_a_server_2(kcoord: KcoordServer) -> None:
    assert kcoord.topics() == {}


def test_a_power_cut_takes_what_was_not_synced() -> None:
    with KcoordServer(memory_disk=True) as server:
        server.create_topic("orders")
        writer = Writer(server.bootstrap, "orders")
        writer.wait_for(100)
        server.kill(power_cut=True)
        acknowledged = list(writer.acknowledged)
        server.start()
        assert set(acknowledged) <= set(values(server, "orders"))
        writer.end()
    with KcoordServer({"log.sync": "os"}, memory_disk=True) as server:
        server.produce("orders", b"1")
        server.kill(power_cut=True)
        server.start()
        # Nothing was closed and so synced since the start.
        assert server.topics() == {}
        server.produce("orders", b"2")
        server.stop()
        # A clean stop syncs.
        server.start()
        server.kill(power_cut=True)
        server.start()
        assert values(server, "orders") == [b"2"]
    with KcoordServer() as server:
        server.produce("orders", b"1")
        server.kill(power_cut=True)
        server.start()
        assert server.topics() == {}


def test_a_real_disk_has_no_power_cut(tmp_path: Path) -> None:
    with KcoordServer({"log.dirs": str(tmp_path), "log.sync": "os"}) as server:
        with pytest.raises(ValueError, match="memory_disk=True"):
            server.kill(power_cut=True)
        server.produce("orders", b"1")
        with pytest.raises(ValueError, match="only a server with log.sync = memory can be copied"):
            server.snapshot()
    with pytest.raises(ValueError, match="log.sync = always or os"):
        KcoordServer({"log.sync": "memory"}, memory_disk=True)


def test_a_stop_forgets_what_is_in_memory_also_after_a_restart(kcoord: KcoordServer) -> None:
    kcoord.produce("orders", b"1")
    kcoord.restart()
    kcoord.reset()
    kcoord.produce("other", b"1")
    kcoord.restart()
    assert kcoord.topics() == {"other": 1}
    kcoord.stop()
    kcoord.start()
    assert kcoord.topics() == {}


async def test_restart_on_an_event_loop(kcoord: KcoordServer) -> None:
    with pytest.raises(RuntimeError, match="_async"):
        kcoord.restart()
    async with AIOKafkaProducer(bootstrap_servers=kcoord.bootstrap, request_timeout_ms=2000) as producer:
        await producer.send_and_wait("orders", b"1")
        await kcoord.restart_async()
        await asyncio.wait_for(producer.send_and_wait("orders", b"2"), WAIT_S)
    assert values(kcoord, "orders") == [b"1", b"2"]


def sent_by(client: str, kcoord: KcoordServer) -> list[Exchange]:
    """Requests of this kind of client: one of another test may still look for its own server at this port."""
    return [request for request in kcoord.requests() if client in request.client_id]


async def test_a_snapshot_comes_back_as_often_as_it_is_restored(kcoord: KcoordServer) -> None:
    kcoord.create_topic("orders", partitions=2, configs={"retention.ms": 1000_000_000})
    kcoord.produce("orders", [b"1", b"2"], partition=1)
    kcoord.commit("billing", {("orders", 1): 1})
    snapshot = kcoord.snapshot()
    async with AIOKafkaProducer(bootstrap_servers=kcoord.bootstrap) as producer:
        for _ in range(3):
            await asyncio.wait_for(producer.send_and_wait("orders", b"3", partition=1), WAIT_S)
            kcoord.produce("more", b"1")
            kcoord.commit("billing", {("orders", 1): 3})
            assert values(kcoord, "orders") == [b"1", b"2", b"3"] and sent_by("aiokafka", kcoord)
            kcoord.restore(snapshot)
            assert kcoord.topics() == {"orders": 2} and sent_by("aiokafka", kcoord) == []
            assert kcoord.committed("billing") == {("orders", 1): 1}
            async with AIOKafkaConsumer(
                "orders", bootstrap_servers=kcoord.bootstrap, group_id="billing", auto_offset_reset="earliest",
            ) as consumer:  # fmt: skip
                assert (await asyncio.wait_for(consumer.getone(), WAIT_S)).value == b"2"
                assert consumer.highwater(next(iter(consumer.assignment()))) in (0, 2)
            kcoord.restore(snapshot)
    with KcoordServer() as other:
        other.restore(snapshot)
        assert values(other, "orders") == [b"1", b"2"]


def test_a_snapshot_has_all_that_was_acknowledged(kcoord: KcoordServer) -> None:
    """Also what waits for the next commit: the end of a transaction."""
    producer = Producer({"bootstrap.servers": kcoord.bootstrap, "transactional.id": "t"})
    producer.init_transactions(WAIT_S)
    for number in range(20):
        producer.begin_transaction()
        producer.produce("orders", b"%d" % number)
        producer.commit_transaction(WAIT_S)
        snapshot = kcoord.snapshot()
        with KcoordServer() as other:
            other.restore(snapshot)
            assert len(other.records("orders", isolation="read_committed")) == number + 1


@pytest.mark.parametrize("by", ["reset", "restore"])
def test_no_two_producers_have_one_id(kcoord: KcoordServer, by: str) -> None:
    """A producer that lives on keeps its id, and must not hide the records of a new one."""
    settings = {"bootstrap.servers": kcoord.bootstrap, "enable.idempotence": True}
    snapshot = kcoord.snapshot()
    old = Producer(settings)
    old.produce("orders", b"0")
    assert old.flush(WAIT_S) == 0
    for number in (1, 2):
        if by == "reset":
            kcoord.reset()
        else:
            kcoord.restore(snapshot)
        new = Producer(settings)
        for producer in (old, new, old):
            producer.produce("orders", b"%d" % number)
            assert producer.flush(WAIT_S) == 0
        assert values(kcoord, "orders") == [b"%d" % number] * 3


def test_a_consumer_lives_through_a_kill(kcoord: KcoordServer) -> None:
    kcoord.produce("orders", [b"1", b"2"])
    consumer = Consumer(
        {
            "bootstrap.servers": kcoord.bootstrap, "group.id": "billing", "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "reconnect.backoff.max.ms": 100,
        }
    )  # fmt: skip
    consumer.subscribe(["orders"])
    assert present(consumer.poll(WAIT_S)).value() == b"1"
    consumer.commit(asynchronous=False)
    kcoord.kill()
    with pytest.raises(KafkaException):
        consumer.list_topics(timeout=0.5)
    kcoord.start()
    assert kcoord.committed("billing") == {("orders", 0): 1}
    kcoord.produce("orders", b"3")
    found: list[bytes | None] = []
    end = time.monotonic() + WAIT_S
    while len(found) < 2 and time.monotonic() < end:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value())
    assert found == [b"2", b"3"]
    consumer.commit(asynchronous=False)
    assert kcoord.lag("billing") == 0
    consumer.close()
