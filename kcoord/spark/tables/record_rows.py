"""Rows of the table `records` without JSON, from the columns of a scan; records.py makes those with JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import pyarrow as pa

from kcoord.spark.reader.slices import Slice
from kcoord.spark.scan import messages as message_scan
from kcoord.spark.scan import records as record_scan
from kcoord.spark.scan.records import RecordColumns, RecordScan
from kcoord.spark.tables.columns import ScannedRows, SliceRows, headers_column
from kcoord.spark.tables.table import Corrupt


@final
class RecordRows(SliceRows):
    """Records of the slice that `scan` goes through."""

    def __init__(
        self,
        scan: RecordScan,
        part: Slice,
        corrupt: Corrupt,
        schema: pa.Schema,
        is_newest: bool = False,
    ) -> None:
        """With `is_newest`, each batch of rows has only the newest record of a key."""
        super().__init__(scan, part, corrupt, schema)
        self.scan: RecordScan = scan
        self.is_newest = is_newest

    def take(self) -> pa.RecordBatch | None:
        rows = _Rows(self.scan.take(), self.scan.names)
        batch = self.batch(rows)
        if batch is None or not self.is_newest:
            return batch
        return batch.take(newest_of(rows.column("key")))


def newest_of(keys: pa.Array) -> pa.Array:
    """The positions of the last row of each key, and of all rows without a key, in order."""
    encoded = keys.dictionary_encode()
    numbers = encoded.indices.fill_null(-1).to_numpy()
    rows = np.arange(len(numbers))
    last = np.full(len(encoded.dictionary), -1)
    has_key = numbers >= 0
    # Of several assignments to one position NumPy keeps the last.
    last[numbers[has_key]] = rows[has_key]
    return pa.array(np.sort(np.concatenate([last, rows[~has_key]])))


@final
class _Rows(ScannedRows):
    def __init__(self, found: RecordColumns, names: Sequence[str]) -> None:
        super().__init__(found)
        self.found: RecordColumns = found
        self.names = names

    def column(self, name: str) -> pa.Array:
        found = self.found
        if name == "record_type":
            return self.fixed(pa.int32(), found.types, record_scan.NO_TYPE)
        if name == "record_version":
            return self.fixed(pa.int32(), found.versions, record_scan.NO_VERSION)
        if name == "record_name":
            return self.named(self.names, found.name_numbers, record_scan.NO_NAME)
        if name == "group_id":
            return self.texts(pa.string(), (found.group_ends, found.groups), record_scan.NO_GROUP)
        if name == "topic":
            return self.texts(pa.string(), (found.topic_ends, found.topics), record_scan.NO_TOPIC)
        if name == "partition":
            return self.fixed(pa.int32(), found.partitions, record_scan.NO_PARTITION)
        if name == "member_id":
            return self.texts(pa.string(), (found.member_ends, found.members), record_scan.NO_MEMBER)
        if name == "transactional_id":
            ids = (found.transactional_ends, found.transactional_ids)
            return self.texts(pa.string(), ids, record_scan.NO_TRANSACTIONAL_ID)
        if name == "key":
            return self.texts(pa.binary(), (found.key_ends, found.keys), message_scan.NO_KEY)
        if name == "value":
            return self.texts(pa.binary(), (found.value_ends, found.values), message_scan.NO_VALUE)
        if name == "headers":
            return headers_column(self, (found.header_ends, found.headers), message_scan.WITH_HEADERS)
        if name == "is_tombstone":
            return pa.array(self.with_flag(record_scan.TOMBSTONE))
        return self._of_batch(name)

    def _of_batch(self, name: str) -> pa.Array:
        """`producer_id`, `producer_epoch` or `leader_epoch`; null for -1."""
        found = self.found
        if name == "producer_id":
            known = self.of_batches(found.producer_ids, "<i8")
        else:
            epochs = found.producer_epochs if name == "producer_epoch" else found.leader_epochs
            known = self.of_batches(epochs, "<i4").astype(np.int32)
        return pa.array(known, mask=known == -1)
