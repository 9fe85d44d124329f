"""Messages of many batches into columns, with their bytes unchanged."""

from __future__ import annotations

from typing import Final, final

from kcoord.spark.scan.columns import Columns, RecordSpan, Scan, ScanRange
from kcoord.wire.primitives import i32, i64, write_i32_le
from kcoord.wire.record_batch import BatchHeader

# What is null in a row, in `flags`, and whether it has headers.
NO_KEY: Final = 2
NO_VALUE: Final = 4
WITH_HEADERS: Final = 8


class RawColumns(Columns):
    """Keys, values and headers (as in the record, their count first); columns that are not needed stay empty."""

    def __init__(self, with_keys: bool, with_values: bool, with_headers: bool) -> None:
        super().__init__()
        self.with_keys = with_keys
        self.with_values = with_values
        self.with_headers = with_headers
        self.key_ends, self.keys = self.text()
        self.value_ends, self.values = self.text()
        self.header_ends, self.headers = self.text()

    def put(self, data: bytes, span: RecordSpan, flags: i64) -> None:
        """Add a row. A subclass may have written its own columns before, and passes their flags."""
        if span.key_size < 0:
            flags |= NO_KEY
        if span.value_size < 0:
            flags |= NO_VALUE
        # One byte, a count of 0, is what most records have.
        has_headers = span.end - span.headers_at > 1
        if has_headers:
            flags |= WITH_HEADERS
        self.begin_row(span, flags)
        if self.with_keys:
            if span.key_size > 0:
                self.keys.write(data[span.key_at : span.key_at + span.key_size])
            write_i32_le(self.key_ends, i32(len(self.keys)))
        if self.with_values:
            if span.value_size > 0:
                self.values.write(data[span.value_at : span.value_at + span.value_size])
            write_i32_le(self.value_ends, i32(len(self.values)))
        if self.with_headers:
            if has_headers:
                self.headers.write(data[span.headers_at : span.end])
            write_i32_le(self.header_ends, i32(len(self.headers)))


@final
class MessageScan(Scan):
    """`take` returns the columns so far and starts new ones."""

    def __init__(self, wanted: ScanRange, with_keys: bool, with_values: bool, with_headers: bool) -> None:
        super().__init__(wanted)
        self.columns = RawColumns(with_keys, with_values, with_headers)
        self.base = self.columns

    def take(self) -> RawColumns:
        columns = self.columns
        self.columns = RawColumns(columns.with_keys, columns.with_values, columns.with_headers)
        self.base = self.columns
        return columns

    def record(self, data: bytes, header: BatchHeader, span: RecordSpan) -> None:
        self.columns.put(data, span, 0)
