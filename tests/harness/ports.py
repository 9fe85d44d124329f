"""Ports of 127.0.0.1 for servers that cannot take any that is free, since clients are told before or a restart follows."""

from __future__ import annotations

import random
import socket
from pathlib import Path

# Below what Linux and others give to sockets that ask for any port.
OWN_PORTS = range(20_000, 30_000)
ANY_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def own_port() -> int:
    """A free port that no other socket is given meanwhile, as one might be that port 0 found."""
    first = int(ANY_PORTS.read_text().split()[0]) if ANY_PORTS.exists() else OWN_PORTS.stop
    ports = OWN_PORTS if first >= OWN_PORTS.stop else range(min(2_000, first // 2), first)
    while True:
        # Not from a seed: tests run beside each other.
        port = random.SystemRandom().choice(ports)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
