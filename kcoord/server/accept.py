"""Accepts connections, within the limits on how many and how fast."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Final

from kcoord.server.connection import Connection
from kcoord.server.limits import TokenBucket, plain_host
from kcoord.server.listener import Listener
from kcoord.server.pump import Pump

# Out of descriptors or memory: connections stay in the backlog until some were closed.
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_EXHAUSTED_WAIT_S: Final = 0.5


async def accept_connections(
    loop: asyncio.AbstractEventLoop, pump: Pump, bucket: TokenBucket, sock: socket.socket, listener: Listener
) -> None:
    """Accept until cancelled."""
    while True:
        try:
            client, address = await loop.sock_accept(sock)
        except OSError as error:
            if error.errno in _EXHAUSTED:
                pump.log.warning_limited("accept_failed", reason=error.strerror or str(error))
                await asyncio.sleep(_EXHAUSTED_WAIT_S)
            # Anything else is about that one connection, which is gone again.
            continue
        host = plain_host(address[0])
        reason = pump.counts.admit(host)
        if reason:
            client.close()
            pump.log.warning_limited("connection_refused", client=host, reason=reason)
            continue
        connection = Connection(pump, listener, host)
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            await loop.connect_accepted_socket(lambda made=connection: made, client)  # type: ignore[misc]
        except OSError:
            client.close()
            if not connection.is_open:
                pump.counts.release(host)
        wait_s = bucket.take(loop.time())
        if wait_s > 0:
            await asyncio.sleep(wait_s)
