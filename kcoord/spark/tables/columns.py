"""The columns of a scan as Arrow arrays, most of them without a copy, and what all rows of scans share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kcoord.spark.reader.slices import Slice
from kcoord.spark.scan.columns import NO_TIMESTAMP, Columns, Scan
from kcoord.spark.tables.arrow import HEADERS, TIMESTAMP
from kcoord.spark.tables.table import Corrupt
from kcoord.wire.primitives import BytesWriter
from kcoord.wire.record_batch import headers_at

Array = Any
# Ends of texts, and the texts.
Texts = tuple[BytesWriter, BytesWriter]
# A validity bitmap and how many nulls it has; None for a column without.
Nulls = tuple[pa.Buffer, int] | None
# The first two bits of a byte inside a UTF-8 character.
CONTINUES_MASK, CONTINUES = 0xC0, 0x80


class ScannedRows(ABC):
    """The columns of a scan as Arrow arrays."""

    def __init__(self, found: Columns) -> None:
        self.found = found
        self.count = int(found.count)
        self.flags = numbers(found.flags, "<i4")

    @abstractmethod
    def column(self, name: str) -> pa.Array:
        """A column of this table that SliceRows does not make for all tables."""

    def offsets(self) -> pa.Array:
        return self.fixed(pa.int64(), self.found.offsets)

    def timestamps(self) -> pa.Array:
        return self.fixed(TIMESTAMP, self.found.timestamps, NO_TIMESTAMP)

    def fixed(self, kind: pa.DataType, data: BytesWriter, null_flag: int = 0) -> pa.Array:
        """Numbers; null in rows with that flag."""
        bitmap, null_count = self._nulls(null_flag) or (None, 0)
        return pa.Array.from_buffers(kind, self.count, [bitmap, pa.py_buffer(data.getvalue())], null_count)

    def texts(self, kind: pa.DataType, texts: Texts, null_flag: int = 0) -> pa.Array:
        """Texts that `broken_texts` looked at, or bytes; null in rows with that flag."""
        ends, data = texts
        bitmap, null_count = self._nulls(null_flag) or (None, 0)
        buffers = [bitmap, pa.py_buffer(ends.getvalue()), pa.py_buffer(data.getvalue())]
        return pa.Array.from_buffers(kind, self.count, buffers, null_count)

    def named(self, names: Sequence[str], which: BytesWriter, null_flag: int) -> pa.Array:
        """The name at each row's number in `which`."""
        if not names:
            return pa.nulls(self.count, pa.string())
        return pa.array(names, pa.string()).take(self.fixed(pa.int32(), which, null_flag))

    def with_flag(self, flag: int) -> Array:
        return (self.flags & flag) != 0

    def of_batches(self, data: BytesWriter, kind: str) -> Array:
        """A number of each row's batch."""
        return numbers(data, kind)[self.batch_of()]

    def batch_of(self) -> Array:
        return numbers(self.found.batch_of, "<i4")

    def _nulls(self, flag: int) -> Nulls:
        nulls = self.with_flag(flag)
        count = int(np.count_nonzero(nulls))
        if count == 0:
            return None
        return pa.py_buffer(np.packbits(~nulls, bitorder="little").tobytes()), count


class SliceRows(ABC):
    """Rows of one slice from a scan, with the columns of `schema`."""

    def __init__(self, scan: Scan, part: Slice, corrupt: Corrupt, schema: pa.Schema) -> None:
        self.scan = scan
        self.part = part
        self.schema = schema
        self.corrupt = corrupt

    @abstractmethod
    def take(self) -> pa.RecordBatch | None:
        """Take the rows out of the scan; None if there are none."""

    def batch(self, rows: ScannedRows) -> pa.RecordBatch | None:
        found = rows.found
        for offset, batch, reason in found.bad:
            self.corrupt(offset, self.position(found, batch), reason)
        if rows.count == 0:
            return None
        arrays = [self._column(name, rows) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def position(self, found: Columns, batch: int) -> int:
        """Where in the file a batch is."""
        return int(numbers(found.positions, "<i8")[batch])

    def report(self, rows: ScannedRows, row: int, reason: str) -> None:
        found = rows.found
        offset = int(numbers(found.offsets, "<i8")[row])
        self.corrupt(offset, self.position(found, int(rows.batch_of()[row])), reason)

    def _column(self, name: str, rows: ScannedRows) -> pa.Array:
        part = self.part
        if name == "log":
            return constant(part.log, pa.string(), rows.count)
        if name == "log_topic":
            return constant(part.topic, pa.string(), rows.count)
        if name == "log_partition":
            return constant(part.partition, pa.int32(), rows.count)
        if name == "log_offset":
            return rows.offsets()
        if name == "log_timestamp":
            return rows.timestamps()
        return rows.column(name)


def numbers(data: BytesWriter, kind: str) -> Array:
    return np.frombuffer(data.getvalue(), kind)


def constant(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def broken_texts(texts: Texts) -> list[int]:
    """Which of them are not UTF-8."""
    data = texts[1].getvalue()
    if data.isascii():
        return []
    ends = numbers(texts[0], "<i4")
    starts = ends[:-1][ends[:-1] < len(data)]
    try:
        data.decode()
        if not ((np.frombuffer(data, "u1")[starts] & CONTINUES_MASK) == CONTINUES).any():
            return []
    except UnicodeDecodeError:
        pass
    return [row for row in range(len(ends) - 1) if not _is_text(data[ends[row] : ends[row + 1]])]


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def headers_column(rows: ScannedRows, texts: Texts, flag: int) -> pa.Array:
    """Lists of headers; null in rows without that flag. Names that are not UTF-8 keep the parts that are."""
    with_headers = np.flatnonzero(rows.with_flag(flag))
    if not len(with_headers):
        return pa.nulls(rows.count, HEADERS)
    ends = numbers(texts[0], "<i4")
    data = texts[1].getvalue()
    found: list[Any] = [None] * rows.count
    for row in with_headers.tolist():
        headers = headers_at(data, int(ends[row]), int(ends[row + 1]))
        found[row] = [
            {"key": key.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": value}
            for key, value in headers
        ]
    return pa.array(found, HEADERS)
