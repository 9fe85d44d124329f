"""Lookups by timestamp: find the record within a batch, and bound the work of one lookup."""

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
    """Searches the batches of one partition, up to a bound on their decompressed content.

    If a batch exceeds the bound, the lookup ends with a `search`, which any thread may execute. `note` stores its
    result, and the caller repeats the lookup.
    """

    def __init__(self, decompressed_bytes_max: int, content_bytes_max: int = INT64_MAX) -> None:
        # The limit for one batch, in the lookup and in a search.
        self.decompressed_bytes_max = decompressed_bytes_max
        # The limit for all batches that the lookup itself searches, and their content so far.
        self.content_bytes_max = content_bytes_max
        self.content_bytes = 0
        self.search: RecordSearch | None = None
        # The results of searches by the base offset of the batch.
        self.known: dict[int, tuple[int, int] | None] = {}

    def find(self, path: str, data: bytes, pos: int, timestamp: int, offset: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record at or after both, in the batch at `pos`.

        None if there is none, or if `search` is set now. Raises LogDamaged.
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
        # Each clause uses another name, because mypyc gives a reused name the type of its first clause.
        except DecompressionError as broken:
            raise LogDamaged(path, base_offset, 0, str(broken)) from None
        except DecodeError as malformed:
            raise LogDamaged(path, base_offset, 0, str(malformed)) from None
        self.content_bytes += search.content_bytes
        return search.found

    def note(self, search: RecordSearch) -> None:
        """Store the result of a completed search."""
        self.known[search.header.base_offset] = search.found
        self.search = None
