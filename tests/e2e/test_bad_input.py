"""Bytes that are no requests cost their own connection and one line, and nobody else anything."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Iterator

import pytest

from kcoord.protocol import apis
from kcoord.protocol.metadata import MetadataRequest, MetadataResponse
from kcoord.server.probe import Probe
from tests.e2e.process import ServerProcess

METADATA_VERSION = 12
WAIT_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(None) as running:
        yield running
        assert running.stop() == 0


def ask_metadata(probe: Probe) -> None:
    answer = probe.ask(apis.METADATA, METADATA_VERSION, MetadataRequest(None), MetadataResponse)
    assert len(answer.brokers) == 1


def closed_after(server: ServerProcess, data: bytes) -> bytes:
    """What the server says before it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as raw:
        raw.sendall(data)
        received = b""
        try:
            while part := raw.recv(65536):
                received += part
        except ConnectionResetError:
            pass
        return received


def request(api_key: int, version: int, body: bytes = b"", client: bytes = b"\0\0") -> bytes:
    head = api_key.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + bytes(4) + client
    return (len(head) + len(body)).to_bytes(4, "big") + head + body


CASES = {
    "http": (b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n", "HTTP"),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50), "TLS"),
    "oversized frame": ((1 << 30).to_bytes(4, "big") + b"\0\x03\0\0" + bytes(20), "at most"),
    "negative frame": (b"\xff\xff\xff\xff" + bytes(20), "frame of -1 bytes"),
    "tiny frame": (b"\0\0\0\1\0\0\0\0\0", "frame of 1 bytes"),
    "unknown api": (request(999, 0), "unknown api key 999"),
    "unknown version": (request(apis.HEARTBEAT, 99), "Heartbeat version 99"),
    "negative version": (request(apis.HEARTBEAT, -1), "Heartbeat version -1"),
    "cut short": (request(apis.OFFSET_COMMIT, 8, b"\xff"), "cannot be read"),
    "client id cut short": (request(apis.METADATA, 1, b"", b"\x7f\xff"), "cannot be read"),
    "client id not text": (request(apis.METADATA, 1, bytes(4), b"\0\2\xff\xfe"), "not UTF-8"),
    "array of billions": (request(apis.DELETE_TOPICS, 1, b"\x7f\xff\xff\xff"), "cannot be read"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_and_a_closed_connection(server: ServerProcess, case: str) -> None:
    data, reason = CASES[case]
    time.sleep(1.01)  # lines about bad connections are limited to one a second
    before = len(server.lines("connection_refused"))
    with Probe(server.bootstrap) as honest:
        ask_metadata(honest)
        assert closed_after(server, data) == b""
        ask_metadata(honest)
    end = time.monotonic() + WAIT_S
    while len(server.lines("connection_refused")) == before and time.monotonic() < end:
        time.sleep(0.01)
    (line,) = server.lines("connection_refused")[before:]
    assert reason in str(line["reason"]) and line["client"] == "127.0.0.1"


def test_an_unknown_version_of_api_versions_gets_the_list(server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as raw:
        raw.sendall(request(apis.API_VERSIONS, 99))
        answer = raw.recv(65536)
        assert int.from_bytes(answer[8:10], "big") == 35  # UNSUPPORTED_VERSION, in the form of version 0


def test_garbage_from_many_clients_affects_no_other_client() -> None:
    """On a server of its own: the lines about all this may come late, and there is one a second."""
    rng = random.Random(int(os.environ.get("KCOORD_SEED", "1")))
    keys = list(apis.APIS.values())
    with ServerProcess(None) as server:
        with Probe(server.bootstrap) as honest:
            for _ in range(300):
                api = rng.choice(keys)
                version = rng.randint(api.min_version, api.max_version)
                data = request(api.key, version, rng.randbytes(rng.randint(0, 60)))
                if rng.random() < 0.3:
                    data = rng.randbytes(rng.randint(1, 100))
                with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as raw:
                    raw.sendall(data)
                ask_metadata(honest)
        assert server.stop() == 0
        assert not [line for line in server.stderr if "Traceback" in line]


def test_requests_sent_byte_by_byte_are_answered(server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request(apis.API_VERSIONS, 0) * 2:
            raw.sendall(bytes([byte]))
        end = time.monotonic() + WAIT_S
        answer = b""
        while len(answer) < 8 or len(answer) < 2 * (4 + int.from_bytes(answer[:4], "big")):
            assert time.monotonic() < end
            answer += raw.recv(65536)
        half = len(answer) // 2
        assert answer[:half] == answer[half:]
