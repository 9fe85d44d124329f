"""Whether a state checkpoint says what the log below its end says: of every key that lives, the newest record."""

from __future__ import annotations

import os
from typing import Final, final

from kcoord.cli.log.findings import Findings
from kcoord.log.inspect import PartitionFiles
from kcoord.log.reader import DamagedBytes, read_batches
from kcoord.log.state_file import CRC_BYTES, FOOTER, MAGIC, STATE_FILE, VERSION
from kcoord.log.typed_records import DECOMPRESSED_BYTES_MAX
from kcoord.wire.compression import DecompressionError
from kcoord.wire.crc import crc32c
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import Record

READ_BYTES: Final = 1 << 20
CHECK: Final = "state checkpoint"

# Offset and checksum of the value of a key's newest record.
Newest = dict[bytes, tuple[int, int]]


@final
class StateCheck:
    """Takes the log's records as they come by, then compares. `end_offset` is -1 where there is nothing to compare.

    Below `format_1_end` records have format 1; the log's come in format 2, so the checkpoint's are read so, too.
    """

    def __init__(self, files: PartitionFiles, format_1_end: int, findings: Findings) -> None:
        self.log = files.name
        self.format_1_end = format_1_end
        self.path = os.path.join(files.path, STATE_FILE)
        self.findings = findings
        self.end_offset = -1
        self.records = 0
        self.newest: Newest = {}
        if os.path.exists(self.path):
            problem = self._read_footer()
            if problem:
                self._error(f"{problem}; opening the log goes on without it")

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
                    return "it became shorter"
                crc = crc32c(data, crc)
                left -= len(data)
            file.seek(size - FOOTER.size)
            magic, version, records, end_offset, expected = FOOTER.unpack(file.read(FOOTER.size))
        if magic != MAGIC:
            return "it is no state checkpoint"
        if crc != expected:
            return "wrong checksum"
        if version != VERSION:
            return f"it has version {version}"
        self.records, self.end_offset = int(records), int(end_offset)
        return ""

    def note(self, record: Record) -> None:
        """A record of the log, control records left out."""
        if record.key is None or record.offset >= self.end_offset:
            return
        if record.value is None:
            self.newest.pop(record.key, None)
        else:
            self.newest[record.key] = (record.offset, crc32c(record.value))

    def finish(self, log_end: int) -> None:
        """All records went by and could be read, up to `log_end`."""
        if self.end_offset < 0:
            return
        if self.end_offset > log_end:
            self._error(f"it is of offset {self.end_offset}, the log ends at {log_end}", log_end)
            return
        found, count = self._read()
        if count != self.records:
            self._error(f"it says that it has {self.records} records, and has {count}")
        for key, (offset, _crc) in self.newest.items():
            if key not in found:
                self._error(f"the record at offset {offset} is missing in it", offset)
        for key, newest in found.items():
            if self.newest.get(key) != newest:
                self._error(f"what it has of offset {newest[0]} is not the newest of its key", newest[0])

    def _read(self) -> tuple[Newest, int]:
        found: Newest = {}
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
            for record in records:
                # Tombstones are kept where they still say something of a group.
                if record.key is not None and record.value is not None:
                    found[record.key] = (record.offset, crc32c(record.value))
        return found, count
