"""The file format of a state checkpoint: the live records of a coordinator log below some offset.

    record batches     the newest record of every key, in order of offsets, with original offsets and timestamps
    footer, 32 bytes   magic "kcoordst", version int32, record count int64, end offset int64, CRC-32C uint32

The checksum covers everything before it. The file is `state-checkpoint` in the log's directory. It contains nothing
that the log does not contain: without it the next start takes longer, and nothing is lost.

Version 2 has offsets of open transactions as well, in transactional batches. Their markers are in the log after the end
offset. A file without any is written as version 1, so that earlier releases can use it.
"""

from __future__ import annotations

import struct
from typing import Final

from kcoord.log.partition_log import INT64_MAX, Extent
from kcoord.log.storage import Storage, parent_of
from kcoord.wire.crc import crc32c

STATE_FILE: Final = "state-checkpoint"
TEMPORARY_SUFFIX: Final = ".tmp"
MAGIC: Final = b"kcoordst"
VERSION: Final = 1
TRANSACTIONS_VERSION: Final = 2
FOOTER: Final = struct.Struct(">8siqqI")
CRC_BYTES: Final = 4
READ_BYTES: Final = 4 << 20


class BadStateFile(Exception):
    """The file cannot be used; the text is the reason."""


class StateFile:
    """A valid state file: its batches, the number of records, and the offset at which the log continues."""

    def __init__(self, extent: Extent, records: int, end_offset: int) -> None:
        self.extent = extent
        self.records = records
        self.end_offset = end_offset


def state_path(log_name: str) -> str:
    return f"{log_name}/{STATE_FILE}"


def read_state_file(storage: Storage, path: str) -> StateFile | None:
    """Check the whole file; None if it does not exist. Raises BadStateFile and OSError."""
    if not storage.exists(path):
        return None
    size = storage.size_of(path)
    if size < FOOTER.size:
        raise BadStateFile(f"{size} bytes")
    file = storage.open(path)
    try:
        # Check the magic first, so that a large file of another kind is not read completely.
        if file.read_at(size - FOOTER.size, len(MAGIC)) != MAGIC:
            raise BadStateFile("not a state file")
        crc = 0
        at = 0
        while at < size - CRC_BYTES:
            data = file.read_at(at, min(READ_BYTES, size - CRC_BYTES - at))
            if not data:
                raise BadStateFile("it was truncated while it was read")
            crc = crc32c(data, crc)
            at += len(data)
        _magic, version, records, end_offset, expected = FOOTER.unpack(file.read_at(size - FOOTER.size, FOOTER.size))
    finally:
        file.close()
    if crc != expected:
        raise BadStateFile("wrong checksum")
    if version != VERSION and version != TRANSACTIONS_VERSION:
        raise BadStateFile(f"version {version}")
    return StateFile(Extent(path, 0, size - FOOTER.size), records, end_offset)


def known_end(storage: Storage, path: str) -> int:
    """The end of what the log's next start may take from the file; 0 if it cannot be determined.

    INT64_MAX if there is no file, and none is being written. Only the footer is read.
    """
    # In this order: the new file gets its name when it is complete.
    is_being_written = storage.exists(path + TEMPORARY_SUFFIX)
    if not storage.exists(path):
        return 0 if is_being_written else INT64_MAX
    try:
        size = storage.size_of(path)
        if size < FOOTER.size:
            return 0
        file = storage.open(path)
        try:
            footer = file.read_at(size - FOOTER.size, FOOTER.size)
        finally:
            file.close()
        magic, version, _records, end_offset, _crc = FOOTER.unpack(footer)
    except (OSError, struct.error):
        return 0
    return int(end_offset) if magic == MAGIC and version in (VERSION, TRANSACTIONS_VERSION) else 0


def remove_state_file(storage: Storage, path: str) -> None:
    """Remove the file durably. Raises OSError."""
    storage.remove(path)
    storage.sync_dir(parent_of(path))


class StateFileWriter:
    """Writes a new state file and replaces the old one once the new one is complete and durable."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.storage = storage
        self.path = path
        self._file = storage.open(path + TEMPORARY_SUFFIX)
        self._file.truncate(0)
        self._crc = 0

    def append(self, batch: bytes) -> None:
        self._crc = crc32c(batch, self._crc)
        self._file.append(batch)

    def finish(self, records: int, end_offset: int, has_transactions: bool = False) -> None:
        """Complete the file and replace the old one. Raises OSError."""
        version = TRANSACTIONS_VERSION if has_transactions else VERSION
        footer = FOOTER.pack(MAGIC, version, records, end_offset, 0)[:-CRC_BYTES]
        crc = crc32c(footer, self._crc)
        self._file.append(footer + crc.to_bytes(CRC_BYTES, "big"))
        self._file.datasync()
        self._file.close()
        self.storage.rename(self.path + TEMPORARY_SUFFIX, self.path)
        self.storage.sync_dir(parent_of(self.path))

    def abandon(self) -> None:
        """Keep the old file and remove the new one."""
        self._file.close()
        if self.storage.exists(self.path + TEMPORARY_SUFFIX):
            self.storage.remove(self.path + TEMPORARY_SUFFIX)
