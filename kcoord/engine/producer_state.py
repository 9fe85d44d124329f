"""The producer state of a partition when it is opened: its newest snapshot, and the log after that."""

from __future__ import annotations

from typing import Final

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import WARNING, Fact
from kcoord.core.producers import NO_EPOCH, PartitionProducers, ProducerPool, decode_snapshot
from kcoord.engine.batch_walk import BatchWalk
from kcoord.log.partition_log import PartitionLog
from kcoord.wire.compression import DecompressionError
from kcoord.wire.primitives import DecodeError, read_i32_be
from kcoord.wire.record_batch import BatchHeader, decode_records

# The value of a transaction marker, and the size limit of its batch if it is compressed.
MARKER_BYTES: Final = 6
MARKER_BYTES_MAX: Final = 4096
# How far before a producer snapshot batches are read for retries: what clients may have had in flight.
REPEATS_BYTES: Final = 1024 * 1024


def load_producers(
    config: CoreConfig, log: PartitionLog, facts: list[Fact], pool: ProducerPool | None = None
) -> PartitionProducers:
    """The producer state: the newest readable snapshot, and the batches of the log after it.

    Unreadable snapshots are removed and reported in `facts`: the log has everything.
    """
    producers = PartitionProducers(config.producer_id_expiration_ms, pool)
    start = log.log_start_offset
    for offset in log.snapshots.offsets():
        try:
            entries = decode_snapshot(log.snapshots.read(offset))
        except (DecodeError, OSError) as error:
            fields: dict[str, object] = {"log": log.name, "offset": offset, "reason": str(error)}
            facts.append(Fact(WARNING, "producer_snapshot_damaged", fields))
            log.snapshots.remove(offset)
            continue
        producers.restore(entries)
        if entries:
            # A snapshot only has each producer's last batch. A broker that starts from it answers a retry of an earlier
            # one with an error, for example after a stop with several batches in flight.
            recent = PartitionProducers(config.producer_id_expiration_ms)
            _rebuild(recent, log, max(log.offset_before(offset, REPEATS_BYTES), start), offset)
            producers.add_repeats(recent)
        # Also below the log's start: DeleteRecords removes records, and the state that producers have stays.
        start = offset
        break
    _rebuild(producers, log, start, log.end_offset)
    return producers


def _rebuild(producers: PartitionProducers, log: PartitionLog, start: int, end: int) -> None:
    for extent in log.extents(start, end):
        walk = BatchWalk(log.storage, extent)
        try:
            while True:
                header = walk.advance()
                if header is None or header.base_offset >= end:
                    break
                if header.last_offset >= start:
                    rebuild_batch(producers, walk.buf, header)
        finally:
            walk.close()


def rebuild_batch(producers: PartitionProducers, buf: bytes, header: BatchHeader) -> None:
    """Add a batch of the log to `producers`; `header` was parsed from `buf`."""
    if header.producer_id < 0:
        return
    if not header.is_control:
        producers.rebuild(header)
        return
    epoch = NO_EPOCH
    try:
        records = decode_records(buf, header.pos, header, MARKER_BYTES_MAX)
    except (DecodeError, DecompressionError):
        records = []
    for record in records:
        if record.value is not None and len(record.value) >= MARKER_BYTES:
            # Version, coordinator epoch.
            epoch = int(read_i32_be(record.value, 2))
    producers.rebuild(header, epoch)
