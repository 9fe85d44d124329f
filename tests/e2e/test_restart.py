"""Nothing that was acknowledged is lost: over a clean stop, and over kill -9 in the middle of traffic."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka import Message
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as KafkaPartition

from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kcoord.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from kcoord.server.probe import Probe, ProbeError
from tests.e2e.process import ServerProcess
from tests.harness.ports import own_port
from tests.harness.present import present

# What a kill keeps: the page cache. So both are held to the same promise here.
SYNC_MODES = ["always", "os"]
TRAFFIC_SECONDS = 1.0
WAIT_S = 60.0


class Acknowledged:
    """What the clients were told is safe."""

    def __init__(self) -> None:
        self.values: dict[int, bytes] = {}
        self.committed: dict[str, int] = {}


async def give_up(stopping: Coroutine[None, None, None]) -> None:
    """Stop a client whose server is gone; it may want to wait for it for longer than we do."""
    with suppress(TimeoutError, KafkaError):
        await asyncio.wait_for(stopping, 1)


async def produce_until_dead(bootstrap: str, seen: Acknowledged) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, request_timeout_ms=20_000)
    await producer.start()
    number = 0
    try:
        while True:
            sent = [await producer.send("log", f"value {number + index}".encode(), partition=0) for index in range(5)]
            for future in sent:
                record = await future
                seen.values[record.offset] = f"value {number}".encode()
                number += 1
    finally:
        await give_up(producer.stop())


async def commit_until_dead(bootstrap: str, group: str, seen: Acknowledged) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False, request_timeout_ms=20_000,
    )  # fmt: skip
    await consumer.start()
    consumer.assign([TopicPartition("log", 0)])
    offset = 0
    try:
        while True:
            offset += 1
            await consumer.commit({TopicPartition("log", 0): offset})
            seen.committed[group] = offset
    finally:
        await give_up(consumer.stop())


async def check(bootstrap: str, seen: Acknowledged) -> None:
    """Every acknowledged value stands at its offset, and no group went back."""
    tp = TopicPartition("log", 0)
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        end = (await consumer.end_offsets([tp]))[tp]
        assert end > max(seen.values)
        found: dict[int, bytes] = {}
        deadline = time.monotonic() + WAIT_S
        while len(found) < end:
            assert time.monotonic() < deadline, f"read {len(found)} of {end}: up to {max(found, default=-1)}"
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found.update((record.offset, record.value) for record in records)
        assert {offset: found.get(offset) for offset in seen.values} == seen.values
        # The producer is idempotent: what was retried is there once.
        assert len(set(found.values())) == len(found)
    for group, offset in seen.committed.items():
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False) as consumer:
            consumer.assign([tp])
            assert await consumer.committed(tp) >= offset, group


@pytest.mark.parametrize("sync", SYNC_MODES)
async def test_kill_in_the_middle_of_traffic(tmp_path: Path, sync: str) -> None:
    seen = Acknowledged()

    async def traffic(server: ServerProcess) -> None:
        async with AIOKafkaProducer(bootstrap_servers=server.bootstrap) as producer:
            await producer.partitions_for("log")
        tasks = [asyncio.create_task(produce_until_dead(server.bootstrap, seen))]
        for number in range(3):
            tasks.append(asyncio.create_task(commit_until_dead(server.bootstrap, f"group-{number}", seen)))
        await asyncio.sleep(TRAFFIC_SECONDS)
        deadline = time.monotonic() + WAIT_S
        while len(seen.values) <= 20 or len(seen.committed) < 3:
            assert time.monotonic() < deadline, (len(seen.values), seen.committed)
            await asyncio.sleep(0.05)
        server.kill()
        await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, KafkaError | asyncio.CancelledError), outcome

    with ServerProcess(tmp_path / "data", "--set", f"log.sync={sync}") as server:
        await traffic(server)
    assert len(seen.values) > 20 and len(seen.committed) == 3
    for _ in range(2):  # what recovery did must hold for the next start too
        with ServerProcess(tmp_path / "data", "--set", f"log.sync={sync}") as server:
            await check(server.bootstrap, seen)
            server.kill()


def test_clients_continue_after_a_kill(tmp_path: Path) -> None:
    """The same producer and the same group member live through a kill and a restart on the same port."""
    data = tmp_path / "data"
    delivered: list[bytes] = []
    read: list[bytes] = []

    def drive(producer: ConfluentProducer, consumer: ConfluentConsumer, count: int) -> None:
        end = time.monotonic() + WAIT_S
        while len(read) < count:
            assert time.monotonic() < end, (len(read), len(delivered), count)
            producer.poll(0)
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                read.append(present(message.value()))
                consumer.commit(message=message, asynchronous=True)

    def note(value: bytes, error: ConfluentError | None, _: Message) -> None:
        if error is None:
            delivered.append(value)

    def send(producer: ConfluentProducer, first: int, count: int) -> None:
        for number in range(first, first + count):
            value = str(number).encode()
            producer.produce("live", value, on_delivery=partial(note, value))

    with ServerProcess(data, listen=f"127.0.0.1:{own_port()}") as server:
        bootstrap = server.bootstrap
        quick = {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 100, "log_level": 0}
        producer = ConfluentProducer({**quick, "enable.idempotence": True, "linger.ms": 1, "retry.backoff.ms": 50})
        consumer = ConfluentConsumer(
            {**quick, "group.id": "living", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
        consumer.subscribe(["live"])
        send(producer, 0, 100)
        drive(producer, consumer, 100)
        server.kill()
    send(producer, 100, 50)
    with ServerProcess(data, listen=bootstrap) as server:
        send(producer, 150, 50)
        drive(producer, consumer, 200)
        assert producer.flush(WAIT_S) == 0
        assert sorted(delivered, key=int) == [str(number).encode() for number in range(200)]
        assert read == [str(number).encode() for number in range(200)]
        consumer.close()
        assert server.stop() == 0


def test_a_clean_stop_answers_what_is_under_way(tmp_path: Path) -> None:
    """No commit may be stored whose client was told nothing, unless the connection was closed before it was read."""
    told: dict[str, int] = {}

    def commit_until_closed(bootstrap: str, group: str) -> None:
        """One request at a time, and everything that comes is read, up to the end of the connection."""
        with suppress(ProbeError), Probe(bootstrap, WAIT_S) as probe:
            while True:
                offset = told.get(group, 0) + 1
                topics = [OffsetCommitRequestTopic("log", bytes(16), [OffsetCommitRequestPartition(0, offset, -1, "")])]
                request = OffsetCommitRequest(group, -1, "", None, -1, topics)
                answer = probe.ask(apis.OFFSET_COMMIT, 8, request, OffsetCommitResponse)
                assert answer.topics[0].partitions[0].error_code == 0
                told[group] = offset

    def committed(bootstrap: str, group: str) -> int:
        with Probe(bootstrap) as probe:
            request = OffsetFetchRequest(group, [OffsetFetchRequestTopic("log", [0])])
            answer = probe.ask(apis.OFFSET_FETCH, 7, request, OffsetFetchResponse)
        return answer.topics[0].partitions[0].committed_offset

    with ServerProcess(tmp_path / "data") as server:
        with Probe(server.bootstrap) as probe:
            topic = CreateTopicsRequest([CreatableTopic("log", 1, 1)])
            assert probe.ask(apis.CREATE_TOPICS, 5, topic, CreateTopicsResponse).topics[0].error_code == 0
        groups = [f"group-{number}" for number in range(5)]
        clients = [Thread(target=commit_until_closed, args=(server.bootstrap, group)) for group in groups]
        for client in clients:
            client.start()
        deadline = time.monotonic() + WAIT_S
        while len(told) < 5 or min(told.values()) < 20:
            assert time.monotonic() < deadline, told
            time.sleep(0.01)
        assert server.stop() == 0
        for client in clients:
            client.join(WAIT_S)
            assert not client.is_alive()
        assert server.lines("log_recovered") == []
    with ServerProcess(tmp_path / "data") as server:
        assert {group: committed(server.bootstrap, group) for group in groups} == told
        assert server.stop() == 0
        assert server.lines("log_recovered") == []


async def test_damage_is_refused_with_file_and_offset(tmp_path: Path) -> None:
    data = tmp_path / "data"

    async def fill(bootstrap: str) -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            for number in range(20):
                await producer.send_and_wait("log", f"value {number}".encode() * 10)

    with ServerProcess(data) as server:
        await fill(server.bootstrap)
        deadline = time.monotonic() + WAIT_S
        marks = data / "recovery-point-offset-checkpoint"
        while not marks.exists() or "log 0 20" not in marks.read_text().splitlines():
            assert time.monotonic() < deadline, "the durable mark is written each second"
            await asyncio.sleep(0.05)
        server.kill()
    segment = data / "log-0" / "00000000000000000000.log"
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    with pytest.raises(AssertionError) as caught, ServerProcess(data):
        pass
    message = str(caught.value)
    assert '"exit_code": 7' in message and "00000000000000000000.log is damaged" in message
    assert "Traceback" not in message


def test_a_write_that_fails_is_not_answered_and_ends_the_server(tmp_path: Path) -> None:
    """Files may not grow beyond a limit, as on a disk that breaks: nothing acknowledged is lost by that."""
    limit = 200_000
    delivered: list[int] = []
    failed: list[str] = []

    def on_delivery(error: object, message: object) -> None:
        if error is None:
            delivered.append(message.offset())  # type: ignore[attr-defined]
        else:
            failed.append(str(error))

    with ServerProcess(tmp_path / "data") as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        producer = ConfluentProducer({"bootstrap.servers": server.bootstrap, "linger.ms": 1, "log_level": 0})
        # Some that fit, and then more than fit.
        for count in (5, 100):
            for _ in range(count):
                producer.produce("log", bytes(5000), on_delivery=on_delivery)
                producer.poll(0.005)
            if count == 5:
                assert producer.flush(WAIT_S) == 0 and not failed
        assert server.wait() == 9
        (line,) = server.lines("failed")
        assert "the log failed and the server stops" in str(line["message"])
        assert not [text for text in server.stderr if "Traceback" in text]
        # Nobody is there to tell what became of the rest.
        producer.purge()
        assert producer.flush(WAIT_S) == 0
    assert len(delivered) >= 5 and failed
    with ServerProcess(tmp_path / "data") as server:
        consumer = ConfluentConsumer({"bootstrap.servers": server.bootstrap, "group.id": "g"})
        _, end = consumer.get_watermark_offsets(KafkaPartition("log", 0), timeout=WAIT_S)
        consumer.close()
        assert end > max(delivered)
        assert server.stop() == 0
