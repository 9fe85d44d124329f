"""How much memory the requests may use that wait for a thread, in all and by the address of their client.

The limits are checked before a request is added, so each is exceeded by one request at most. An address may use half of
the room: its requests do not hold up those of others.
"""

from __future__ import annotations

from typing import final


@final
class WaitingRoom:
    """Sizes are in bytes."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        # The addresses with requests in the room, and the bytes of each.
        self.bytes_of: dict[str, int] = {}
        # How many addresses are above their share.
        self.full_addresses = 0

    @property
    def is_full(self) -> bool:
        """Whether requests of some address have to stay outside."""
        return self.full_addresses > 0 or self.bytes > self.bytes_max

    def has_space(self, address: str) -> bool:
        """Whether a request of the address may come in."""
        return self.bytes <= self.bytes_max and self.bytes_of.get(address, 0) <= self.bytes_max // 2

    def add(self, address: str, size: int) -> None:
        self._change(address, size)

    def remove(self, address: str, size: int) -> bool:
        """Take out a request that was added. Returns whether requests that had to stay outside may have space now."""
        was_full = self.bytes > self.bytes_max
        full_before = self.full_addresses
        self._change(address, -size)
        return self.full_addresses < full_before or (was_full and self.bytes <= self.bytes_max)

    def _change(self, address: str, size: int) -> None:
        before = self.bytes_of.get(address, 0)
        after = before + size
        if after:
            self.bytes_of[address] = after
        else:
            self.bytes_of.pop(address, None)
        self.bytes += size
        share = self.bytes_max // 2
        self.full_addresses += (after > share) - (before > share)
