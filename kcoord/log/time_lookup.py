"""A lookup by time: which record of a batch it means, and how much a lookup may look at here."""

from __future__ import annotations

from typing import Final, final

from kcoord.log.errors import LogDamaged
from kcoord.wire.compression import DecompressionError
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import parse_header
from kcoord.wire.record_search import RecordSearch

INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF


@final
class TimeLookup:
    """Looks into the batches of one partition, within a bound on their content.

    Where a batch has more, the lookup ends with a `search` for somebody else to do, in whatever thread. `note` takes
    its result, and the lookup is made once more.
    """

    def __init__(self, decompressed_bytes_max: int, content_bytes_max: int = INT64_MAX) -> None:
        # Of one batch, whoever looks into it.
        self.decompressed_bytes_max = decompressed_bytes_max
        # Of all batches that are looked into here, and what they had so far.
        self.content_bytes_max = content_bytes_max
        self.content_bytes = 0
        self.search: RecordSearch | None = None
        # Results of searches, by the base offset of their batch.
        self.known: dict[int, tuple[int, int] | None] = {}

    def find(self, path: str, data: bytes, pos: int, timestamp: int, offset: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record at or after both, in the batch at `pos`.

        None when there is none, and when there is a `search` now. Raises LogDamaged.
        """
        header = parse_header(data, pos)
        base_offset = header.base_offset
        known = self.known.get(base_offset)
        if base_offset in self.known and (known is None or known[1] >= offset):
            return known
        try:
            search = RecordSearch(data[pos : pos + header.size], timestamp, offset)
            if not search.open(self.decompressed_bytes_max, self.content_bytes_max - self.content_bytes):
                self.search = search
                return None
            search.step(INT64_MAX)
        # Each clause has a name of its own: compiled, one name would keep the type of the first.
        except DecompressionError as broken:
            raise LogDamaged(path, base_offset, 0, str(broken)) from None
        except DecodeError as malformed:
            raise LogDamaged(path, base_offset, 0, str(malformed)) from None
        self.content_bytes += search.content_bytes
        return search.found

    def note(self, search: RecordSearch) -> None:
        """The search is done."""
        self.known[search.header.base_offset] = search.found
        self.search = None
