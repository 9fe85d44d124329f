"""The pytest fixtures, with clients that block and clients on an event loop."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka.admin import AdminClient, ConfigResource

from kcoord.protocol import apis
from kcoord.protocol.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kcoord.server.failures import ServerError
from kcoord.server.probe import Probe
from kcoord.testing.fixture import KcoordServer, WaitTimeout
from tests.harness.present import present

WAIT_S = 60.0


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = ConfluentProducer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, str(number).encode())
    assert producer.flush(WAIT_S) == 0


def test_blocking_clients(kcoord: KcoordServer) -> None:
    produce(kcoord.bootstrap, "orders", 5)
    consumer = ConfluentConsumer(
        {"bootstrap.servers": kcoord.bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    read: list[object] = []

    def work() -> None:
        end = time.monotonic() + WAIT_S
        while len(read) < 5 and time.monotonic() < end:
            read.extend(consumer.consume(5, 0.05))
        joined.wait(WAIT_S)
        consumer.close()  # commits

    joined = threading.Event()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    kcoord.wait_stable("billing", members=1, timeout=WAIT_S)
    joined.set()
    kcoord.wait_committed("billing", "orders", 0, 5, timeout=WAIT_S)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert kcoord.committed("billing") == {("orders", 0): 5}
    assert kcoord.state("billing") == "Empty"


async def test_clients_on_an_event_loop(kcoord: KcoordServer) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kcoord.bootstrap) as producer:
        await producer.send_and_wait("orders", b"1")
    async with AIOKafkaConsumer(
        "orders", bootstrap_servers=kcoord.bootstrap, group_id="billing", auto_offset_reset="earliest"
    ) as consumer:
        await kcoord.wait_stable_async("billing", timeout=WAIT_S)
        assert (await consumer.getone()).value == b"1"
        await consumer.commit()
        await kcoord.wait_committed_async("billing", "orders", 0, 1, timeout=WAIT_S)
        with pytest.raises(RuntimeError, match="wait_stable_async"):
            kcoord.wait_stable("billing")


def test_a_member_of_a_consumer_group_receives_its_assignment_at_once(kcoord: KcoordServer) -> None:
    """And is to ask again so soon that no test waits for it."""
    produce(kcoord.bootstrap, "orders", 1)
    with Probe(kcoord.bootstrap) as probe:
        request = ConsumerGroupHeartbeatRequest("billing", "m", 0, None, None, 60_000, ["orders"], None, None, [])
        answer = probe.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, request, ConsumerGroupHeartbeatResponse)
    assert answer.error_code == 0 and answer.heartbeat_interval_ms <= 200
    assert answer.assignment is not None
    assert [part.partitions for part in answer.assignment.topic_partitions] == [[0]]


def test_consumer_groups_are_seen(kcoord: KcoordServer) -> None:
    produce(kcoord.bootstrap, "orders", 5)
    settings = {"bootstrap.servers": kcoord.bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"}
    consumer = ConfluentConsumer({**settings, "group.protocol": "consumer", "client.id": "invoices"})
    end = time.monotonic() + WAIT_S
    consumer.subscribe(["orders"])
    seen: list[object] = []
    while not consumer.assignment():
        assert time.monotonic() < end
        seen.extend([consumer.poll(0.01)])
    seen = [message for message in seen if message is not None]
    kcoord.wait_stable("billing", members=1, timeout=WAIT_S)
    assert kcoord.state("billing") == "Stable"
    with pytest.raises(WaitTimeout) as caught:
        kcoord.wait_stable("billing", members=2, timeout=0.1)
    assert "'invoices'" in str(caught.value) and "orders[0]" in str(caught.value)
    while len(seen) < 5:
        assert time.monotonic() < end
        seen.extend(consumer.consume(5, 0.05))
    consumer.close()
    assert kcoord.committed("billing") == {("orders", 0): 5}
    assert kcoord.state("billing") == "Empty"

    by_expression = ConfluentConsumer({**settings, "group.id": "audit", "group.protocol": "consumer"})
    by_expression.subscribe(["^orders.*"])
    for number in (1, 2):  # the second of them appears when the expression was matched already
        while len(by_expression.assignment()) < number:
            by_expression.poll(0.01)
            assert time.monotonic() < end
        produce(kcoord.bootstrap, f"orders-{number}", 1)
    by_expression.close()


@pytest.mark.parametrize("_", range(3))
def test_each_test_has_an_empty_server(kcoord: KcoordServer, _: int) -> None:
    topics = AdminClient({"bootstrap.servers": kcoord.bootstrap}).list_topics(timeout=WAIT_S).topics
    assert [name for name in topics if not name.startswith("__")] == []
    assert kcoord.committed("billing") == {}
    assert kcoord.state("billing") == "Dead"
    produce(kcoord.bootstrap, "orders", 1)


def test_the_session_s_server_keeps_what_it_has(kcoord_server: KcoordServer) -> None:
    produce(kcoord_server.bootstrap, "kept", 1)
    assert "kept" in AdminClient({"bootstrap.servers": kcoord_server.bootstrap}).list_topics(timeout=WAIT_S).topics


def test_reset_takes_milliseconds_and_clients_live_on(kcoord: KcoordServer) -> None:
    producer = ConfluentProducer({"bootstrap.servers": kcoord.bootstrap})
    for _ in range(3):
        producer.produce("orders", b"1")
        assert producer.flush(WAIT_S) == 0
        # In the processor's time, which does not count what else the machine does.
        used = time.process_time()
        kcoord.reset()
        assert time.process_time() - used < 0.5


async def test_a_wait_that_fails_reports_the_last_state(kcoord: KcoordServer) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kcoord.bootstrap) as producer:
        await producer.send_and_wait("orders", b"1")
    async with AIOKafkaConsumer(
        "orders", bootstrap_servers=kcoord.bootstrap, group_id="billing", client_id="invoices",
        auto_offset_reset="earliest",
    ) as consumer:  # fmt: skip
        await consumer.getone()
        await consumer.commit()
        with pytest.raises(WaitTimeout) as caught:
            await kcoord.wait_stable_async("billing", members=2, timeout=0.3)
        message = str(caught.value)
        assert "waited 0.3 s for group 'billing' to be Stable with 2 members" in message
        assert "state: Stable" in message and "members: 1" in message and "'invoices'" in message
        assert "orders[0]" in message and "orders-0: 1" in message
        with pytest.raises(WaitTimeout, match="to commit orders-0 up to 2"):
            await kcoord.wait_committed_async("billing", "orders", 0, 2, timeout=0.1)


def test_a_server_of_one_s_own_with_settings() -> None:
    with KcoordServer({"auto.create.topics.enable": "false"}) as server:
        producer = ConfluentProducer({"bootstrap.servers": server.bootstrap, "message.timeout.ms": 500})
        errors: list[str] = []
        producer.produce("orders", b"1", on_delivery=lambda error, _: errors.append(str(error)))
        producer.flush(WAIT_S)
        assert len(errors) == 1 and errors != ["None"]


def test_a_start_that_fails_raises_and_does_not_end_the_process(kcoord_server: KcoordServer) -> None:
    taken = KcoordServer({"listeners": kcoord_server.bootstrap})
    with pytest.raises(ServerError, match="another process listens on it"):
        taken.start()


def test_a_server_that_fails_raises_and_does_not_end_the_process() -> None:
    server = KcoordServer()
    server.start()
    server._thread.call(lambda running: running.pump.fail(OSError(5, "the disk is gone")))
    present(server._thread._thread).join(WAIT_S)
    for action in (server.check, server.reset, server.stop, lambda: server.wait_stable("g", timeout=1)):
        with pytest.raises(ServerError, match="the disk is gone"):
            action()


SUITE = """
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

@pytest.mark.parametrize("number", range(6))
def test_alone(kcoord, number, worker_id):
    admin = AdminClient({"bootstrap.servers": kcoord.bootstrap})
    assert not [name for name in admin.list_topics(timeout=60).topics if not name.startswith("__")]
    admin.create_topics([NewTopic(f"topic-{number}", 1)])[f"topic-{number}"].result(10)
    print(worker_id)
"""


def pytest_run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *arguments], cwd=folder, capture_output=True, text=True, timeout=110,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )  # fmt: skip


def test_every_xdist_worker_has_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    done = pytest_run(tmp_path, "-n", "2")
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout


def test_the_plugin_loads_nothing_until_it_is_asked(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(
        "import sys\n\ndef test_nothing_loaded():\n"
        "    assert 'kcoord.testing.pytest_plugin' in sys.modules\n"
        "    assert not [name for name in sys.modules if name.startswith(('kcoord.server', 'kcoord.protocol'))]\n"
    )
    done = pytest_run(tmp_path)
    assert done.returncode == 0, done.stdout


def test_the_plugin_can_be_switched_off(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text("def test_it(kcoord): pass\n")
    done = pytest_run(tmp_path, "-p", "no:kcoord")
    assert "fixture 'kcoord' not found" in done.stdout


def test_a_stopped_server_starts_again_at_the_same_address(tmp_path: Path) -> None:
    server = KcoordServer({"log.dirs": str(tmp_path), "log.sync": "os"})
    server.start()
    with pytest.raises(RuntimeError, match="already running"):
        server.start()
    first = server.bootstrap
    produce(first, "kept", 3)
    server.stop()
    server.start()
    try:
        assert server.bootstrap == first
        admin = AdminClient({"bootstrap.servers": first})
        assert "kept" in admin.list_topics(timeout=WAIT_S).topics
    finally:
        server.stop()


def test_a_server_in_memory_starts_again_empty() -> None:
    with KcoordServer() as server:
        produce(server.bootstrap, "gone", 1)
    with server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        assert "gone" not in admin.list_topics(timeout=WAIT_S).topics


def test_a_failed_wait_shows_nothing_of_earlier_tests(kcoord: KcoordServer) -> None:
    with socket.create_connection((kcoord.host, kcoord.port), WAIT_S) as garbage:
        garbage.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert garbage.recv(1000) == b""
    with pytest.raises(WaitTimeout, match="HTTP"):
        kcoord.wait_stable("nobody", timeout=0.05)
    kcoord.reset()
    with pytest.raises(WaitTimeout) as caught:
        kcoord.wait_stable("nobody", timeout=0.05)
    assert "HTTP" not in str(caught.value)


def test_a_transactional_producer_can_begin(kcoord: KcoordServer) -> None:
    producer = ConfluentProducer({"bootstrap.servers": kcoord.bootstrap, "transactional.id": "mover"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("moved", b"value")
    producer.commit_transaction(WAIT_S)
    admin = AdminClient({"bootstrap.servers": kcoord.bootstrap})
    assert {"moved", "__transaction_state"} <= set(admin.list_topics(timeout=WAIT_S).topics)


def test_only_topics_that_are_needed_exist(kcoord: KcoordServer) -> None:
    admin = AdminClient({"bootstrap.servers": kcoord.bootstrap})
    assert set(admin.list_topics(timeout=WAIT_S).topics) == {"__consumer_offsets"}


def test_the_brokers_configs_have_what_tools_look_for(kcoord: KcoordServer) -> None:
    admin = AdminClient({"bootstrap.servers": kcoord.bootstrap})
    (future,) = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")]).values()
    found = future.result(WAIT_S)
    assert found["advertised.listeners"].value == f"PLAINTEXT://{kcoord.bootstrap}"
    assert found["listeners"].value.startswith("PLAINTEXT://127.0.0.1:")
    assert found["connections.max.idle.ms"].value == "600000"
