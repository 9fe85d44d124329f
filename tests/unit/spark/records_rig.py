"""A log of a coordinator by hand: rows of the table `records`, as the reader with read_uncommitted gives them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from kcoord.core.outcome import OFFSETS_TOPIC
from kcoord.log.serde import encode_record
from kcoord.spark.tables.records import RecordsTable
from kcoord.spark.tables.rows import RecordPlace
from kcoord.wire.message import Message
from kcoord.wire.record_batch import BatchBuilder, Headers, decode_records, parse_header

START_MS = 1_769_860_800_000
COMMIT = b"\x00\x00\x00\x01"
ABORT = b"\x00\x00\x00\x00"


class HandLog:
    """One partition. Offsets go on from 0; a record is written `second` seconds after START_MS."""

    def __init__(self, log: str, topic: str = OFFSETS_TOPIC, partition: int = 0) -> None:
        self.place = RecordPlace(log, topic, partition)
        self.next_offset = 0
        self.decoder = RecordsTable()

    def put(self, second: float, key: Message, value: Message | None, producer_id: int = -1) -> int:
        return self.put_bytes(second, *encode_record(key, value), producer_id)

    def end(self, second: float, producer_id: int, marker: bytes) -> int:
        """The end of a transaction."""
        return self.put_bytes(second, marker, b"\x00\x00\x00\x00\x00\x00", producer_id, is_control=True)

    def put_bytes(
        self,
        second: float,
        key: bytes,
        value: bytes | None,
        producer_id: int = -1,
        is_control: bool = False,
        headers: Headers | None = None,
    ) -> int:
        builder = BatchBuilder()
        builder.append(START_MS + int(second * 1000), key, value, headers)
        is_transactional = producer_id >= 0
        epoch = 0 if is_transactional else -1
        offset = self.next_offset
        data = builder.build(offset, 5, producer_id, epoch, -1, is_transactional, is_control)
        header = parse_header(data)
        self.decoder.add(self.place, decode_records(data, 0, header, 1 << 20)[0], header)
        self.next_offset += 1
        return offset

    def skip(self, count: int) -> None:
        """Compaction was here."""
        self.next_offset += count

    def batch(self) -> pa.RecordBatch:
        return self.decoder.take()


def table_of(*logs: HandLog) -> Any:
    """All of them, as `spark.createDataFrame` takes it."""
    return pa.Table.from_batches([log.batch() for log in logs])
