"""Addresses: where to listen and what to tell clients."""

from __future__ import annotations

import socket
from typing import Final, final

PLAINTEXT: Final = "PLAINTEXT"
SECURE_NAMES: Final = ("SSL", "SASL_SSL", "SASL_PLAINTEXT", "TLS")
PORT_MAX: Final = 65535


@final
class Listener:
    """One address to listen on. An empty `advertised_host` advertises the local address of each connection.

    `advertised_port` 0 means the port that is listened on.
    """

    def __init__(self, name: str, host: str, port: int) -> None:
        self.name = name
        self.host = host
        self.port = port
        self.advertised_host = ""
        self.advertised_port = 0


def split_address(text: str) -> tuple[str, str, int]:
    """Name, host and port of `[NAME://]HOST:PORT`; an IPv6 host stands in brackets. Raises ValueError."""
    name, separator, rest = text.strip().rpartition("://")
    host, colon, port = rest.rpartition(":")
    if separator and not name:
        raise ValueError(f"{text!r} is no address: nothing stands before ://")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise ValueError(f"{text!r} is no address: it must be HOST:PORT with a port from 0 to {PORT_MAX}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r} is no address: an IPv6 host stands in brackets, [{host}]:{port}")
    return name.upper(), host, int(port)


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_listeners(text: str, left_out: str) -> list[Listener]:
    """The listeners of a comma-separated list, without those whose names are in `left_out`. Raises ValueError."""
    skipped = {name.strip().upper() for name in left_out.split(",")} - {""}
    found: list[Listener] = []
    for part in text.split(","):
        if not part.strip():
            continue
        name, host, port = split_address(part)
        if name in skipped:
            continue
        if name in SECURE_NAMES:
            raise ValueError(f"listener {part.strip()}: there is no TLS or SASL yet, only plaintext")
        if name and any(listener.name == name for listener in found):
            raise ValueError(f"two listeners are called {name}")
        if port and any((listener.host, listener.port) == (host, port) for listener in found):
            raise ValueError(f"two listeners want {format_address(host, port)}")
        found.append(Listener(name, host, port))
    if not found:
        raise ValueError("there is no address to listen on")
    return found


def parse_advertised(text: str, listeners: list[Listener]) -> None:
    """Set what listeners advertise, by name or in order. Raises ValueError."""
    by_name = {listener.name: listener for listener in listeners if listener.name}
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for index, part in enumerate(parts):
        name, host, port = split_address(part)
        if not host:
            raise ValueError(f"advertised address {part}: a host is needed")
        if host in ("0.0.0.0", "::"):
            raise ValueError(f"advertised address {part}: no client can connect to {host}")
        listener = by_name.get(name)
        if listener is None:
            if name and by_name:
                raise ValueError(f"advertised address {part}: no listener is called {name}")
            if index >= len(listeners):
                raise ValueError(f"advertised address {part}: there are only {len(listeners)} listeners")
            listener = listeners[index]
        listener.advertised_host = host
        listener.advertised_port = port


def open_sockets(listener: Listener, backlog: int) -> list[socket.socket]:
    """Bound, listening, non-blocking sockets of a listener: one per address of its host. Raises OSError.

    With port 0 the first address picks the port and the others take the same.
    """
    found = socket.getaddrinfo(
        listener.host or None, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    port = listener.port
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            if family not in (socket.AF_INET, socket.AF_INET6):
                continue
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError:
                continue  # a machine without IPv6 may still list its addresses
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], port, *address[2:]))
            port = sock.getsockname()[1]
            sock.listen(backlog)
            sock.setblocking(False)
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    if not sockets:
        raise OSError(f"no address of {listener.host!r} can be listened on")
    return sockets
