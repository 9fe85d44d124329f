"""Rows of the table `offset_commits`, from the columns of a scan."""

from __future__ import annotations

from typing import final

import numpy as np
import pyarrow as pa

from kcoord.log.record_plain import uuid_text
from kcoord.spark.reader.slices import Slice
from kcoord.spark.scan.columns import IN_TRANSACTION
from kcoord.spark.scan.commits import (
    NO_COMMIT_TIME,
    NO_EPOCH,
    NO_EXPIRY,
    NO_TOPIC_ID,
    NO_VALUE,
    CommitColumns,
    CommitScan,
)
from kcoord.spark.tables.arrow import TIMESTAMP
from kcoord.spark.tables.columns import ScannedRows, SliceRows, broken_texts
from kcoord.spark.tables.table import Corrupt


@final
class CommitRows(SliceRows):
    """Commits of the slice that `scan` goes through."""

    def __init__(self, scan: CommitScan, part: Slice, corrupt: Corrupt, schema: pa.Schema) -> None:
        super().__init__(scan, part, corrupt, schema)
        self.scan: CommitScan = scan

    def take(self) -> pa.RecordBatch | None:
        rows = _Rows(self.scan.take())
        batch = self.batch(rows)
        if batch is None:
            return None
        bad = rows.not_text()
        if not bad:
            return batch
        for row in bad:
            self.report(rows, row, "string is not UTF-8")
        keep = np.ones(rows.count, bool)
        keep[bad] = False
        return batch.filter(pa.array(keep)) if keep.any() else None


@final
class _Rows(ScannedRows):
    def __init__(self, found: CommitColumns) -> None:
        super().__init__(found)
        self.found: CommitColumns = found

    def column(self, name: str) -> pa.Array:
        found = self.found
        if name == "group_id":
            return self.texts(pa.string(), (found.group_ends, found.groups))
        if name == "topic":
            return self.texts(pa.string(), (found.topic_ends, found.topics))
        if name == "partition":
            return self.fixed(pa.int32(), found.partitions)
        if name == "committed_offset":
            return self.fixed(pa.int64(), found.committed, NO_VALUE)
        if name == "leader_epoch":
            return self.fixed(pa.int32(), found.epochs, NO_EPOCH)
        if name == "metadata":
            return self.texts(pa.string(), (found.text_ends, found.metadata), NO_VALUE)
        if name == "commit_timestamp":
            return self.fixed(TIMESTAMP, found.commit_times, NO_COMMIT_TIME)
        if name == "expire_timestamp":
            return self.fixed(TIMESTAMP, found.expire_times, NO_EXPIRY)
        if name == "topic_id":
            names = [uuid_text(topic_id) for topic_id in found.topic_ids]
            return self.named(names, found.topic_numbers, NO_TOPIC_ID)
        if name == "producer_id":
            return self._producer_ids()
        return pa.array(self.with_flag(NO_VALUE))

    def _producer_ids(self) -> pa.Array:
        """Null outside of transactions."""
        found = self.found
        if not found.is_transactional:
            return pa.nulls(self.count, pa.int64())
        outside = (self.of_batches(found.kinds, "u1") & IN_TRANSACTION) == 0
        return pa.array(self.of_batches(found.producer_ids, "<i8"), pa.int64(), mask=outside)

    def not_text(self) -> list[int]:
        """The rows with a group, a topic or a text that is not UTF-8."""
        found = self.found
        bad = set(broken_texts((found.group_ends, found.groups)))
        bad.update(broken_texts((found.topic_ends, found.topics)))
        bad.update(broken_texts((found.text_ends, found.metadata)))
        return sorted(bad)
