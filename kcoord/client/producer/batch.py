"""Records on their way to one partition: batches in their order, and the numbers that make them idempotent.

A batch is open while records are added, and closed before it is sent. It gets its sequence number when it is sent for
the first time, and keeps it when it is sent again: so the broker recognises what it has already written. A batch that
has to be sent again waits until all batches of its partition that are in flight have been answered; then all that
failed are sent again, in their order.

If a batch that had a sequence number is given up, the broker would miss it. The partition then continues with the next
producer epoch and sequence 0 (KIP-360), and the batches that wait get new numbers. The exception are batches that may
have been written (the connection ended before the answer): under a new number they could be written twice, so they
fail as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple, final

from kcoord.client.deadline import Backoff
from kcoord.client.errors import KafkaError
from kcoord.client.metadata import NO_NODE, TopicPartition
from kcoord.client.producer.options import ProducerOptions
from kcoord.wire.record_batch import (
    INT32_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchBuilder,
    Headers,
    decode_records,
    parse_header,
)

NO_OFFSET: Final = -1
# What a record takes in a batch beside key, value and headers, at most.
RECORD_OVERHEAD: Final = 27
HEADER_OVERHEAD: Final = 10


class RecordMetadata(NamedTuple):
    """Where a record was written. `offset` is -1 if the broker did not report it (acks=0, or a duplicate)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """An upper bound of the size of a record in a batch."""
    size = RECORD_OVERHEAD + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += HEADER_OVERHEAD + len(name) * 4 + (len(content) if content else 0)
    return size


@final
class Batch:
    """Records of one partition. `done` gets None when all records have their results."""

    __slots__ = (
        "attempts",
        "buffered_bytes",
        "builder",
        "created_s",
        "data",
        "done",
        "futures",
        "is_closed",
        "is_unknown",
        "partition",
        "sequence",
        "timestamps",
    )

    def __init__(self, partition: TopicPartition, created_s: float, done: asyncio.Future[None]) -> None:
        self.partition = partition
        self.created_s = created_s
        self.done = done
        self.builder = BatchBuilder()
        self.futures: list[asyncio.Future[RecordMetadata]] = []
        self.timestamps: list[int] = []
        # What the batch occupies in the buffer of the producer.
        self.buffered_bytes = 0
        self.is_closed = False
        self.attempts = 0
        self.sequence = NO_SEQUENCE
        # Whether an attempt ended without an answer, so that the records may have been written.
        self.is_unknown = False
        self.data = b""

    @property
    def count(self) -> int:
        return len(self.futures)

    def encode(self, codec: int, producer_id: int, epoch: int, is_transactional: bool) -> bytes:
        """The batch as it is sent, with the sequence number that it has."""
        if not self.data:
            self.data = self.builder.build(0, -1, producer_id, epoch, self.sequence, is_transactional, codec=codec)
        return self.data

    def succeed(self, base_offset: int, append_time_ms: int) -> None:
        topic, partition = self.partition
        step = 0 if base_offset < 0 else 1
        offset = NO_OFFSET if base_offset < 0 else base_offset
        for future, time_ms in zip(self.futures, self.timestamps, strict=True):
            if not future.done():
                found = RecordMetadata(topic, partition, offset, time_ms if append_time_ms < 0 else append_time_ms)
                future.set_result(found)
            offset += step
        self._finish()

    def fail(self, error: KafkaError) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error)
        self._finish()

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def split(self, loop: asyncio.AbstractEventLoop) -> list[Batch]:
        """Two batches with the halves of the records, and the same sequence numbers."""
        data = self.builder.build(0, -1)
        records = decode_records(data, 0, parse_header(data), len(data))
        middle = len(records) // 2
        halves: list[Batch] = []
        for first, last in ((0, middle), (middle, len(records))):
            half = Batch(self.partition, self.created_s, loop.create_future())
            for record in records[first:last]:
                half.builder.append(record.timestamp, record.key, record.value, record.headers)
            half.futures = self.futures[first:last]
            half.timestamps = self.timestamps[first:last]
            half.buffered_bytes = self.buffered_bytes * (last - first) // len(records)
            half.is_closed = True
            half.attempts = self.attempts
            half.is_unknown = self.is_unknown
            if self.sequence != NO_SEQUENCE:
                half.sequence = (self.sequence + first) & INT32_MAX
            halves.append(half)
        # No byte of the buffer gets lost by rounding.
        halves[1].buffered_bytes = self.buffered_bytes - halves[0].buffered_bytes
        return halves


@final
class Lane:
    """The batches of one partition: `waiting` in the order of their records, the last one open; and `in_flight`."""

    def __init__(self, partition: TopicPartition, options: ProducerOptions) -> None:
        self.partition = partition
        self.waiting: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        # Batches of `waiting` that have been sent before; they stand at its left end.
        self.retries = 0
        # The broker that the batches in flight were sent to.
        self.node_id = NO_NODE
        self.producer_id = NO_PRODUCER_ID
        self.epoch = NO_PRODUCER_EPOCH
        self.next_sequence = 0
        # Whether the broker has written a batch with this producer id and epoch. A broker that does not know a producer
        # accepts any sequence number, so the first batch must be answered before the second one is sent.
        self.is_known = False
        self.needs_new_epoch = False
        self.paused_until_s = 0.0
        self.backoff = Backoff(options.retry_backoff_s, options.retry_backoff_max_s)

    @property
    def is_empty(self) -> bool:
        return not self.waiting and not self.in_flight

    def take(self, is_idempotent: bool) -> Batch:
        """Move the first batch from `waiting` to `in_flight`, with a sequence number."""
        batch = self.waiting.popleft()
        batch.is_closed = True
        batch.attempts += 1
        if self.retries:
            self.retries -= 1
        if is_idempotent and batch.sequence == NO_SEQUENCE:
            batch.sequence = self.next_sequence
            self.next_sequence = (self.next_sequence + batch.count) & INT32_MAX
        self.in_flight.append(batch)
        return batch

    def put_back(self, batches: list[Batch]) -> None:
        """Have batches that were in flight sent again, in the order of their records."""
        again = [self.waiting.popleft() for _ in range(self.retries)] + batches
        again.sort(key=self._age)
        self.waiting.extendleft(reversed(again))
        self.retries = len(again)

    def _age(self, batch: Batch) -> int:
        """Orders batches by their sequence numbers, which start again at 0 after 2^31 - 1."""
        # No batch is so many records older than the newest.
        first = (self.next_sequence - INT32_MAX // 2) & INT32_MAX
        return (batch.sequence - first) & INT32_MAX

    def is_first(self, batch: Batch) -> bool:
        """Whether a batch in flight is the oldest without a result."""
        if self.in_flight[0] is not batch:
            return False
        return not self.retries or self._age(batch) < self._age(self.waiting[0])

    def drop(self, batch: Batch) -> None:
        """Remove a batch from `waiting`."""
        if self.waiting.index(batch) < self.retries:
            self.retries -= 1
        self.waiting.remove(batch)
        if batch.sequence != NO_SEQUENCE:
            self.needs_new_epoch = True

    def start_epoch(self, producer_id: int, epoch: int) -> list[Batch]:
        """Begin at sequence 0; nothing is in flight. Returns the batches that may have been written: they fail."""
        self.producer_id = producer_id
        self.epoch = epoch
        self.next_sequence = 0
        self.is_known = False
        self.needs_new_epoch = False
        unknown = [batch for batch in self.waiting if batch.is_unknown]
        self.waiting = deque(batch for batch in self.waiting if not batch.is_unknown)
        for batch in self.waiting:
            batch.sequence = NO_SEQUENCE
            batch.data = b""
        self.retries = 0
        return unknown


@final
class Buffer:
    """The bytes that all batches together may hold. Whoever needs more waits, in the order of the calls."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def is_short(self) -> bool:
        return bool(self._waiters)

    def take(self, size: int) -> bool:
        """Whether there are so many bytes; then they are taken."""
        if self._waiters or self.used + size > self.bytes_max:
            return False
        self.used += size
        return True

    def queue(self, size: int) -> asyncio.Future[None]:
        """Take bytes as soon as they are there: then the future is done. A caller that gives up calls `leave`."""
        turn = asyncio.get_running_loop().create_future()
        self._waiters.append((size, turn))
        return turn

    def leave(self, size: int, turn: asyncio.Future[None]) -> None:
        """The caller of `queue` no longer waits."""
        if turn.done() and not turn.cancelled():
            self.give_back(size)
        else:
            self._waiters.remove((size, turn))
            self._wake()

    def give_back(self, size: int) -> None:
        self.used -= size
        self._wake()

    def _wake(self) -> None:
        while self._waiters and self.used + self._waiters[0][0] <= self.bytes_max:
            size, turn = self._waiters.popleft()
            if not turn.done():
                self.used += size
                turn.set_result(None)
