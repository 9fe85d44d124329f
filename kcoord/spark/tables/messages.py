"""The table `messages`: records of topics, with the columns of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from kcoord.spark.options import MESSAGES
from kcoord.spark.plan import Slice
from kcoord.spark.scan import MessageScan
from kcoord.spark.tables.columns import MessageArrays, binary, constant, record_batch, starts_of, timestamps
from kcoord.spark.tables.schemas import arrow_schema
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import headers_at

Corrupt = Callable[[int, int, str], None]


class MessageTable:
    """Messages of the slice that `scan` goes through; with `columns` rows have just these, in that order."""

    def __init__(self, scan: MessageScan, part: Slice, corrupt: Corrupt, columns: Sequence[str] = ()) -> None:
        self.scan = scan
        self.part = part
        self.schema = arrow_schema(MESSAGES, columns)
        self.corrupt = corrupt

    def take(self) -> pa.RecordBatch | None:
        """What the scan has, as rows; None if there is nothing."""
        arrays = MessageArrays(self.scan.take())
        if arrays.count == 0:
            return None
        return record_batch([self._column(name, arrays) for name in self.schema.names], self.schema)

    def _column(self, name: str, arrays: MessageArrays) -> pa.Array:
        count = arrays.count
        if name == "key":
            return binary(arrays.keys, arrays.key_sizes)
        if name == "value":
            return binary(arrays.values, arrays.value_sizes)
        if name == "topic":
            return constant(self.part.topic, pa.string(), count)
        if name == "partition":
            return constant(self.part.partition, pa.int32(), count)
        if name == "offset":
            return pa.array(arrays.offsets, pa.int64())
        if name == "timestamp":
            return timestamps(arrays.timestamps)
        if name == "timestampType":
            return pa.array(arrays.timestamp_types[arrays.batch_of].astype(np.int32), pa.int32())
        if name == "headers":
            return self._headers(arrays)
        return constant(self.part.log, pa.string(), count)

    def _headers(self, arrays: MessageArrays) -> pa.Array:
        kind = self.schema.field("headers").type
        starts = starts_of(arrays.header_sizes)
        with_headers = np.flatnonzero(arrays.header_sizes > 1)
        found: list[list[dict[str, object]] | None] = [None] * arrays.count
        for row in with_headers:
            start = int(starts[row])
            try:
                headers = headers_at(arrays.headers, start, start + int(arrays.header_sizes[row]))
            except DecodeError as error:
                self.corrupt(*arrays.place_of(row), str(error))
                continue
            found[row] = [
                {"key": key.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": value}
                for key, value in headers
            ]
        if not len(with_headers):
            return pa.nulls(arrays.count, kind)
        return pa.array(found, kind)
