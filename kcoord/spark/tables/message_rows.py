"""Rows of the table `messages`, from the columns of a scan."""

from __future__ import annotations

from typing import final

import numpy as np
import pyarrow as pa

from kcoord.spark.reader.slices import Slice
from kcoord.spark.scan.columns import BY_BROKERS_CLOCK
from kcoord.spark.scan.messages import NO_KEY, NO_VALUE, WITH_HEADERS, MessageScan, RawColumns
from kcoord.spark.tables.columns import ScannedRows, SliceRows, constant, headers_column
from kcoord.spark.tables.table import Corrupt


@final
class MessageRows(SliceRows):
    """Messages of the slice that `scan` goes through."""

    def __init__(self, scan: MessageScan, part: Slice, corrupt: Corrupt, schema: pa.Schema) -> None:
        super().__init__(scan, part, corrupt, schema)
        self.scan: MessageScan = scan

    def take(self) -> pa.RecordBatch | None:
        return self.batch(_Rows(self.scan.take()))

    def _column(self, name: str, rows: ScannedRows) -> pa.Array:
        if name == "topic":
            return constant(self.part.topic, pa.string(), rows.count)
        if name == "partition":
            return constant(self.part.partition, pa.int32(), rows.count)
        return super()._column(name, rows)


@final
class _Rows(ScannedRows):
    def __init__(self, found: RawColumns) -> None:
        super().__init__(found)
        self.found: RawColumns = found

    def column(self, name: str) -> pa.Array:
        found = self.found
        if name == "key":
            return self.texts(pa.binary(), (found.key_ends, found.keys), NO_KEY)
        if name == "value":
            return self.texts(pa.binary(), (found.value_ends, found.values), NO_VALUE)
        if name == "offset":
            return self.offsets()
        if name == "timestamp":
            return self.timestamps()
        if name == "timestampType":
            kinds = self.of_batches(found.kinds, "u1") & BY_BROKERS_CLOCK
            return pa.array(kinds.astype(np.int32), pa.int32())
        return headers_column(self, (found.header_ends, found.headers), WITH_HEADERS)
