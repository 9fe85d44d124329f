"""Bytes of a file that belong inside a message: who sends the message lets the system copy them from file to socket.

A field of records holds bytes, so a range is in a message as a token of its own: a few bytes, too few for a batch. The
encoder finds the range by its token. Tokens are valid until the message is encoded, which happens before the next one
is made (see `kcoord.engine.outbox`).
"""

from __future__ import annotations

from typing import Final, Protocol, final

# No batch of records is as short as that.
TOKEN_BYTES: Final = 8


class SharedFile(Protocol):
    """A file that stays open for as long as a range of it exists."""

    @property
    def fd(self) -> int: ...

    def read_at(self, position: int, size: int) -> bytes:
        """At most `size` bytes from `position`; fewer only at the end of the file. Raises OSError."""
        ...


@final
class FileRange:
    """`size` bytes of a file from `position` on, which do not change any more."""

    def __init__(self, file: SharedFile, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self) -> bytes:
        """All bytes. Raises OSError."""
        return self.part(0, self.size)

    def part(self, start: int, size_max: int) -> bytes:
        """The bytes from `start` on, at most `size_max`. Raises OSError."""
        size = min(size_max, self.size - start)
        data = self.file.read_at(self.position + start, size)
        if len(data) != size:
            raise OSError(f"the file ends {size - len(data)} bytes before its records")
        return data


@final
class FileRanges:
    """The ranges of the message that is encoded next, by token."""

    def __init__(self) -> None:
        self.by_token: dict[bytes, FileRange] = {}

    def add(self, one: FileRange) -> bytes:
        """The token of a range."""
        token = len(self.by_token).to_bytes(TOKEN_BYTES, "big")
        self.by_token[token] = one
        return token

    def size_of(self, records: bytes) -> int:
        """The bytes that `records` are, or that their token stands for."""
        if len(records) != TOKEN_BYTES:
            return len(records)
        one = self.by_token.get(records)
        return len(records) if one is None else one.size

    def clear(self) -> None:
        """All tokens become invalid."""
        if self.by_token:
            self.by_token.clear()
