"""The table `messages`: records of topics, with the columns of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from kcoord.spark.plan import Slice
from kcoord.spark.scan import Scan
from kcoord.spark.tables.columns import ScanArrays, binary, constant, record_batch, starts_of, timestamps
from kcoord.spark.tables.schemas import MESSAGES_SCHEMA
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import headers_at

Corrupt = Callable[[int, int, str], None]


class MessageTable:
    """Messages of the slice that `scan` goes through."""

    def __init__(self, scan: Scan, part: Slice, corrupt: Corrupt) -> None:
        self.scan = scan
        self.part = part
        self.schema = MESSAGES_SCHEMA
        self.corrupt = corrupt

    def take(self) -> pa.RecordBatch | None:
        """What the scan has, as rows; None if there is nothing."""
        arrays = ScanArrays(self.scan.take())
        count = arrays.count
        if count == 0:
            return None
        part = self.part
        columns = {
            "key": binary(arrays.keys, arrays.key_sizes),
            "value": binary(arrays.values, arrays.value_sizes),
            "topic": constant(part.topic, pa.string(), count),
            "partition": constant(part.partition, pa.int32(), count),
            "offset": pa.array(arrays.offsets, pa.int64()),
            "timestamp": timestamps(arrays.timestamps),
            "timestampType": pa.array(arrays.timestamp_types[arrays.batch_of].astype(np.int32), pa.int32()),
            "headers": self._headers(arrays),
            "log": constant(part.log, pa.string(), count),
        }
        return record_batch([columns[name] for name in self.schema.names], self.schema)

    def _headers(self, arrays: ScanArrays) -> pa.Array:
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
