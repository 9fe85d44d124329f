"""Columns of a scan as NumPy and Arrow arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kcoord.spark.scan import Columns
from kcoord.spark.tables.rows import TIME_MS_MAX

Array = Any


class ScanArrays:
    """The numbers of `Columns` as they are, and where each value begins in `values`."""

    def __init__(self, columns: Columns) -> None:
        self.count = int(columns.count)
        self.offsets = np.frombuffer(columns.offsets.getvalue(), "<i8")
        self.timestamps = np.frombuffer(columns.timestamps.getvalue(), "<i8")
        self.batch_of = np.frombuffer(columns.batch_of.getvalue(), "<i4")
        self.key_ids = np.frombuffer(columns.key_ids.getvalue(), "<i4")
        self.key_sizes = np.frombuffer(columns.key_sizes.getvalue(), "<i4")
        self.keys = columns.key_bytes.getvalue()
        self.value_sizes = np.frombuffer(columns.value_sizes.getvalue(), "<i4")
        self.values = columns.value_bytes.getvalue()
        self.header_sizes = np.frombuffer(columns.header_sizes.getvalue(), "<i4")
        self.headers = columns.header_bytes.getvalue()
        self.positions = np.frombuffer(columns.positions.getvalue(), "<i8")
        self.producer_ids = np.frombuffer(columns.producer_ids.getvalue(), "<i8")
        self.timestamp_types = np.frombuffer(columns.timestamp_types.getvalue(), "u1")

    def place_of(self, row: Any) -> tuple[int, int]:
        """A record's offset, and the position of its batch in the file."""
        return int(self.offsets[row]), int(self.positions[self.batch_of[row]])


def starts_of(sizes: Array) -> Array:
    """Where each of so many bytes begins, all one after the other; negative sizes are nulls, and take none."""
    ends = np.cumsum(np.maximum(sizes, 0), dtype=np.int64)
    return ends - np.maximum(sizes, 0)


def numbers_at(data: Array, positions: Array, size: int) -> Array:
    """Big-endian signed numbers of `size` bytes at these positions of a byte array."""
    rows = data[positions[:, None] + np.arange(size)]
    return np.ascontiguousarray(rows).view(f">i{size}")[:, 0].astype(np.int64)


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
