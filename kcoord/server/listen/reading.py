"""Bounds the bytes of large requests that one turn of the event loop reads.

The loop reads every readable socket, up to 250 KB each, before any request is handled. So a thousand clients in the
middle of large requests would delay all others by a quarter of a second. Once a turn has read enough, it stops
reading connections in the middle of a large request, and new connections, which may begin one. Some of them continue
in the next turn, new connections first; the rest follow in later turns.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, Protocol, final

# The bytes that a turn reads before large requests wait: about 4 ms.
TURN_READ_BYTES: Final = 4 * 1024 * 1024
# A request with more missing bytes is large.
SMALL_REST_BYTES: Final = 64 * 1024
# The held connections that one turn resumes: with one read each, about the bytes that a turn may read.
RESUMED_PER_TURN: Final = 16


class Readable(Protocol):
    """The interface that this module needs of a connection."""

    is_held: bool

    def update_reading(self) -> None: ...


@final
class ReadShares:
    """Decides which new connections, and which in the middle of a large request, are read in this turn."""

    def __init__(self) -> None:
        self.turn_bytes_max = TURN_READ_BYTES
        self.turn_bytes = 0
        # Connections that are being read.
        self.new: dict[Readable, None] = {}
        self.large: dict[Readable, None] = {}
        # Connections that wait for a later turn, the next one first.
        self.held_new: dict[Readable, None] = {}
        self.held_large: dict[Readable, None] = {}

    def begin(self, connection: Readable) -> None:
        """Add a new connection from which nothing was read yet."""
        self.new[connection] = None

    def forget(self, connection: Readable) -> None:
        """Remove a closed connection."""
        for group in (self.new, self.large, self.held_new, self.held_large):
            group.pop(connection, None)

    def note(self, connection: Readable, size: int, missing_bytes: int) -> None:
        """Account for `size` bytes that were read from a connection, whose incomplete request lacks `missing_bytes`."""
        if self.new:
            self.new.pop(connection, None)
        if missing_bytes > SMALL_REST_BYTES:
            self.large[connection] = None
        elif self.large:
            self.large.pop(connection, None)
        self.turn_bytes += size
        if self.turn_bytes > self.turn_bytes_max:
            _hold(self.new, self.held_new)
            _hold(self.large, self.held_large)

    def begin_turn(self) -> bool:
        """Resume reading some of the waiting connections. Returns whether others still wait."""
        self.turn_bytes = 0
        if not self.held_new and not self.held_large:
            return False
        resumed = _resume(self.held_new, self.new, RESUMED_PER_TURN)
        _resume(self.held_large, self.large, RESUMED_PER_TURN - resumed)
        return len(self.held_new) + len(self.held_large) > 0


def _hold(read: dict[Readable, None], held: dict[Readable, None]) -> None:
    for connection in read:
        held[connection] = None
        connection.is_held = True
        connection.update_reading()
    read.clear()


def _resume(held: dict[Readable, None], read: dict[Readable, None], count: int) -> int:
    """Resume at most `count` waiting connections. Returns their number."""
    resumed = list(islice(held, count))
    for connection in resumed:
        del held[connection]
        read[connection] = None
        connection.is_held = False
        connection.update_reading()
    return len(resumed)
