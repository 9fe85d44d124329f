"""The table `offset_commits`: from columns of a scan, mostly without looking at single records.

What differs from commit to commit are a few numbers at the same places of each value: NumPy takes them out of all
values of one layout at once. Keys come again and again, and each is decoded once. Values of old versions, and those
that are not what they should be, are decoded one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from kcoord.log.record_plain import uuid_text
from kcoord.protocol.records.offset_commit import (
    OffsetCommitValue,
    decode_offset_commit_value,
)
from kcoord.spark.plan import Slice
from kcoord.spark.scan import KEYS_MAX, Scan, commit_key
from kcoord.spark.tables.columns import (
    ScanArrays,
    binary,
    constant,
    numbers_at,
    record_batch,
    starts_of,
    timestamps,
)
from kcoord.spark.tables.schemas import OFFSET_COMMITS_SCHEMA
from kcoord.wire.primitives import ZERO_UUID, DecodeError, Reader

# Offset of the record, position of its batch, why it cannot be read.
Corrupt = Callable[[int, int, str], None]
Wants = Callable[[str, str, int], bool]
OFFSET_AT = 2
EPOCH_AT = 10
TEXT_AT = 14
V3_FIXED = 24
V4_FIXED = 24
V4_TOPIC_ID = 18
NO_EPOCH = -1
NO_KEY = ("", "", -1)
NO_TIME = -1


class CommitTable:
    """Commits of the slice that `scan` goes through; of keys (group, topic, partition) that `wants` says yes to."""

    def __init__(self, scan: Scan, part: Slice, corrupt: Corrupt, wants: Wants) -> None:
        self.scan = scan
        self.part = part
        self.schema = OFFSET_COMMITS_SCHEMA
        self.corrupt = corrupt
        self.wants = wants
        self._forget()

    def _forget(self) -> None:
        # Of each key: what it says; None where that is no commit, or none that is wanted.
        self.found: list[tuple[str, str, int] | None] = []
        self.reasons: dict[int, str] = {}

    def take(self) -> pa.RecordBatch | None:
        """What the scan has, as rows; None if no commits are among them."""
        arrays = ScanArrays(self.scan.take())
        if arrays.count == 0:
            return None
        self._learn()
        self._report(arrays)
        numbers, key_of = np.unique(arrays.key_ids, return_inverse=True)
        keys = [self.found[number] if number >= 0 else None for number in numbers.tolist()]
        rows = np.flatnonzero(np.array([key is not None for key in keys])[key_of])
        batch = self._rows(arrays, rows, keys, key_of) if len(rows) else None
        if len(self.scan.keys) >= KEYS_MAX:
            self.scan.forget_keys()
            self._forget()
        return batch

    def _learn(self) -> None:
        """Decode the keys that are new."""
        for number in range(len(self.found), len(self.scan.keys)):
            found = None
            try:
                found = commit_key(self.scan.keys[number])
            except DecodeError as error:
                self.reasons[number] = str(error)
            if found is not None and not self.wants(*found):
                found = None
            self.found.append(found)

    def _report(self, arrays: ScanArrays) -> None:
        bad = arrays.key_ids < 0
        if self.reasons:
            bad |= np.isin(arrays.key_ids, list(self.reasons))
        for row in np.flatnonzero(bad):
            reason = self.reasons.get(int(arrays.key_ids[row]), "a record without a key")
            self.corrupt(*arrays.place_of(row), reason)

    def _rows(
        self, arrays: ScanArrays, rows: Any, keys: list[tuple[str, str, int] | None], key_of: Any
    ) -> pa.RecordBatch | None:
        values = _Values(arrays, rows)
        values.decode()
        if values.bad:
            for index, reason in values.bad.items():
                row = rows[index]
                self.corrupt(*arrays.place_of(row), reason)
            keep = np.ones(len(rows), bool)
            keep[list(values.bad)] = False
            rows = rows[keep]
            if not len(rows):
                return None
            values.keep(keep)
        groups, topics, partitions = zip(*[key or NO_KEY for key in keys], strict=True)
        ids = pa.array(key_of[rows])
        count = len(rows)
        part = self.part
        nulls = values.is_null
        producers = arrays.producer_ids[arrays.batch_of[rows]]
        return record_batch(
            [
                constant(part.log, pa.string(), count),
                constant(part.topic, pa.string(), count),
                constant(part.partition, pa.int32(), count),
                pa.array(arrays.offsets[rows], pa.int64()),
                timestamps(arrays.timestamps[rows]),
                pa.array(groups, pa.string()).take(ids),
                pa.array(topics, pa.string()).take(ids),
                pa.array(partitions, pa.int32()).take(ids),
                pa.array(values.offsets, pa.int64(), mask=nulls),
                pa.array(
                    values.epochs.astype(np.int32), pa.int32(), mask=nulls | (values.epochs == NO_EPOCH)
                ),
                values.texts(),
                timestamps(values.commit_ms, nulls),
                timestamps(values.expire_ms, nulls),
                values.topic_ids(),
                pa.array(producers, pa.int64(), mask=producers < 0),
                pa.array(nulls, pa.bool_()),
            ],
            self.schema,
        )


class _Values:
    """The values of some rows; `bad` tells which of them cannot be read, and why."""

    def __init__(self, arrays: ScanArrays, rows: Any) -> None:
        self.data = np.frombuffer(arrays.values, "u1")
        self.bytes = arrays.values
        self.sizes = arrays.value_sizes[rows]
        self.starts = starts_of(arrays.value_sizes)[rows]
        count = len(rows)
        self.is_null = self.sizes < 0
        self.offsets = np.zeros(count, np.int64)
        self.epochs = np.full(count, NO_EPOCH, np.int64)
        self.commit_ms = np.full(count, NO_TIME, np.int64)
        self.expire_ms = np.full(count, NO_TIME, np.int64)
        self.text_starts = np.zeros(count, np.int64)
        self.text_sizes = np.zeros(count, np.int64)
        # Where a topic id is, -1 for none.
        self.id_starts = np.full(count, -1, np.int64)
        self.bad: dict[int, str] = {}

    def decode(self) -> None:
        long_enough = np.flatnonzero(self.sizes >= V3_FIXED)
        versions = numbers_at(self.data, self.starts[long_enough], 2)
        done = np.zeros(len(self.sizes), bool)
        for version, take in ((3, self._version_3), (4, self._version_4)):
            rows = take(long_enough[versions == version])
            self.offsets[rows] = numbers_at(self.data, self.starts[rows] + OFFSET_AT, 8)
            self.epochs[rows] = numbers_at(self.data, self.starts[rows] + EPOCH_AT, 4)
            self.commit_ms[rows] = numbers_at(self.data, self.text_starts[rows] + self.text_sizes[rows], 8)
            done[rows] = True
        for index in np.flatnonzero(~done & ~self.is_null):
            self._one(int(index))

    def _version_3(self, rows: Any) -> Any:
        """Which of these have the length that their text says; where that is."""
        sizes = numbers_at(self.data, self.starts[rows] + TEXT_AT, 2)
        rows, sizes = _both(rows, sizes, (sizes >= 0) & (self.sizes[rows] == V3_FIXED + sizes))
        self.text_starts[rows] = self.starts[rows] + TEXT_AT + 2
        self.text_sizes[rows] = sizes
        return rows

    def _version_4(self, rows: Any) -> Any:
        # Lengths of up to 126 take one byte, in which they are one more.
        sizes = self.data[self.starts[rows] + TEXT_AT].astype(np.int64) - 1
        fixed = self.sizes[rows] - sizes
        rows, sizes = _both(
            rows, sizes, (sizes >= 0) & (sizes < 127) & np.isin(fixed, (V4_FIXED, V4_FIXED + V4_TOPIC_ID))
        )
        tags = self.starts[rows] + TEXT_AT + 1 + sizes + 8
        has_id = self.sizes[rows] - sizes > V4_FIXED
        right = np.where(has_id, self.data[tags] == 1, self.data[tags] == 0)
        with_id = np.flatnonzero(has_id)
        # Tag 0, of 16 bytes.
        right[with_id] &= (self.data[tags[with_id] + 1] == 0) & (self.data[tags[with_id] + 2] == 16)
        rows, sizes = rows[right], sizes[right]
        self.id_starts[rows] = np.where(has_id[right], tags[right] + 3, -1)
        self.text_starts[rows] = self.starts[rows] + TEXT_AT + 1
        self.text_sizes[rows] = sizes
        return rows

    def _one(self, index: int) -> None:
        start = int(self.starts[index])
        end = start + int(self.sizes[index])
        try:
            r = Reader(self.bytes[start:end])
            version = r.int16()
            if not 0 <= version <= 4:
                raise DecodeError(f"OffsetCommitValue of unknown version {version}")
            value: OffsetCommitValue = decode_offset_commit_value(r, version)
            r.expect_end()
        except DecodeError as error:
            self.bad[index] = str(error)
            return
        self.offsets[index] = value.offset
        self.epochs[index] = value.leader_epoch
        self.commit_ms[index] = value.commit_timestamp
        self.expire_ms[index] = value.expire_timestamp
        text = value.metadata.encode()
        # It stands in the value as it is.
        self.text_starts[index] = self.bytes.find(text, start, end) if text else start
        self.text_sizes[index] = len(text)
        if value.topic_id != ZERO_UUID:
            self.id_starts[index] = self.bytes.find(value.topic_id, start, end)

    def keep(self, wanted: Any) -> None:
        for name in (
            "sizes", "starts", "is_null", "offsets", "epochs", "commit_ms", "expire_ms", "text_starts", "text_sizes",
            "id_starts",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name)[wanted])

    def texts(self) -> pa.Array:
        count = len(self.sizes)
        with_text = np.flatnonzero(self.text_sizes > 0)
        if not len(with_text):
            empty = binary(b"", np.where(self.is_null, -1, 0))
            return empty.cast(pa.string())
        texts: list[str | None] = [""] * count
        for index in with_text:
            start = int(self.text_starts[index])
            texts[index] = self.bytes[start : start + int(self.text_sizes[index])].decode("utf-8", "replace")
        return pa.array(texts, pa.string(), mask=self.is_null)

    def topic_ids(self) -> pa.Array:
        with_id = np.flatnonzero(self.id_starts >= 0)
        if not len(with_id):
            return pa.nulls(len(self.sizes), pa.string())
        found: dict[bytes, str] = {}
        ids: list[str | None] = [None] * len(self.sizes)
        for index in with_id:
            start = int(self.id_starts[index])
            raw = self.bytes[start : start + 16]
            text = found.get(raw)
            if text is None:
                text = found[raw] = uuid_text(raw)
            ids[index] = text if raw != ZERO_UUID else None
        return pa.array(ids, pa.string())


def _both(rows: Any, sizes: Any, wanted: Any) -> tuple[Any, Any]:
    return rows[wanted], sizes[wanted]
