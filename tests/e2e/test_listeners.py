"""Which address clients are told."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from kcoord.protocol import apis
from kcoord.protocol.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kcoord.protocol.metadata import MetadataRequest, MetadataResponse
from kcoord.server.probe import Probe
from tests.e2e.process import END_SECONDS, ServerProcess, run_to_end
from tests.harness.ports import own_port


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


@contextmanager
def port_mapping(port: int, target: str) -> Iterator[str]:
    """A proxy, as an engine may map a port: clients dial 127.0.0.2, and the server sees connections of the proxy."""
    target_host, _, target_port = target.rpartition(":")
    with socket.create_server(("127.0.0.2", port)) as listener, ExitStack() as connections:

        def copy(source: socket.socket, sink: socket.socket) -> None:
            with suppress(OSError):
                while part := source.recv(65536):
                    sink.sendall(part)
                sink.shutdown(socket.SHUT_WR)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    outer = connections.enter_context(listener.accept()[0])
                    inner = connections.enter_context(socket.create_connection((target_host, int(target_port))))
                    for ends in ((outer, inner), (inner, outer)):
                        threading.Thread(target=copy, args=ends, daemon=True).start()

        acceptor = threading.Thread(target=accept, daemon=True)
        acceptor.start()
        yield f"127.0.0.2:{port}"
        listener.shutdown(socket.SHUT_RDWR)
        acceptor.join(END_SECONDS)


def test_a_mapped_port_must_be_advertised() -> None:
    """As in docker/compose.yaml: with the server's own address, clients on the other side of a proxy fail."""
    port = own_port()
    arguments = ("--listen", "HOST://127.0.0.1:0", "--advertise", f"HOST://127.0.0.2:{port}")
    with ServerProcess(None, *arguments, listen="INTERNAL://127.0.0.1:0") as server:
        assert server.process.stdout is not None
        host_listener = server.process.stdout.readline().split()[2]
        with port_mapping(port, host_listener) as mapped:
            assert advertised(mapped) == ("127.0.0.2", port)
        with port_mapping(port, server.bootstrap) as mapped:
            assert advertised(mapped) == ("127.0.0.1", server.port)
        assert advertised(server.bootstrap) == ("127.0.0.1", server.port)


@pytest.mark.parametrize("output", ["table", "json", "markdown"])
def test_the_list_of_settings(output: str) -> None:
    done = run_to_end("config", "--output", output)
    assert done.returncode == 0 and "log.sync" in done.stdout
    if output == "json":
        assert json.loads(done.stdout)
