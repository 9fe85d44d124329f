"""Messages of many batches into columns, as they are."""

from __future__ import annotations

from typing import Final, final

from kcoord.spark.scan import Columns, Scan, ScanRange
from kcoord.wire.primitives import i32, i64, write_i32_le
from kcoord.wire.record_batch import BatchHeader

NO_KEY: Final = 2
NO_VALUE: Final = 4
WITH_HEADERS: Final = 8


@final
class MessageColumns(Columns):
    """Headers are as in the record, their count first."""

    def __init__(self) -> None:
        super().__init__()
        self.key_ends, self.keys = self.text()
        self.value_ends, self.values = self.text()
        self.header_ends, self.headers = self.text()


@final
class MessageScan(Scan):
    """What is not asked for stays empty. `take` gives what came together and begins anew."""

    def __init__(self, wanted: ScanRange, with_keys: bool, with_values: bool, with_headers: bool) -> None:
        super().__init__(wanted)
        self.with_keys = with_keys
        self.with_values = with_values
        self.with_headers = with_headers
        self.columns = MessageColumns()
        self.base = self.columns

    def take(self) -> MessageColumns:
        columns = self.columns
        self.columns = MessageColumns()
        self.base = self.columns
        return columns

    def record(
        self,
        data: bytes,
        header: BatchHeader,
        offset: i64,
        timestamp: i64,
        key_at: i64,
        key_size: i64,
        value_at: i64,
        value_size: i64,
        headers_at: i64,
        end: i64,
    ) -> None:
        c = self.columns
        flags: i64 = 0
        if key_size < 0:
            flags |= NO_KEY
        if value_size < 0:
            flags |= NO_VALUE
        # One byte, a count of 0, is what most records have.
        if end - headers_at > 1:
            flags |= WITH_HEADERS
        c.begin_row(offset, timestamp, flags)
        if self.with_keys:
            if key_size > 0:
                c.keys.write(data[key_at : key_at + key_size])
            write_i32_le(c.key_ends, i32(len(c.keys)))
        if self.with_values:
            if value_size > 0:
                c.values.write(data[value_at : value_at + value_size])
            write_i32_le(c.value_ends, i32(len(c.values)))
        if self.with_headers:
            if end - headers_at > 1:
                c.headers.write(data[headers_at:end])
            write_i32_le(c.header_ends, i32(len(c.headers)))
