"""Which address clients are told."""

from __future__ import annotations

import json
import socket

import pytest

from kcoord.protocol import apis
from kcoord.protocol.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kcoord.protocol.metadata import MetadataRequest, MetadataResponse
from kcoord.server.probe import Probe
from tests.e2e.process import ServerProcess, run_to_end


def advertised(bootstrap: str) -> tuple[str, int]:
    """The address of the only broker, as Metadata and FindCoordinator give it."""
    with Probe(bootstrap) as probe:
        (broker,) = probe.ask(apis.METADATA, 12, MetadataRequest(None), MetadataResponse).brokers
        coordinator = probe.ask(
            apis.FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=["g"]), FindCoordinatorResponse
        ).coordinators[0]
        assert (coordinator.host, coordinator.port) == (broker.host, broker.port)
        return broker.host, broker.port


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
        return True
    except OSError:
        return False


def test_the_address_that_the_client_dialled() -> None:
    with ServerProcess(None, listen="0.0.0.0:0") as server:
        assert server.bootstrap.startswith("0.0.0.0:")
        for host in ("127.0.0.1", "127.0.0.2"):
            assert advertised(f"{host}:{server.port}") == (host, server.port)


def test_every_address_by_both_protocols() -> None:
    with ServerProcess(None, listen=":0") as server:
        assert advertised(f"127.0.0.1:{server.port}") == ("127.0.0.1", server.port)
        if has_ipv6():
            assert advertised(f"[::1]:{server.port}") == ("::1", server.port)


def test_every_address_of_both_families_by_one_socket() -> None:
    if not has_ipv6():
        return
    with ServerProcess(None, listen="[::]:0") as server:
        assert server.bootstrap == f"[::]:{server.port}"
        assert advertised(f"127.0.0.1:{server.port}") == ("127.0.0.1", server.port)
        assert advertised(f"[::1]:{server.port}") == ("::1", server.port)


def test_what_a_listener_advertises() -> None:
    arguments = ("--listen", "B://127.0.0.1:0", "--advertise", "B://kafka.example:19092")
    with ServerProcess(None, *arguments, listen="A://127.0.0.1:0") as server:
        assert server.process.stdout is not None
        second = server.process.stdout.readline().split()[2]
        assert advertised(server.bootstrap) == ("127.0.0.1", server.port)
        assert advertised(second) == ("kafka.example", 19092)


@pytest.mark.parametrize("output", ["table", "json", "markdown"])
def test_the_list_of_settings(output: str) -> None:
    done = run_to_end("config", "--output", output)
    assert done.returncode == 0 and "log.sync" in done.stdout
    if output == "json":
        assert json.loads(done.stdout)
