"""Accepts connections, within the limits on how many and how fast.

When the kernel reports pending connections, the acceptor takes all of them at once, up to a bound. A busy loop reaches
the acceptor only once per turn, and a new client must not wait one turn for each client before it in the backlog.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from functools import partial
from typing import Any, Final, cast, final

from kcoord.core.outcome import LIMIT
from kcoord.server.listen.connection import Connection, Host
from kcoord.server.listen.limits import TokenBucket, plain_host
from kcoord.server.listen.pacing import spare_pacing
from kcoord.server.settings.listeners import Listener

# The number of connections accepted per turn. Each costs about 0.1 ms until it can be read, and a full backlog of 1024
# is empty after 16 turns.
ACCEPTS_PER_TURN: Final = 64
# Errors for a lack of descriptors or memory, or a broken listening socket: accepting pauses for a while. Every other
# error concerns a single connection, which is closed already.
_PAUSING: Final = (
    errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EBADF, errno.EINVAL, errno.ENOTSOCK
)  # fmt: skip
_PAUSE_S: Final = 0.5


def _protocol_of(connection: Connection) -> asyncio.Protocol:
    """The connection as the loop calls it. Its class is native code, and has asyncio's methods without the base."""
    return cast(asyncio.Protocol, connection)


@final
class Acceptor:
    """Accepts on any number of listening sockets between `start` and `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pump: Host, bucket: TokenBucket) -> None:
        self._loop = loop
        self._pump = pump
        self._bucket = bucket
        self._sources: deque[tuple[socket.socket, Listener]] = deque()
        self._is_accepting = False
        self._pause: asyncio.TimerHandle | None = None
        # Accepted connections that the loop does not know yet.
        self._opening: set[asyncio.Task[None]] = set()

    def add(self, sock: socket.socket, listener: Listener) -> None:
        """Also accept on this socket, from the next `start` on."""
        self._sources.append((sock, listener))

    def start(self) -> None:
        self._pause = None
        self._is_accepting = True
        for sock, _ in self._sources:
            self._loop.add_reader(sock, self._accept)

    async def stop(self) -> None:
        """Stop accepting, and wait until the pump has every accepted connection."""
        self._stop_reading()
        if self._pause is not None:
            self._pause.cancel()
        if self._opening:
            await asyncio.wait(self._opening)

    def _stop_reading(self) -> None:
        self._is_accepting = False
        for sock, _ in self._sources:
            self._loop.remove_reader(sock)

    def _pause_for(self, seconds: float) -> None:
        self._stop_reading()
        self._pause = self._loop.call_later(seconds, self.start)

    def _accept(self) -> None:
        """Accept connections from each socket in turn, as far as the bound and the rate allow."""
        if not self._is_accepting:
            return
        # If only one may be accepted, start with another socket each time.
        self._sources.rotate(-1)
        waiting = deque(self._sources)
        for _ in range(ACCEPTS_PER_TURN):
            if not waiting:
                return
            sock, listener = waiting.popleft()
            try:
                client, address = sock.accept()
            except (BlockingIOError, InterruptedError):
                continue
            except OSError as error:
                if error.errno in _PAUSING:
                    self._report(error.strerror or str(error))
                    self._pause_for(_PAUSE_S)
                    return
            else:
                self._admit(client, address, listener)
                # A refused connection takes a token as well: it costs the loop almost as much as an accepted one.
                wait_s = self._bucket.take(self._loop.time())
                if wait_s > 0:
                    self._pause_for(wait_s)
                    return
            waiting.append((sock, listener))

    def _admit(self, client: socket.socket, address: tuple[Any, ...], listener: Listener) -> None:
        """Pass an accepted socket to the loop, or close it. A failure affects only this connection.

        `address` has two items in IPv4 and four in IPv6.
        """
        try:
            host = plain_host(address[0])
            reason = self._pump.counts.admit(host)
            if reason:
                client.close()
                self._pump.log.warning_limited("connection_refused", kind=LIMIT, client=host, reason=reason)
                return
            task = self._loop.create_task(self._open(client, Connection(self._pump, listener, host)))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        except Exception as error:
            client.close()
            self._report(repr(error))

    async def _open(self, client: socket.socket, connection: Connection) -> None:
        try:
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            spare_pacing(client)
            config = self._pump.config
            if config.send_buffer_bytes > 0:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send_buffer_bytes)
            if config.receive_buffer_bytes > 0:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer_bytes)
            await self._loop.connect_accepted_socket(partial(_protocol_of, connection), client)
        except OSError:
            client.close()  # the client is gone again
        except Exception as error:
            client.close()
            self._report(repr(error))
        finally:
            if not connection.is_made:
                connection.release()

    def _report(self, reason: str) -> None:
        self._pump.log.warning_limited("accept_failed", reason=reason)
