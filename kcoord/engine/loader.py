"""Start-up: every record of our own logs goes through the same `replay` as in live operation."""

from __future__ import annotations

from typing import Final

from kcoord.core.coordinator import Core
from kcoord.core.outcome import LogId
from kcoord.log.partition_log import PartitionLog
from kcoord.log.serde import decode_metadata_record, decode_record
from kcoord.wire.record_batch import decode_records, parse_header

READ_BYTES: Final = 4 * 1024 * 1024
# Our own batches are not compressed; imported ones may be.
DECOMPRESSED_BYTES_MAX: Final = 256 * 1024 * 1024


def load_coordinator_log(core: Core, log_id: LogId, log: PartitionLog) -> int:
    """Replay a whole log in order of offsets; the number of records."""
    is_metadata = log_id.topic == "__cluster_metadata"
    offset = log.log_start_offset
    count = 0
    while offset < log.end_offset:
        data = log.read(offset, READ_BYTES, log.end_offset)
        if not data:
            break
        pos = 0
        size = len(data)
        while pos < size:
            header = parse_header(data, pos)
            if not header.is_control:
                for record in decode_records(data, pos, header, DECOMPRESSED_BYTES_MAX):
                    if record.offset < offset:
                        continue
                    if is_metadata:
                        if record.value is not None:
                            core.replay(log_id, record.offset, None, decode_metadata_record(record.value))
                    elif record.key is not None:
                        key, value = decode_record(record.key, record.value)
                        core.replay(log_id, record.offset, key, value)
                    count += 1
            pos += int(header.size)
            offset = int(header.last_offset) + 1
    return count
