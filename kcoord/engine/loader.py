"""Start-up: every record of our own logs goes through the same `replay` as in live operation."""

from __future__ import annotations

from typing import Final

from kcoord.core.coordinator import Core
from kcoord.core.outcome import METADATA_TOPIC, LogId
from kcoord.log.partition_log import PartitionLog
from kcoord.log.serde import decode_metadata_record, decode_record
from kcoord.wire.record_batch import decode_records, parse_header

# Our own batches are not compressed; imported ones may be.
DECOMPRESSED_BYTES_MAX: Final = 256 * 1024 * 1024


def load_coordinator_log(core: Core, log_id: LogId, log: PartitionLog) -> int:
    """Replay a whole log in order of offsets; the number of records. Raises LogDamaged."""
    is_metadata = log_id.topic == METADATA_TOPIC
    start = log.log_start_offset
    count = 0
    for pos, data in log.batches(start, log.end_offset):
        header = parse_header(data, pos)
        if header.is_control:
            continue
        for record in decode_records(data, pos, header, DECOMPRESSED_BYTES_MAX):
            if record.offset < start:
                continue
            if is_metadata:
                if record.value is not None:
                    core.replay(log_id, record.offset, None, decode_metadata_record(record.value))
            elif record.key is not None:
                key, value = decode_record(record.key, record.value)
                core.replay(log_id, record.offset, key, value)
            count += 1
    return count
