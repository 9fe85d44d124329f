"""What one turn may cost.

One event loop serves all connections, so all others wait while it works for one. The engine has no clock. It counts
bytes instead: those of a request, those of its response, and a fixed share for each request. At the rate of the densest
requests (about 20 bytes for each microsecond of native code), TURN_COST_MAX is about ten milliseconds.

A turn ends its work when the budget is spent, and the next turn continues. A single request is not divided: the size of
its frame limits it, and work that costs more is a job or is refused.

A small request of a connection without waiting frames may still use the reserve. So heartbeats and new connections are
served in the turn in which they arrive, however much other clients have requested.

Timers, answers of parked requests and other work that earlier turns have left have shares of their own. So they go on
in each turn, even if a flood of requests spends the budget of all turns.
"""

from __future__ import annotations

from typing import Final, final

# The cost of all that a turn handles, in bytes.
TURN_COST_MAX: Final = 256 * 1024
# What small requests may use in addition.
TURN_RESERVE: Final = 256 * 1024
# Requests up to this size are small.
SMALL_REQUEST_BYTES: Final = 4096
# What each kind of waiting work may use in a turn whose budget is spent.
TURN_SHARE: Final = 32 * 1024
# The share of each request: dispatch, bookkeeping, one write.
REQUEST_COST: Final = 128
# Records are sent as they are: reading and sending this many bytes costs as much as encoding one byte.
RECORD_BYTES_PER_COST: Final = 32
# The check of one partition of a fetch.
PARTITION_COST: Final = 16
# Timers that fire in one turn. Each may change a group; 10,000 sessions may expire at once.
TIMERS_MAX: Final = 1000


@final
class TurnBudget:
    def __init__(self) -> None:
        self.spent = 0
        # The request that cost most in the last turn, for the server's log if that was too long.
        self.is_new = True
        self.top_cost = 0
        self.top_api_key = -1
        self.top_bytes = 0
        self.top_client = ""

    @property
    def is_spent(self) -> bool:
        return self.spent >= TURN_COST_MAX

    @property
    def is_far_over(self) -> bool:
        """Whether the turn has spent all that it may, the reserve included."""
        return self.spent >= TURN_COST_MAX + TURN_RESERVE

    def has_share(self, spent_before: int) -> bool:
        """Whether waiting work of a kind that began when so much was spent may go on."""
        return self.spent < TURN_COST_MAX or self.spent - spent_before < TURN_SHARE

    def has_room(self, frame_bytes: int) -> bool:
        """Whether a request of a connection that waits for nothing may be handled now."""
        limit = TURN_COST_MAX
        if frame_bytes <= SMALL_REQUEST_BYTES:
            limit += TURN_RESERVE
        return self.spent < limit

    def charge_answer(self, copied_bytes: int) -> None:
        """An answer was encoded. Records that it only refers to were charged when they were read."""
        self.spent += copied_bytes

    def charge_read(self, record_bytes: int, partitions: int) -> None:
        """Records were read from that many partitions."""
        self.spent += record_bytes // RECORD_BYTES_PER_COST + partitions * PARTITION_COST

    def note_request(self, api_key: int, frame_bytes: int, client: str, spent_before: int, extra_cost: int = 0) -> None:
        """A request was handled: charge for it, and remember it if it is the turn's most expensive one.

        `extra_cost` is what its handler took that its bytes do not show.
        """
        self.spent += frame_bytes + REQUEST_COST + extra_cost
        cost = self.spent - spent_before
        if cost > self.top_cost or self.is_new:
            self.is_new = False
            self.top_cost = cost
            self.top_api_key = api_key
            self.top_bytes = frame_bytes
            self.top_client = client

    def end_turn(self) -> None:
        """The turn is over. What cost most in it can be read until the next request is handled."""
        if self.is_new:
            self.top_api_key = -1
            self.top_bytes = 0
            self.top_client = ""
        self.spent = 0
        self.is_new = True
