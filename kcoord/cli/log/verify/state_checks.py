"""Checks that a state checkpoint matches the log below its end: it must have the newest record of every live key.

The offset of a transaction counts once the commit marker is in the log. The checkpoint also has the offsets of
transactions that are open at its end.

Compaction may have removed a record that the checkpoint has, because of what follows after the checkpoint's end: a
later record of its key, the end of its transaction, or that of a transaction with a later record of its key.
"""

from __future__ import annotations

import os
from typing import Final, final

from kcoord.cli.log.verify.findings import Findings
from kcoord.engine.state_checkpoint import same_key
from kcoord.log.inspect import PartitionFiles
from kcoord.log.reader import DamagedBytes, read_batches
from kcoord.log.serde import LEGACY_OFFSET_COMMIT, OFFSET_COMMIT
from kcoord.log.state_file import CRC_BYTES, FOOTER, MAGIC, STATE_FILE, TRANSACTIONS_VERSION, VERSION
from kcoord.log.transaction_index import ABORT, COMMIT
from kcoord.log.typed_records import DECOMPRESSED_BYTES_MAX
from kcoord.wire.compression import DecompressionError
from kcoord.wire.crc import crc32c
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import BatchHeader, Record

READ_BYTES: Final = 1 << 20
CHECK: Final = "state checkpoint"

# Offset and checksum of the value of a key's newest record.
Newest = dict[bytes, tuple[int, int]]
# The same of each open transaction, by producer id.
Pending = dict[int, Newest]


@final
class StateCheck:
    """Receives the log's records, then compares. `end_offset` is -1 if there is nothing to compare.

    Below `format_1_end` records have format 1. Those of the log arrive converted to format 2, so the checkpoint's are
    converted, too.
    """

    def __init__(self, files: PartitionFiles, format_1_end: int, findings: Findings) -> None:
        self.log = files.name
        self.format_1_end = format_1_end
        self.path = os.path.join(files.path, STATE_FILE)
        self.findings = findings
        self.end_offset = -1
        self.records = 0
        self.newest: Newest = {}
        self.pending: Pending = {}
        # What follows after the checkpoint's end: the keys of records, and the producers of markers.
        self.later_keys: set[bytes] = set()
        self.later_markers: set[int] = set()
        if os.path.exists(self.path):
            problem = self._read_footer()
            if problem:
                self._error(f"{problem}; opening the log ignores it")

    def _error(self, text: str, offset: int = -1) -> None:
        self.findings.error(CHECK, self.log, text, self.path, -1, offset)

    def _read_footer(self) -> str:
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < FOOTER.size:
                return f"it has only {size} bytes"
            crc = 0
            left = size - CRC_BYTES
            while left > 0:
                data = file.read(min(READ_BYTES, left))
                if not data:
                    return "it was truncated while it was read"
                crc = crc32c(data, crc)
                left -= len(data)
            file.seek(size - FOOTER.size)
            magic, version, records, end_offset, expected = FOOTER.unpack(file.read(FOOTER.size))
        if magic != MAGIC:
            return "it is not a state checkpoint"
        if crc != expected:
            return "wrong checksum"
        if version not in (VERSION, TRANSACTIONS_VERSION):
            return f"it has version {version}"
        self.records, self.end_offset = int(records), int(end_offset)
        return ""

    def note(self, header: BatchHeader, record: Record) -> None:
        """Called for each record of the log, which is in the batch with this header."""
        if record.key is None or self.end_offset < 0:
            return
        producer_id = int(header.producer_id)
        # The key of a marker is never one of a record.
        key = record.key if header.is_control else same_key(record.key)
        if record.offset >= self.end_offset:
            if header.is_control:
                self.later_markers.add(producer_id)
            else:
                self.later_keys.add(key)
        elif header.is_control:
            self._end(producer_id, int.from_bytes(key[2:4], "big"))
        elif record.value is None:
            self.newest.pop(key, None)
            for of_producer in self.pending.values():
                of_producer.pop(key, None)
        elif _is_pending(producer_id, key):
            self.pending.setdefault(producer_id, {})[key] = (record.offset, crc32c(record.value))
        else:
            self.newest[key] = (record.offset, crc32c(record.value))

    def _end(self, producer_id: int, kind: int) -> None:
        """The marker of a transaction. Of two records for one key the newer one counts."""
        if kind not in (ABORT, COMMIT):
            return
        for key, found in self.pending.pop(producer_id, {}).items():
            if kind == COMMIT and found > self.newest.get(key, (-1, 0)):
                self.newest[key] = found

    def finish(self, log_end: int) -> None:
        """Called after all records up to `log_end`, if all were readable."""
        if self.end_offset < 0:
            return
        if self.end_offset > log_end:
            self._error(f"it ends at offset {self.end_offset}, the log at {log_end}", log_end)
            return
        for producer_id in self.later_markers:
            self.later_keys.update(self.pending.get(producer_id, {}))
        found: Newest = {}
        pending: Pending = {}
        count = self._read(found, pending)
        if count != self.records:
            self._error(f"it has {count} records, its footer states {self.records}")
        self._compare(self.newest, found, "is not the newest of its key")
        for producer_id in sorted({*self.pending, *pending}):
            text = f"is not the newest of its key in an open transaction of producer {producer_id}"
            has_ended = producer_id in self.later_markers
            self._compare(self.pending.get(producer_id, {}), pending.get(producer_id, {}), text, has_ended)

    def _compare(self, expected: Newest, found: Newest, text: str, has_ended: bool = False) -> None:
        for key, (offset, _crc) in expected.items():
            if key not in found:
                self._error(f"it lacks the record at offset {offset}", offset)
        for key, newest in found.items():
            in_log = expected.get(key, (-1, 0))
            is_removed = newest[0] > in_log[0] and (has_ended or key in self.later_keys)
            if in_log != newest and not is_removed:
                self._error(f"its record at offset {newest[0]} {text}", newest[0])

    def _read(self, newest: Newest, pending: Pending) -> int:
        """Read the records of the checkpoint into these. Returns their number."""
        count = 0
        footer_at = os.path.getsize(self.path) - FOOTER.size
        for item in read_batches(self.path):
            if isinstance(item, DamagedBytes):
                if item.position != footer_at:
                    self._error(f"byte {item.position}: {item.reason}")
                continue
            item.format_1_end = self.format_1_end
            try:
                records = item.records(DECOMPRESSED_BYTES_MAX)
            except (DecodeError, DecompressionError) as error:
                self._error(f"byte {item.position}: {error}")
                continue
            count += len(records)
            producer_id = int(item.header.producer_id)
            found = newest if producer_id < 0 else pending.setdefault(producer_id, {})
            for record in records:
                # Some tombstones are kept, because they still carry information about a group.
                if record.key is not None and record.value is not None:
                    found[same_key(record.key)] = (record.offset, crc32c(record.value))
        return count


def _is_pending(producer_id: int, key: bytes) -> bool:
    """Whether a record is the offset of a transaction. Everything else counts at once."""
    return producer_id >= 0 and int.from_bytes(key[:2], "big") in (LEGACY_OFFSET_COMMIT, OFFSET_COMMIT)
