"""Many partitions under a hard limit on open files. `make bench-partitions` does it with 10,000."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from bench.partitions import Trial
from bench.workload import Client
from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersionsRequest, ApiVersionsResponse

WAIT_S = 60.0


@pytest.mark.parametrize(
    ("partitions", "descriptors", "sync"), [(400, 300, "always"), (400, 300, "os"), (2000, 256, "always")]
)
def test_more_partitions_than_files_that_may_be_open(
    tmp_path: Path, partitions: int, descriptors: int, sync: str
) -> None:
    """Made, written, read, stopped, killed: everything is there after each start."""
    trial = Trial(tmp_path / "data", partitions, descriptors, sync)
    for step in trial.run():
        assert step.files < descriptors
        if step.name.endswith("start"):
            # What recovery opened is closed again.
            assert step.files < 40
    assert len(trial.lines("connections_limited")) == 3


def welcome(host: str, port: int) -> Client:
    """A client that is let in: the server may take it before it has noticed that others are gone."""
    ends_at = time.monotonic() + WAIT_S
    while True:
        client = Client(host, port)
        try:
            client.call(apis.API_VERSIONS, 0, ApiVersionsRequest(), ApiVersionsResponse)
            return client
        except (OSError, RuntimeError):
            client.close()
            if time.monotonic() >= ends_at:
                raise
            time.sleep(0.05)


def test_connections_leave_the_log_its_files(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "data", 300, 256, "always")
    connections = []
    try:
        trial.start("start")
        trial.create()
        where = (trial.client.socket.getpeername()[0], trial.client.socket.getpeername()[1])
        for _ in range(250):
            connections.append(socket.create_connection(where, timeout=30))
        # Every partition is written, though clients take all they are given.
        trial.write()
        trial.read()
        assert trial.lines("connection_refused") and "limit on open files" in trial.lines("connection_refused")[0]
        for connection in connections:
            connection.close()
        trial.client.close()
        trial.client = welcome(*where)
        trial.write()
        trial.stop()
    finally:
        for connection in connections:
            connection.close()
        trial.kill()
