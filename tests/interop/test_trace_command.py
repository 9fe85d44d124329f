"""`kcoord trace` and `kcoord produce` with a broker of Kafka's: clients in C and Java go through the trace."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer

from kcoord.cli.main import main
from tests.e2e.process import END_SECONDS, foreground_command
from tests.harness.real_broker import RealBroker
from tests.interop import tools


@pytest.fixture(scope="module")
def broker() -> Iterator[RealBroker]:
    with RealBroker() as started:
        yield started


def consume(bootstrap: str, protocol: str, count: int) -> int:
    settings: dict[str, str | bool] = {
        "bootstrap.servers": bootstrap,
        "client.id": f"reader-{protocol}",
        "group.id": f"group-{protocol}",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    consumer.subscribe(["traced"])
    found = 0
    deadline_s = time.monotonic() + END_SECONDS
    while found < count and time.monotonic() < deadline_s:
        found += sum(message.error() is None for message in consumer.consume(count, 0.2))
    consumer.close()
    return found


def test_clients_go_through_the_trace(broker: RealBroker, tmp_path: Path) -> None:
    command = foreground_command("trace", "-b", broker.bootstrap, "--listen", "127.0.0.1:0", "-o", "json")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines: list[dict[str, Any]] = []
    assert process.stdout is not None and process.stderr is not None
    stdout = process.stdout
    reader = threading.Thread(target=lambda: lines.extend(map(json.loads, stdout)), daemon=True)
    reader.start()
    try:
        address = process.stderr.readline().split()[1]
        (tmp_path / "lines").write_text("".join(f"key-{number}:{number}\n" for number in range(50)))
        words = ["produce", "traced", str(tmp_path / "lines"), "-k", ":", "--create", "-b", address, "-o", "json"]
        result = CliRunner().invoke(main, words, catch_exceptions=False)
        assert (result.exit_code, sum(row["records"] for row in json.loads(result.stdout))) == (0, 50), result.output
        for protocol in ("classic", "consumer"):
            assert consume(address, protocol, 50) == 50
        listed = tools.run(tools.GROUPS, "--bootstrap-server", address, "--list")
        assert {"group-classic", "group-consumer"} <= set(listed.out.split()), listed
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(END_SECONDS)
        reader.join(END_SECONDS)
        process.stderr.close()
    assert process.returncode == 130
    assert {one["problem"] for one in lines} == {None}
    answered = {(one["client_id"], one["api"]) for one in lines if one["direction"] == "answer"}
    assert answered >= {("reader-classic", "JoinGroup"), ("reader-consumer", "ConsumerGroupHeartbeat")}
    assert "ListGroups" in {api for client, api in answered if client.startswith("adminclient")}
