"""The health check of the container image: the addresses that it asks, and what it calls healthy."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from kcoord.cli.main import _own_address
from kcoord.testing.fixture import KcoordServer

SCRIPT = Path(__file__).resolve().parents[2] / "docker" / "health.py"
END_SECONDS = 30.0


def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docker_health", SCRIPT)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The script as its first line runs it, with this interpreter."""
    options = SCRIPT.read_text().splitlines()[0].split()[1:]
    command = [sys.executable, *options, str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=END_SECONDS, check=False)


@contextmanager
def peer(answer: bytes) -> Iterator[str]:
    """The address of a program that answers every connection with these bytes, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(END_SECONDS)


ENVIRONMENTS: list[Mapping[str, str]] = [
    {},
    {"KCOORD_LISTEN": "0.0.0.0:9093"},
    {"KCOORD_LISTEN": ":9093"},
    {"KCOORD_LISTEN": "[::]:9093"},
    {"KCOORD_LISTEN": "[::1]:9093"},
    {"KCOORD_LISTEN": "localhost:9093,127.0.0.1:1"},
    {"KCOORD_LISTEN": " A://0.0.0.0:9093 , B://127.0.0.1:1"},
    {"KCOORD_LISTEN": "C://:9093,B://127.0.0.2:9094", "KCOORD_CONTROLLER_LISTENER_NAMES": "c"},
    {"KCOORD_LISTENERS": "127.0.0.2:9095", "KCOORD_LISTEN": "127.0.0.1:9093"},
    {"KCOORD_LISTEN": "10.1.2.3:9093", "KCOORD_LOG_SYNC": "os"},
]


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda found: " ".join(found.values()) or "none")
def test_it_asks_the_address_that_the_command_asks(
    environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("KCOORD_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    health = module()
    host, port = health.address(health.own_listener(os.environ))
    assert (f"[{host}]:{port}" if ":" in host else f"{host}:{port}") == _own_address()


def test_a_server_is_healthy() -> None:
    with KcoordServer() as server:
        for done in (
            run(server.bootstrap),
            run(f"localhost:{server.port}"),
            run(KCOORD_LISTEN=f"INTERNAL://0.0.0.0:{server.port},HOST://127.0.0.1:1"),
        ):
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_stopped_server_is_not_healthy() -> None:
    with KcoordServer() as server:
        address = server.bootstrap
    done = run(KCOORD_LISTEN=address)
    assert done.returncode == 1
    assert done.stderr.startswith(f"kcoord: {address} is not healthy: ") and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "closed without a response"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a Kafka response"),
        (b"\0\0\0\x0akcoo" + b"\0\x23" + b"\0\0\0\0", "error code 35"),
        (b"\0\0\0\x0akcoo" + b"\0\0" + b"\0\0\0\0", "no APIs"),
    ],
)
def test_something_else_is_not_healthy(answer: bytes, problem: str) -> None:
    with peer(answer) as address:
        done = run(address)
    assert done.returncode == 1 and problem in done.stderr, done.stderr


def test_a_server_that_hangs_is_not_healthy() -> None:
    """The kernel accepts connections for it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = run(f"127.0.0.1:{listener.getsockname()[1]}")
    assert done.returncode == 1 and "timed out" in done.stderr


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "nowhere", ",", "127.0.0.1:port"])
def test_an_address_that_cannot_be_asked_is_an_error(listen: str) -> None:
    done = run(KCOORD_LISTEN=listen)
    assert done.returncode == 1 and done.stderr.startswith("kcoord: ") and "Traceback" not in done.stderr


def test_it_imports_nothing_that_costs_time() -> None:
    """Engines run it every few seconds. `socket` would double its time, and so would the codec of host names."""
    command = [sys.executable, "-X", "importtime", "-I", "-S", str(SCRIPT), "localhost:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=END_SECONDS, check=False)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "_socket" in loaded
    assert not loaded & {"socket", "selectors", "encodings.idna", "stringprep", "re", "site"}
