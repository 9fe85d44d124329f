"""Connections between processes of one machine are not paced.

BBR, which many machines have as their default congestion control, spreads what a connection sends over time: after each
piece the kernel starts a timer, and the rest waits for it. Data for the same machine passes no network that this would
relieve, and there it only costs time. In a virtual machine, where a timer is an exit to the hypervisor, large fetches
had a half to a fourth of the rate (docs/performance.md).

Such a connection gets Reno, which every Linux has and allows. Connections from other machines keep what the machine
has, and so do all connections where that is not BBR.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final

from kcoord.server.listen.limits import is_loopback, plain_host

PACED: Final = b"bbr"
UNPACED: Final = b"reno"
# struct tcp_congestion_ops: TCP_CA_NAME_MAX.
NAME_BYTES: Final = 16


def spare_pacing(client: socket.socket, paced: bytes = PACED) -> None:
    """Let an accepted socket whose client is on this machine send without pauses. Errors are ignored: it is no worse
    off than before. `paced` is how the names of paced algorithms begin.
    """
    algorithm = getattr(socket, "TCP_CONGESTION", None)
    if algorithm is None:
        return  # not Linux
    with suppress(OSError):
        if is_same_machine(client.getsockname()[0], client.getpeername()[0]):
            used: bytes = client.getsockopt(socket.IPPROTO_TCP, algorithm, NAME_BYTES)
            if used.startswith(paced):
                client.setsockopt(socket.IPPROTO_TCP, algorithm, UNPACED)


def is_same_machine(own: str, peer: str) -> bool:
    """Whether a connection between these addresses does not leave the machine. `own` is one of its addresses."""
    return peer == own or is_loopback(plain_host(peer))
