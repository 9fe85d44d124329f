"""Records as a consumer hands them out, decoded from what a broker has sent: one batch at a time, when it is needed."""

from __future__ import annotations

from typing import Any, Final, final

from kcoord.client.errors import CorruptRecord, KafkaError
from kcoord.wire.compression import DecompressionError
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import (
    HEADER_BYTES,
    BatchHeader,
    Headers,
    check_crc,
    parse_header,
    read_field,
    read_headers,
    record_end,
    records_reader,
)

CONTROL_KEY_BYTES: Final = 4
ABORT: Final = 0


@final
class ConsumerRecord:
    """A record. `timestamp` is in ms, `timestamp_type` 0 for the producer's time and 1 for the broker's.

    `key` and `value` are bytes or None, or what the deserializers make of them. `leader_epoch` is -1 if unknown.
    """

    __slots__ = (
        "headers",
        "key",
        "leader_epoch",
        "offset",
        "partition",
        "timestamp",
        "timestamp_type",
        "topic",
        "value",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        timestamp_type: int,
        key: Any,
        value: Any,
        headers: Headers,
        leader_epoch: int,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self.headers = headers
        self.leader_epoch = leader_epoch

    def __repr__(self) -> str:
        return (
            f"ConsumerRecord({self.topic}-{self.partition}, offset={self.offset}, timestamp={self.timestamp}, "
            f"key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )


def decode_batch(
    topic: str, partition: int, buf: bytes, header: BatchHeader, from_offset: int, decompressed_max: int
) -> list[ConsumerRecord]:
    """The records of the batch at `header.pos` from an offset on. Raises DecodeError or DecompressionError."""
    r = records_reader(buf, header.pos, header, decompressed_max)
    timestamp_type = header.timestamp_type
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    max_timestamp = header.max_timestamp
    last_delta = header.last_offset_delta
    epoch = header.leader_epoch
    records: list[ConsumerRecord] = []
    for _ in range(header.count):
        end = record_end(r)
        timestamp = base_timestamp + r.varlong()
        if timestamp_type:
            timestamp = max_timestamp
        delta = r.varint()
        if delta < 0 or delta > last_delta:
            raise DecodeError(f"offset delta {delta} in a batch that ends at {header.last_offset_delta}")
        offset = base_offset + delta
        if offset < from_offset:
            r.take(end - r.pos)
            continue
        key = read_field(r)
        value = read_field(r)
        headers = read_headers(r)
        if r.pos != end:
            raise DecodeError("record does not match its size")
        records.append(ConsumerRecord(topic, partition, offset, timestamp, timestamp_type, key, value, headers, epoch))
    return records


def scan(buf: bytes) -> list[BatchHeader]:
    """The headers of the whole batches in an answer; a broker may cut off the last one. Raises DecodeError."""
    headers: list[BatchHeader] = []
    pos = 0
    size = len(buf)
    while size - pos >= HEADER_BYTES:
        header = parse_header(buf, pos, True)
        if header.size > size - pos:
            break
        headers.append(header)
        pos += header.size
    return headers


@final
class Chunk:
    """What one Fetch has brought for a partition. `next_offset` is the position after what was taken.

    `leader_epoch` is that of the batch before this position, -1 as long as nothing was taken.

    With `aborted`, pairs of producer id and first offset in order of offsets, records of aborted transactions are left
    out. Control batches always are. So are offsets that compaction has removed: the position goes on past them.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        buf: bytes,
        aborted: list[tuple[int, int]] | None,
        decompressed_max: int,
        check_crcs: bool,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.next_offset = offset
        self.leader_epoch = -1
        self.is_done = False
        self._buf = buf
        self._decompressed_max = decompressed_max
        self._check_crcs = check_crcs
        self._aborted = aborted
        self._next_aborted = 0
        self._aborting: set[int] = set()
        self._records: list[ConsumerRecord] = []
        self._at = 0
        self._batch = 0
        self._error: KafkaError | None = None
        self._headers: list[BatchHeader] = []
        try:
            self._headers = scan(buf)
        except DecodeError as error:
            self._error = self._corrupt(str(error))
        if not self._headers and buf and self._error is None:
            self._error = self._corrupt("a batch is larger than the answer")
        self.end_offset = self._headers[-1].last_offset + 1 if self._headers else offset

    @property
    def size(self) -> int:
        """Bytes as they came."""
        return len(self._buf)

    def take(self, count: int) -> list[ConsumerRecord]:
        """Up to `count` records. Raises CorruptRecord at a batch that cannot be read, at every call."""
        taken: list[ConsumerRecord] = []
        while len(taken) < count:
            at = self._at
            if at < len(self._records):
                part = self._records[at : at + count - len(taken)]
                self._at = at + len(part)
                self.next_offset = part[-1].offset + 1
                self.leader_epoch = part[-1].leader_epoch
                taken.extend(part)
                continue
            if self._error is not None and not taken:
                raise self._error
            if self._error is not None or not self._load():
                break
        return taken

    def take_one(self) -> ConsumerRecord | None:
        """The next record if its batch is decoded already."""
        at = self._at
        if at >= len(self._records):
            return None
        record = self._records[at]
        self._at = at + 1
        self.next_offset = record.offset + 1
        return record

    def _load(self) -> bool:
        """Decode the next batch, if it has records for the user. Returns False at the end."""
        if self._batch > 0:
            last = self._headers[self._batch - 1]
            self.next_offset = max(self.next_offset, last.last_offset + 1)
            self.leader_epoch = last.leader_epoch
        self._records = []
        self._at = 0
        if self._batch >= len(self._headers):
            self.is_done = True
            return False
        header = self._headers[self._batch]
        try:
            if self._check_crcs and not check_crc(self._buf, header.pos, header):
                raise DecodeError("the checksum does not match")
            if not self._is_hidden(header):
                self._records = decode_batch(
                    self.topic, self.partition, self._buf, header, self.next_offset, self._decompressed_max
                )
        except (DecodeError, DecompressionError) as error:
            self._error = self._corrupt(f"the batch at offset {header.base_offset}: {error}")
            return True
        self._batch += 1
        return True

    def _is_hidden(self, header: BatchHeader) -> bool:
        """Whether a batch has no records for the user: a control batch, or one of an aborted transaction."""
        aborted = self._aborted
        if aborted is not None:
            while self._next_aborted < len(aborted) and aborted[self._next_aborted][1] <= header.last_offset:
                self._aborting.add(aborted[self._next_aborted][0])
                self._next_aborted += 1
        if header.is_control:
            if aborted is not None and header.producer_id in self._aborting and self._is_abort(header):
                self._aborting.discard(header.producer_id)
            return True
        return aborted is not None and header.is_transactional and header.producer_id in self._aborting

    def _is_abort(self, header: BatchHeader) -> bool:
        """Whether a control batch is the marker of an aborted transaction."""
        records = decode_batch("", 0, self._buf, header, 0, self._decompressed_max)
        key = records[0].key if records else b""
        return len(key or b"") >= CONTROL_KEY_BYTES and int.from_bytes(key[2:4], "big") == ABORT

    def _corrupt(self, reason: str) -> KafkaError:
        return CorruptRecord(
            f"partition {self.topic}-{self.partition} at offset {self.next_offset}: {reason}; seek to skip it"
        )
