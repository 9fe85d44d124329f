"""Columns of a scan as NumPy and Arrow arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kcoord.spark.plan import TIME_MS_MAX
from kcoord.spark.scan import MessageColumns
from kcoord.wire.primitives import BytesWriter

Array = Any
# A validity bitmap and how many nulls it has; None for a column without.
Nulls = tuple[pa.Buffer, int] | None
CONTINUES_MASK, CONTINUES = 0xC0, 0x80


class MessageArrays:
    """The numbers of `MessageColumns` as they are."""

    def __init__(self, columns: MessageColumns) -> None:
        self.count = int(columns.count)
        self.offsets = np.frombuffer(columns.offsets.getvalue(), "<i8")
        self.timestamps = np.frombuffer(columns.timestamps.getvalue(), "<i8")
        self.batch_of = np.frombuffer(columns.batch_of.getvalue(), "<i4")
        self.key_sizes = np.frombuffer(columns.key_sizes.getvalue(), "<i4")
        self.keys = columns.key_bytes.getvalue()
        self.value_sizes = np.frombuffer(columns.value_sizes.getvalue(), "<i4")
        self.values = columns.value_bytes.getvalue()
        self.header_sizes = np.frombuffer(columns.header_sizes.getvalue(), "<i4")
        self.headers = columns.header_bytes.getvalue()
        self.positions = np.frombuffer(columns.positions.getvalue(), "<i8")
        self.timestamp_types = np.frombuffer(columns.timestamp_types.getvalue(), "u1")

    def place_of(self, row: Any) -> tuple[int, int]:
        """A record's offset, and the position of its batch in the file."""
        return int(self.offsets[row]), int(self.positions[self.batch_of[row]])


def starts_of(sizes: Array) -> Array:
    """Where each of so many bytes begins, all one after the other; negative sizes are nulls, and take none."""
    ends = np.cumsum(np.maximum(sizes, 0), dtype=np.int64)
    return ends - np.maximum(sizes, 0)


def timestamps(ms: Array, is_null: Array | None = None) -> pa.Array:
    """Timestamps in UTC from milliseconds; null where that is asked for, below 0, and beyond TIME_MS_MAX."""
    ms = ms.astype(np.int64)
    nulls = (ms < 0) | (ms > TIME_MS_MAX)
    if is_null is not None:
        nulls |= is_null
    us = np.where(nulls, 0, ms) * 1000
    return pa.array(us, pa.int64(), mask=nulls).cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))


def binary(data: bytes, sizes: Array) -> pa.Array:
    """A binary array over `data`, which is not copied."""
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(np.maximum(sizes, 0), out=ends[1:])
    nulls = sizes < 0
    bitmap = None
    if nulls.any():
        bitmap = pa.py_buffer(np.packbits(~nulls, bitorder="little").tobytes())
    return pa.Array.from_buffers(
        pa.binary(), len(sizes), [bitmap, pa.py_buffer(ends.tobytes()), pa.py_buffer(data)], int(nulls.sum())
    )


def constant(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def record_batch(arrays: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(arrays), schema=schema)


def flags_set(flags: Array, flag: int) -> Nulls:
    """Nulls where a row's flags have this one."""
    nulls = (flags & flag) != 0
    count = int(np.count_nonzero(nulls))
    if count == 0:
        return None
    return pa.py_buffer(np.packbits(~nulls, bitorder="little").tobytes()), count


def fixed(kind: pa.DataType, count: int, data: BytesWriter, nulls: Nulls = None) -> pa.Array:
    """An array of numbers over little-endian ones."""
    bitmap, null_count = nulls or (None, 0)
    return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(data.getvalue())], null_count)


def strings(count: int, ends: BytesWriter, data: BytesWriter, nulls: Nulls = None) -> pa.Array:
    """An array of texts, which `broken_texts` looked at, that end at `ends`; the first of those is a 0."""
    bitmap, null_count = nulls or (None, 0)
    buffers = [bitmap, pa.py_buffer(ends.getvalue()), pa.py_buffer(data.getvalue())]
    return pa.Array.from_buffers(pa.string(), count, buffers, null_count)


def broken_texts(ends: BytesWriter, data: BytesWriter) -> list[int]:
    """Which of the texts that end at `ends` are not UTF-8."""
    texts = data.getvalue()
    if texts.isascii():
        return []
    places = np.frombuffer(ends.getvalue(), "<i4")
    starts = places[:-1][places[:-1] < len(texts)]
    whole = np.frombuffer(texts, "u1")
    try:
        texts.decode()
        if not ((whole[starts] & CONTINUES_MASK) == CONTINUES).any():
            return []
    except UnicodeDecodeError:
        pass
    return [row for row in range(len(places) - 1) if not _is_text(texts[places[row] : places[row + 1]])]


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
