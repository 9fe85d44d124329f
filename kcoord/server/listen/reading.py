"""Bounds what a turn of the event loop reads of large requests.

The loop reads every socket that has something, some 250 KB each, before anybody is served: a thousand clients that are
in the middle of large requests would keep the others waiting for a quarter of a second. So once a turn has read enough,
connections in the middle of a large request are not read for the rest of it, nor are those that have sent nothing yet
and may begin one. Some of them go on in the next turn, newcomers first; the rest follow in the turns after that.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from kcoord.server.listen.connection import Connection

# Read in a turn before large requests wait: about 4 ms.
TURN_READ_BYTES: Final = 4 * 1024 * 1024
# A request that lacks more is large.
SMALL_REST_BYTES: Final = 64 * 1024
# Connections that are read again in a turn: with one read each, about as much as a turn may read.
RESUMED_PER_TURN: Final = 16


@final
class ReadShares:
    """Which connections are read in this turn, of newcomers and of those in the middle of a large request."""

    def __init__(self) -> None:
        self.turn_bytes_max = TURN_READ_BYTES
        self.turn_bytes = 0
        # Those that are read.
        self.new: dict[Connection, None] = {}
        self.large: dict[Connection, None] = {}
        # Those that wait for a later turn, the next one first.
        self.held_new: dict[Connection, None] = {}
        self.held_large: dict[Connection, None] = {}

    def begin(self, connection: Connection) -> None:
        """A connection is open, and nothing was read from it."""
        self.new[connection] = None

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        for group in (self.new, self.large, self.held_new, self.held_large):
            group.pop(connection, None)

    def note(self, connection: Connection, size: int) -> None:
        """So many bytes were read, and are handed on."""
        self.new.pop(connection, None)
        if connection.lacks_bytes() > SMALL_REST_BYTES:
            self.large[connection] = None
        else:
            self.large.pop(connection, None)
        self.turn_bytes += size
        if self.turn_bytes > self.turn_bytes_max:
            _hold(self.new, self.held_new)
            _hold(self.large, self.held_large)

    def begin_turn(self) -> bool:
        """Read some of the waiting ones again; whether others still wait."""
        self.turn_bytes = 0
        if not self.held_new and not self.held_large:
            return False
        resumed = _resume(self.held_new, self.new, RESUMED_PER_TURN)
        _resume(self.held_large, self.large, RESUMED_PER_TURN - resumed)
        return len(self.held_new) + len(self.held_large) > 0


def _hold(read: dict[Connection, None], held: dict[Connection, None]) -> None:
    for connection in read:
        held[connection] = None
        connection.is_held = True
        connection.update_reading()
    read.clear()


def _resume(held: dict[Connection, None], read: dict[Connection, None], count: int) -> int:
    """How many of the waiting ones are read again."""
    resumed = list(islice(held, count))
    for connection in resumed:
        del held[connection]
        read[connection] = None
        connection.is_held = False
        connection.update_reading()
    return len(resumed)
