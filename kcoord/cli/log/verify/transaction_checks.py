"""Compares the transaction indexes of a log with the markers in its segments.

A reader with isolation level READ_COMMITTED skips what an index names, so every transaction that was aborted and still
has records must have an entry. Compaction may leave entries without records, and may remove the first records of a
transaction; neither is an error.
"""

from __future__ import annotations

import os
from typing import Final, final

from kcoord.cli.log.verify.findings import Findings
from kcoord.log.errors import InvalidIndex
from kcoord.log.inspect import SegmentFile
from kcoord.log.reader import StoredBatch
from kcoord.log.transaction_index import ABORT, COMMIT, TransactionIndex, decode_index, marker_type

NO_OFFSET: Final = -1


@final
class TransactionChecks:
    """Gets every batch of a log in order. `leave` compares those of a segment with its index."""

    def __init__(self, log: str, findings: Findings) -> None:
        self.log = log
        self.findings = findings
        # The first records of open transactions by producer id, and the aborted ones of the current segment.
        self._open: dict[int, int] = {}
        self._aborted: list[tuple[int, int, int]] = []

    def note(self, batch: StoredBatch) -> None:
        header = batch.header
        if header.producer_id < 0 or not header.is_transactional:
            return
        producer_id = int(header.producer_id)
        if not header.is_control:
            if header.count:
                self._open.setdefault(producer_id, int(header.base_offset))
            return
        kind = marker_type(batch.data, header)
        if kind in (ABORT, COMMIT):
            first = self._open.pop(producer_id, NO_OFFSET)
            if kind == ABORT and first >= 0:
                self._aborted.append((producer_id, first, int(header.last_offset)))

    def lost(self) -> None:
        """Batches cannot be read: which transactions are open is not known any more."""
        self._open.clear()

    def leave(self, segment: SegmentFile, is_trusted: bool) -> None:
        """The segment is read. An index that is not trusted, since opening builds it again, only has to be readable.

        Raises OSError.
        """
        aborted, self._aborted = self._aborted, []
        path = segment.beside(".txnindex")
        data = b""
        if os.path.exists(path):
            with open(path, "rb") as file:
                data = file.read()
        try:
            index = decode_index(data, segment.base_offset)
        except InvalidIndex as error:
            self.findings.error("index", self.log, str(error), path)
            return
        if not is_trusted:
            return
        entries = _entries(index)
        for producer_id, first, last in aborted:
            indexed = entries.get((producer_id, last))
            if indexed is None or indexed > first:
                text = f"it misses the transaction of producer {producer_id} from {first} on, aborted at {last}"
                self.findings.error("index", self.log, text, path, -1, first)
                return


def _entries(index: TransactionIndex) -> dict[tuple[int, int], int]:
    """The first offsets of the transactions by producer id and offset of the marker."""
    keys = zip(index.producer_ids, index.last_offsets, strict=True)
    return dict(zip(keys, index.first_offsets, strict=True))
