"""The table `offset_commits`: the columns of a scan as Arrow has them, which are mostly taken as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kcoord.log.record_plain import uuid_text
from kcoord.spark import commit_scan
from kcoord.spark.commit_scan import CommitColumns, CommitScan
from kcoord.spark.options import OFFSET_COMMITS
from kcoord.spark.plan import Slice
from kcoord.spark.tables.columns import Nulls, broken_texts, constant, fixed, flags_set, record_batch, strings
from kcoord.spark.tables.schemas import arrow_schema

# Offset of the record, position of its batch, why it cannot be read.
Corrupt = Callable[[int, int, str], None]
UTC_TIME = pa.timestamp("us", tz="UTC")


class CommitTable:
    """Commits of the slice that `scan` goes through; with `columns` rows have just these, in that order."""

    def __init__(self, scan: CommitScan, part: Slice, corrupt: Corrupt, columns: Sequence[str] = ()) -> None:
        self.scan = scan
        self.part = part
        self.schema = arrow_schema(OFFSET_COMMITS, columns)
        self.corrupt = corrupt

    def take(self) -> pa.RecordBatch | None:
        """What the scan has, as rows; None if no commits are among them."""
        found = self.scan.take()
        for offset, batch, reason in found.bad:
            self.corrupt(offset, self._position(found, batch), reason)
        if found.count == 0:
            return None
        rows = _Rows(found)
        batch = record_batch([self._column(name, rows) for name in self.schema.names], self.schema)
        bad = rows.not_text()
        if not bad:
            return batch
        for row in bad:
            offset = int(np.frombuffer(found.offsets.getvalue(), "<i8")[row])
            self.corrupt(offset, self._position(found, int(rows.batch_of()[row])), "string is not UTF-8")
        keep = np.ones(rows.count, bool)
        keep[bad] = False
        return batch.filter(pa.array(keep)) if keep.any() else None

    @staticmethod
    def _position(found: CommitColumns, batch: int) -> int:
        return int(np.frombuffer(found.positions.getvalue(), "<i8")[batch])

    def _column(self, name: str, rows: _Rows) -> pa.Array:
        part = self.part
        if name == "log":
            return constant(part.log, pa.string(), rows.count)
        if name == "log_topic":
            return constant(part.topic, pa.string(), rows.count)
        if name == "log_partition":
            return constant(part.partition, pa.int32(), rows.count)
        return rows.column(name)


class _Rows:
    """Arrow's columns of what a scan found."""

    def __init__(self, found: CommitColumns) -> None:
        self.found = found
        self.count = int(found.count)
        self.flags = np.frombuffer(found.flags.getvalue(), "u1")
        self.no_value = flags_set(self.flags, commit_scan.NO_VALUE)

    def column(self, name: str) -> pa.Array:
        found, count = self.found, self.count
        if name == "log_offset":
            return fixed(pa.int64(), count, found.offsets)
        if name == "log_timestamp":
            return fixed(UTC_TIME, count, found.timestamps, self._nulls(commit_scan.NO_TIMESTAMP))
        if name == "group_id":
            return strings(count, found.group_ends, found.groups)
        if name == "topic":
            return strings(count, found.topic_ends, found.topics)
        if name == "partition":
            return fixed(pa.int32(), count, found.partitions)
        if name == "committed_offset":
            return fixed(pa.int64(), count, found.committed, self.no_value)
        if name == "leader_epoch":
            return fixed(pa.int32(), count, found.epochs, self._nulls(commit_scan.NO_EPOCH))
        if name == "metadata":
            return strings(count, found.text_ends, found.texts, self.no_value)
        if name == "commit_timestamp":
            return fixed(UTC_TIME, count, found.commit_times, self._nulls(commit_scan.NO_COMMIT_TIME))
        if name == "expire_timestamp":
            return fixed(UTC_TIME, count, found.expire_times, self._nulls(commit_scan.NO_EXPIRY))
        if name == "topic_id":
            return self._topic_ids()
        if name == "producer_id":
            return self._producer_ids()
        return pa.array((self.flags & commit_scan.NO_VALUE) != 0)

    def _nulls(self, flag: int) -> Nulls:
        return flags_set(self.flags, flag)

    def _topic_ids(self) -> pa.Array:
        texts = [uuid_text(topic_id) for topic_id in self.found.topic_ids]
        if not texts:
            return pa.nulls(self.count, pa.string())
        numbers = fixed(pa.int32(), self.count, self.found.topic_numbers, self._nulls(commit_scan.NO_TOPIC_ID))
        return pa.array(texts, pa.string()).take(numbers)

    def _producer_ids(self) -> pa.Array:
        if not self.found.is_transactional:
            return pa.nulls(self.count, pa.int64())
        producers = np.frombuffer(self.found.producer_ids.getvalue(), "<i8")[self.batch_of()]
        return pa.array(producers, pa.int64(), mask=producers < 0)

    def batch_of(self) -> Any:
        return np.frombuffer(self.found.batch_of.getvalue(), "<i4")

    def not_text(self) -> list[int]:
        """The rows with a group, a topic or a text that is not UTF-8."""
        found = self.found
        bad: set[int] = set()
        for ends, data in (
            (found.group_ends, found.groups), (found.topic_ends, found.topics), (found.text_ends, found.texts),
        ):  # fmt: skip
            bad.update(broken_texts(ends, data))
        return sorted(bad)
