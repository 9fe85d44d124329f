"""The server's log at level debug: connections and requests, of a server of its own."""

from __future__ import annotations

import socket
import time

from kcoord.server.probe import Probe
from tests.e2e.process import ServerProcess


def test_connections_and_requests_at_debug() -> None:
    with ServerProcess(None, "--set", "logging.level=debug") as server:
        with Probe(server.bootstrap) as probe:
            probe.ping()
            host, _, port = server.bootstrap.rpartition(":")
            with socket.create_connection((host, int(port))) as broken:
                broken.sendall(b"\0\0\0\x0c\x7f\0\0\0\0\0\0\1\xff\xff\0\0")
                assert broken.recv(1) == b""
            # A request that is answered after what came before, so that the lines above are written.
            probe.ping()
            end = time.monotonic() + 30
            while not server.lines("connection_ended") and time.monotonic() < end:
                time.sleep(0.02)
            assert server.stop() == 0
        requests = server.lines("request")
        ended = server.lines("connection_ended")
        opened = server.lines("connection_opened")
    assert [(line["api"], line["connection"]) for line in requests if "duration_ms" in line] == [("ApiVersions", 1)] * 2
    assert [line["connection"] for line in opened] == [1, 2]
    by_connection = {line["connection"]: line for line in ended}
    assert by_connection[2]["reason"] == "unknown api key 32512" and by_connection[2]["requests"] == 1
    assert by_connection[1]["reason"] == "the server stops" and by_connection[1]["requests"] == 2
    assert by_connection[1]["client"] == opened[0]["client"] != opened[1]["client"]
    assert not server.lines("internal_error")


def test_there_are_no_such_lines_at_info() -> None:
    with ServerProcess(None) as server:
        with Probe(server.bootstrap) as probe:
            probe.ping()
        assert server.stop() == 0
        assert not server.lines("request") and not server.lines("connection_opened")
        assert server.lines("stopped")
