"""`kcoord trace` as a process between librdkafka's clients and a server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, Producer

from kcoord.testing.fixture import KcoordServer
from tests.e2e.process import END_SECONDS, foreground_command


@contextmanager
def traced(kcoord: KcoordServer, *options: str, stdout: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    command = foreground_command("trace", "-b", kcoord.bootstrap, "--listen", "127.0.0.1:0", *options)
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(END_SECONDS, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline().split()[1]


def consume(bootstrap: str, count: int) -> list[bytes | None]:
    """Write and read records in a group, and commit."""
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "writer"})
    for number in range(count):
        producer.produce("orders", b"%d" % number)
    assert producer.flush(END_SECONDS) == 0
    settings: dict[str, str | bool] = {
        "bootstrap.servers": bootstrap,
        "client.id": "reader",
        "group.id": "billing",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.subscribe(["orders"])
    found: list[bytes | None] = []
    deadline_s = time.monotonic() + END_SECONDS
    while len(found) < count and time.monotonic() < deadline_s:
        found += [message.value() for message in consumer.consume(count, 0.2) if message.error() is None]
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def test_a_group_through_the_trace(kcoord: KcoordServer) -> None:
    with traced(kcoord, "-o", "json") as process:
        values = consume(address_of(process), 20)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=END_SECONDS)
    assert sorted(values, key=lambda one: int(one or b"")) == [b"%d" % number for number in range(20)]
    assert (process.returncode, "Traceback" in error) == (130, False)
    lines: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    apis = {one["api"] for one in lines if one["direction"] == "answer" and one["client_id"] == "reader"}
    assert apis >= {"JoinGroup", "SyncGroup", "Fetch", "OffsetCommit", "LeaveGroup"}
    assert {one["problem"] for one in lines} == {None}
    assert "MEMBER_ID_REQUIRED" in {name for one in lines for name in one["errors"]}
    commit = next(one for one in lines if one["api"] == "OffsetCommit" and one["direction"] == "request")
    assert commit["fields"]["group_id"] == "billing"


def test_nobody_reads_the_lines(kcoord: KcoordServer) -> None:
    reader, writer = os.pipe()
    with traced(kcoord, stdout=writer) as process:
        address = address_of(process)
        os.close(writer)
        os.close(reader)
        # The broken pipe ends the trace at its first line.
        producer = Producer({"bootstrap.servers": address, "log_level": 0})
        producer.poll(0)
        assert process.wait(END_SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
