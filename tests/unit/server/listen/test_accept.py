"""Accepting: all that waits at once, up to a bound; the rate; several sockets; what may fail; the end."""

from __future__ import annotations

import asyncio
import errno
import itertools
import socket
from contextlib import suppress
from typing import Any

import pytest

from kcoord.server.draining import disconnect_all
from kcoord.server.listen.accept import ACCEPTS_PER_TURN, Acceptor
from kcoord.server.listen.limits import TokenBucket
from kcoord.server.listen.sockets import open_sockets
from tests.unit.server.pump_rig import FRAME, WAIT_S, EchoEngine, Rig, exchange, running

pytestmark = pytest.mark.both_event_loops

# Turns of the loop from an accepted socket to a connection that is read, with some to spare.
TURNS = 8


class Listening(socket.socket):
    """A listening socket whose `accept` counts, or fails as often as it is told."""

    accepted = 0
    failures: list[OSError]

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            raise self.failures.pop()
        client, address = super().accept()
        self.accepted += 1
        return client, address


def listening(rig: Rig) -> Listening:
    (sock,) = open_sockets(rig.listener, 1000)
    found = Listening(fileno=sock.detach())
    found.setblocking(False)
    found.failures = []
    return found


def connect(sock: socket.socket, count: int) -> list[socket.socket]:
    """Connections that wait in the kernel, for the loop does not run meanwhile."""
    return [socket.create_connection(sock.getsockname(), WAIT_S) for _ in range(count)]


def close(*sockets: socket.socket) -> None:
    for sock in sockets:
        sock.close()


async def until_connected(rig: Rig, count: int) -> None:
    while len(rig.pump.connections) < count:
        await asyncio.sleep(0)


async def test_what_waits_is_accepted_within_a_few_turns() -> None:
    async with running(EchoEngine()) as rig:
        sock = listening(rig)
        clients = connect(sock, 3 * ACCEPTS_PER_TURN)
        acceptor = Acceptor(asyncio.get_running_loop(), rig.pump, TokenBucket(10000))
        acceptor.add(sock, rig.listener)
        acceptor.start()
        seen = [0]
        while len(rig.pump.connections) < len(clients):
            assert len(seen) < 3 + TURNS
            await asyncio.sleep(0)
            seen.append(sock.accepted)
        # Never more than the bound in one turn.
        assert max(after - before for before, after in itertools.pairwise(seen)) == ACCEPTS_PER_TURN
        await acceptor.stop()
        close(sock, *clients)


async def test_the_sockets_take_turns_when_the_rate_lets_few_in() -> None:
    async with running(EchoEngine()) as rig:
        one, two = listening(rig), listening(rig)
        clients = connect(one, 50) + connect(two, 50)
        acceptor = Acceptor(asyncio.get_running_loop(), rig.pump, TokenBucket(20))
        acceptor.add(one, rig.listener)
        acceptor.add(two, rig.listener)
        acceptor.start()
        await asyncio.wait_for(until_connected(rig, 46), WAIT_S)
        assert abs(one.accepted - two.accepted) <= 1
        await acceptor.stop()
        close(one, two, *clients)


async def test_who_is_refused_counts_for_the_rate() -> None:
    async with running(EchoEngine(), "max.connections=1") as rig:
        sock = listening(rig)
        clients = connect(sock, 60)
        loop = asyncio.get_running_loop()
        acceptor = Acceptor(loop, rig.pump, TokenBucket(10))
        acceptor.add(sock, rig.listener)
        began = loop.time()
        acceptor.start()
        while sock.accepted < 23:
            await asyncio.sleep(0.002)
        assert sock.accepted <= 21 + (loop.time() - began) * 10
        assert loop.time() - began > 0.15
        assert rig.pump.counts.total == 1
        await acceptor.stop()
        close(sock, *clients)


async def test_accepting_continues_after_errors() -> None:
    """After those about one connection at once, after the others when some time has passed, and never too soon."""

    async with running(EchoEngine()) as rig:
        sock = listening(rig)
        sock.failures = [OSError(errno.EMFILE, "Too many open files"), OSError(errno.ECONNABORTED, "gone")]
        clients = connect(sock, 1)
        acceptor = Acceptor(asyncio.get_running_loop(), rig.pump, TokenBucket(1000))
        acceptor.add(sock, rig.listener)
        acceptor.start()
        while sock.failures:
            await asyncio.sleep(0.002)
        for _ in range(20):
            await asyncio.sleep(0.002)
        assert sock.accepted == 0
        await asyncio.wait_for(until_connected(rig, 1), WAIT_S)
        assert [line["reason"] for line in rig.log.recent] == ["Too many open files"]
        await acceptor.stop()
        close(sock, *clients)


async def test_nothing_accepted_is_left_over_at_the_end() -> None:
    """Neither a socket that the loop has not taken yet, nor a wait that would accept later."""

    for rate in (1000, 1):
        async with running(EchoEngine()) as rig:
            sock = listening(rig)
            clients = connect(sock, 10)
            acceptor = Acceptor(asyncio.get_running_loop(), rig.pump, TokenBucket(rate))
            acceptor.add(sock, rig.listener)
            acceptor.start()
            while not sock.accepted:
                await asyncio.sleep(0)
            await acceptor.stop()
            accepted = sock.accepted
            assert rig.pump.counts.total == len(rig.pump.connections) == accepted
            await disconnect_all(rig.pump)
            for client in clients[:accepted]:
                with suppress(ConnectionError):
                    assert client.recv(1) == b""
            late = connect(sock, 1)
            await asyncio.sleep(0.02)
            assert sock.accepted == accepted
            close(sock, *clients, *late)


async def test_a_fault_while_one_is_accepted_is_about_that_one() -> None:
    class Clumsy(Listening):
        def accept(self) -> tuple[socket.socket, Any]:
            client, address = super().accept()
            return client, address if self.accepted > 1 else (None, 0)

    async with running(EchoEngine()) as rig:
        sock = Clumsy(fileno=listening(rig).detach())
        sock.setblocking(False)
        sock.failures = []
        acceptor = Acceptor(asyncio.get_running_loop(), rig.pump, TokenBucket(1000))
        acceptor.add(sock, rig.listener)
        acceptor.start()
        gone, honest = [await asyncio.open_connection(*sock.getsockname()[:2]) for _ in range(2)]
        with suppress(ConnectionError):
            assert await asyncio.wait_for(gone[0].read(), WAIT_S) == b""
        assert await exchange(honest) == FRAME
        assert (rig.failures, rig.pump.counts.total) == ([], 1)
        await acceptor.stop()
        close(sock)
