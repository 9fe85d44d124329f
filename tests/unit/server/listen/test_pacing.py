"""Connections of the same machine are not paced; all others keep the algorithm of the machine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from kcoord.server.listen.accept import Acceptor
from kcoord.server.listen.limits import TokenBucket
from kcoord.server.listen.pacing import NAME_BYTES, UNPACED, is_same_machine, spare_pacing
from kcoord.server.listen.sockets import open_sockets
from tests.unit.server.pump_rig import EchoEngine, exchange, running


def algorithm_of(sock: socket.socket) -> bytes:
    used: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, NAME_BYTES)
    return used.rstrip(b"\0")


@pytest.fixture
def accepted() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with socket.create_connection(listening.getsockname()):
            with closing(listening.accept()[0]) as server:
                yield server


@pytest.mark.parametrize(
    ("own", "peer", "expected"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.2", "127.0.0.1", True),
        ("10.0.0.7", "10.0.0.7", True),
        ("10.0.0.7", "127.0.0.1", True),
        ("::1", "::1", True),
        ("::ffff:10.0.0.7", "::ffff:127.0.0.1", True),
        ("fe80::1", "fe80::1", True),
        ("10.0.0.7", "10.0.0.8", False),
        ("10.0.0.7", "1.127.0.1", False),
        ("::ffff:10.0.0.7", "::ffff:10.0.0.8", False),
        ("fe80::1", "fe80::2", False),
    ],
)
def test_what_does_not_leave_the_machine(own: str, peer: str, expected: bool) -> None:
    assert is_same_machine(own, peer) is expected


def test_a_paced_connection_of_this_machine_gets_another_algorithm(accepted: socket.socket) -> None:
    spare_pacing(accepted, paced=algorithm_of(accepted))
    assert algorithm_of(accepted) == UNPACED


def test_other_algorithms_stay(accepted: socket.socket) -> None:
    before = algorithm_of(accepted)
    spare_pacing(accepted, paced=b"not " + before)
    assert algorithm_of(accepted) == before


class FromElsewhere(socket.socket):
    def getpeername(self) -> Any:
        return "10.9.8.7", 9

    def getsockname(self) -> Any:
        return "10.9.8.6", 9


def test_a_connection_from_elsewhere_stays(accepted: socket.socket) -> None:
    before = algorithm_of(accepted)
    with FromElsewhere(fileno=accepted.detach()) as other:
        spare_pacing(other, paced=before)
        assert algorithm_of(other) == before


def test_a_client_that_is_gone_is_no_error(accepted: socket.socket) -> None:
    accepted.close()
    spare_pacing(accepted)


def test_a_system_without_the_option_is_left_alone(accepted: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    before = algorithm_of(accepted)
    monkeypatch.delattr(socket, "TCP_CONGESTION")
    spare_pacing(accepted, paced=b"")
    monkeypatch.undo()
    assert algorithm_of(accepted) == before


async def test_the_server_asks_for_each_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[socket.socket] = []
    monkeypatch.setattr("kcoord.server.listen.accept.spare_pacing", asked.append)
    async with running(EchoEngine()) as rig:
        (sock,) = open_sockets(rig.listener, 10)
        acceptor = Acceptor(asyncio.get_running_loop(), rig.pump, TokenBucket(1000))
        acceptor.add(sock, rig.listener)
        acceptor.start()
        clients = [await asyncio.open_connection(*sock.getsockname()[:2]) for _ in range(3)]
        for streams in clients:
            await exchange(streams)
        await acceptor.stop()
        assert len(asked) == len(clients)
        for _, writer in clients:
            writer.close()
        sock.close()
