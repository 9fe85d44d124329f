"""The file of a state checkpoint: what a coordinator log amounts to below some offset.

    record batches     the records that still count, in order of offsets, with their own offsets and timestamps
    footer, 32 bytes   magic "kcoordst", version int32, record count int64, end offset int64, CRC-32C uint32

The checksum is over everything before it. The file lies in the log's directory as `state-checkpoint`. It says nothing
that the log does not say too: removing it costs time at the next start and nothing else.
"""

from __future__ import annotations

import struct
from typing import Final

from kcoord.log.partition_log import Extent
from kcoord.log.storage import Storage, parent_of
from kcoord.wire.crc import crc32c

STATE_FILE: Final = "state-checkpoint"
TEMPORARY_SUFFIX: Final = ".tmp"
MAGIC: Final = b"kcoordst"
VERSION: Final = 1
FOOTER: Final = struct.Struct(">8siqqI")
CRC_BYTES: Final = 4
READ_BYTES: Final = 4 << 20


class BadStateFile(Exception):
    """The file cannot be used; the text says why."""


class StateFile:
    """A state file that was found whole: its batches, how many records they hold, and where the log goes on."""

    def __init__(self, extent: Extent, records: int, end_offset: int) -> None:
        self.extent = extent
        self.records = records
        self.end_offset = end_offset


def state_path(log_name: str) -> str:
    return f"{log_name}/{STATE_FILE}"


def read_state_file(storage: Storage, path: str) -> StateFile | None:
    """Check the whole file; None when there is none. Raises BadStateFile and OSError."""
    if not storage.exists(path):
        return None
    size = storage.size_of(path)
    if size < FOOTER.size:
        raise BadStateFile(f"{size} bytes")
    file = storage.open(path)
    try:
        # First of all: a large file that is something else is not read as a whole.
        if file.read_at(size - FOOTER.size, len(MAGIC)) != MAGIC:
            raise BadStateFile("no state file")
        crc = 0
        at = 0
        while at < size - CRC_BYTES:
            data = file.read_at(at, min(READ_BYTES, size - CRC_BYTES - at))
            if not data:
                raise BadStateFile("it became shorter")
            crc = crc32c(data, crc)
            at += len(data)
        _magic, version, records, end_offset, expected = FOOTER.unpack(
            file.read_at(size - FOOTER.size, FOOTER.size)
        )
    finally:
        file.close()
    if crc != expected:
        raise BadStateFile("wrong checksum")
    if version != VERSION:
        raise BadStateFile(f"version {version}")
    return StateFile(Extent(path, 0, size - FOOTER.size), records, end_offset)


def remove_state_file(storage: Storage, path: str) -> None:
    """Remove it so that it stays removed. Raises OSError."""
    storage.remove(path)
    storage.sync_dir(parent_of(path))


class StateFileWriter:
    """Writes a state file beside the old one and puts it in its place when it is whole and durable."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.storage = storage
        self.path = path
        self._file = storage.open(path + TEMPORARY_SUFFIX)
        self._file.truncate(0)
        self._crc = 0

    def append(self, batch: bytes) -> None:
        self._crc = crc32c(batch, self._crc)
        self._file.append(batch)

    def finish(self, records: int, end_offset: int) -> None:
        """The file is whole. Raises OSError."""
        footer = FOOTER.pack(MAGIC, VERSION, records, end_offset, 0)[:-CRC_BYTES]
        crc = crc32c(footer, self._crc)
        self._file.append(footer + crc.to_bytes(CRC_BYTES, "big"))
        self._file.datasync()
        self._file.close()
        self.storage.rename(self.path + TEMPORARY_SUFFIX, self.path)
        self.storage.sync_dir(parent_of(self.path))

    def abandon(self) -> None:
        """Leave the old file as it is, and give back the space that the new one took."""
        self._file.close()
        if self.storage.exists(self.path + TEMPORARY_SUFFIX):
            self.storage.remove(self.path + TEMPORARY_SUFFIX)
