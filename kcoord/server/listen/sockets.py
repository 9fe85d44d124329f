"""Sockets to listen on."""

from __future__ import annotations

import socket
from typing import Final

from kcoord.server.settings.listeners import Listener

ANY_IPV6: Final = "::"


def open_sockets(listener: Listener, backlog: int) -> list[socket.socket]:
    """Bound, listening, non-blocking sockets of a listener: one per address of its host. Raises OSError.

    With port 0 the system picks a port for the first address, and the others use the same port.
    """
    # A host in bytes is not encoded with IDNA, whose tables take a start a millisecond.
    host = listener.host.encode() if listener.host.isascii() else listener.host
    found = socket.getaddrinfo(host or None, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    port = listener.port
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            if family not in (socket.AF_INET, socket.AF_INET6):
                continue
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError:
                continue  # a machine without IPv6 may still resolve to IPv6 addresses
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # `::` alone means every address of both families; an empty host has a socket for each of them.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if listener.host == ANY_IPV6 else 1)
            sock.bind((address[0], port, *address[2:]))
            port = sock.getsockname()[1]
            sock.listen(backlog)
            sock.setblocking(False)
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    if not sockets:
        raise OSError(f"{listener.host!r} has no address to listen on")
    return sockets
