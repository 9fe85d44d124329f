"""Listeners and advertised addresses."""

from __future__ import annotations

from typing import Final, final

PLAINTEXT: Final = "PLAINTEXT"
SECURE_NAMES: Final = ("SSL", "SASL_SSL", "SASL_PLAINTEXT", "TLS")
PORT_MAX: Final = 65535


@final
class Listener:
    """One address to listen on. With an empty `advertised_host` each connection's local address is advertised.

    `advertised_port` 0 means the port of the listener.
    """

    def __init__(self, name: str, host: str, port: int) -> None:
        self.name = name
        self.host = host
        self.port = port
        self.advertised_host = ""
        self.advertised_port = 0


def split_address(text: str) -> tuple[str, str, int]:
    """Name, host and port of `[NAME://]HOST:PORT`, with an IPv6 host in brackets. Raises ValueError."""
    name, separator, rest = text.strip().rpartition("://")
    host, colon, port = rest.rpartition(":")
    if separator and not name:
        raise ValueError(f"{text!r} is not an address: the name before :// is missing")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise ValueError(f"{text!r} is not an address: it must be HOST:PORT with a port from 0 to {PORT_MAX}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or "[" in host or "]" in host:
        raise ValueError(f"{text!r} is not an address: put an IPv6 host in brackets, {_suggestion(host, port)}")
    return name.upper(), host, int(port)


def _suggestion(host: str, port: str) -> str:
    """What somebody who forgot a bracket may have meant: in `[::1` the last colon does not begin a port."""
    import ipaddress

    host = host.strip("[]")
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return "such as [::1]:9092"
    return f"[{host}]:{port}"


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
            raise ValueError(f"listener {part.strip()}: TLS and SASL are not supported yet, only plaintext")
        if name and any(listener.name == name for listener in found):
            raise ValueError(f"two listeners have the name {name}")
        if port and any((listener.host, listener.port) == (host, port) for listener in found):
            raise ValueError(f"two listeners have the address {format_address(host, port)}")
        found.append(Listener(name, host, port))
    if not found:
        raise ValueError("no address to listen on")
    return found


def parse_advertised(text: str, listeners: list[Listener]) -> None:
    """Set the advertised addresses of listeners, by name or in order. Raises ValueError."""
    by_name = {listener.name: listener for listener in listeners if listener.name}
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for index, part in enumerate(parts):
        name, host, port = split_address(part)
        if not host:
            raise ValueError(f"advertised address {part}: the host is missing")
        if host in ("0.0.0.0", "::"):
            raise ValueError(f"advertised address {part}: no client can connect to {host}")
        listener = by_name.get(name)
        if listener is None:
            if name and by_name:
                raise ValueError(f"advertised address {part}: no listener has the name {name}")
            if index >= len(listeners):
                raise ValueError(f"advertised address {part}: there are only {len(listeners)} listeners")
            listener = listeners[index]
        listener.advertised_host = host
        listener.advertised_port = port
