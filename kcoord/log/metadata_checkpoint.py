"""Snapshots of the metadata log in KRaft's format (KIP-630).

    <end offset, 20 digits>-<leader epoch, 10 digits>.checkpoint, in the log's directory

The file contains record batches with offsets from 0: a control batch with a SnapshotHeaderRecord, the records of the
state at the end offset, and a control batch with a SnapshotFooterRecord. It replaces everything below its end offset,
so the log may begin there. The file is written under a temporary name, synced and renamed. So a file with the final
name is complete, and an invalid one is damaged.
"""

from __future__ import annotations

import re
from typing import Final, final

from kcoord.log.errors import LogDamaged
from kcoord.log.storage import Storage
from kcoord.protocol.records.snapshot_footer_record import SnapshotFooterRecord, encode_snapshot_footer_record
from kcoord.protocol.records.snapshot_header_record import (
    SnapshotHeaderRecord,
    decode_snapshot_header_record,
    encode_snapshot_header_record,
)
from kcoord.wire.compression import DecompressionError
from kcoord.wire.primitives import BytesWriter, DecodeError, Reader
from kcoord.wire.record_batch import HEADER_BYTES, BatchBuilder, check_crc, decode_records, parse_header

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_LOG: Final = "__cluster_metadata-0"
SUFFIX: Final = ".checkpoint"
PART_SUFFIX: Final = ".part"
# The suffix that a broker gives a snapshot before it removes it.
DELETED_SUFFIX: Final = ".checkpoint.deleted"
CHECKPOINT_FILE: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")

# The largest batch in a broker's snapshots.
BATCH_BYTES_MAX: Final = 8 << 20
# The largest overhead of a record in addition to its value.
RECORD_OVERHEAD_BYTES: Final = 32
DECOMPRESSED_BYTES_MAX: Final = 256 << 20
# Keys of control records: version 0 and the type.
HEADER_KEY: Final = b"\x00\x00\x00\x03"
FOOTER_KEY: Final = b"\x00\x00\x00\x04"


class BadCheckpoint(Exception):
    """The file cannot be used; the text is the reason."""


@final
class CheckpointName:
    """A snapshot identified by its name. Compare by `file`."""

    def __init__(self, end_offset: int, epoch: int) -> None:
        self.end_offset = end_offset
        self.epoch = epoch
        self.file = f"{end_offset:020d}-{epoch:010d}{SUFFIX}"

    def path_in(self, log_name: str) -> str:
        return f"{log_name}/{self.file}"

    def __repr__(self) -> str:
        return f"CheckpointName({self.file})"


def parse_name(file: str) -> CheckpointName | None:
    match = CHECKPOINT_FILE.fullmatch(file)
    return None if match is None else CheckpointName(int(match.group(1)), int(match.group(2)))


def list_checkpoints(storage: Storage, log_name: str) -> list[CheckpointName]:
    """The snapshots in a log's directory, oldest first. Raises OSError."""
    named = [name for name in map(parse_name, storage.list_dir(log_name)) if name is not None]
    found = [name for name in named if not storage.is_dir(name.path_in(log_name))]
    return sorted(found, key=lambda name: (name.end_offset, name.epoch))


def newest_end(storage: Storage, log_name: str) -> int:
    """The end offset of the newest snapshot, 0 if there is none. The log below it was synced before the snapshot."""
    found = list_checkpoints(storage, log_name)
    return found[-1].end_offset if found else 0


def remove_leftovers(storage: Storage, log_name: str) -> None:
    """Remove unfinished snapshots, and those that a broker was removing, after a crash. Raises OSError."""
    for file in storage.list_dir(log_name):
        path = f"{log_name}/{file}"
        if file.endswith((SUFFIX + PART_SUFFIX, DELETED_SUFFIX)) and not storage.is_dir(path):
            storage.remove(path)


@final
class Checkpoint:
    """A complete snapshot: its record values, and the timestamp of the last log record below its end."""

    def __init__(self, last_timestamp: int, values: list[bytes]) -> None:
        self.last_timestamp = last_timestamp
        self.values = values


def parse_checkpoint(data: bytes, epoch: int) -> Checkpoint:
    """Parse and check a whole file. `epoch` is that of its name. Raises BadCheckpoint."""
    values: list[bytes] = []
    timestamp = -1
    position = 0
    next_offset = 0
    is_finished = False
    while position < len(data):
        try:
            header = parse_header(data, position, True)
            if header.size > len(data) - position:
                raise DecodeError(f"batch of {header.size} bytes, {len(data) - position} left")
            if not check_crc(data, position, header):
                raise DecodeError("wrong checksum")
            if header.base_offset != next_offset or header.leader_epoch != epoch or is_finished:
                where = f"offset {header.base_offset}, epoch {header.leader_epoch}"
                raise DecodeError(f"unexpected batch of {where}")
            for record in decode_records(data, position, header, DECOMPRESSED_BYTES_MAX):
                if next_offset == 0:
                    if not header.is_control or record.key != HEADER_KEY or record.value is None:
                        raise DecodeError("the file does not begin with a snapshot header")
                    timestamp = decode_snapshot_header_record(Reader(record.value), 0).last_contained_log_timestamp
                elif header.is_control:
                    is_finished = is_finished or record.key == FOOTER_KEY
                elif record.value is not None:
                    values.append(record.value)
                next_offset += 1
        except (DecodeError, DecompressionError) as error:
            raise BadCheckpoint(f"byte {position}: {error}") from None
        position += header.size
    if not is_finished:
        raise BadCheckpoint(f"{len(data)} bytes without a snapshot footer at the end")
    return Checkpoint(timestamp, values)


def read_checkpoint_file(storage: Storage, log_name: str, name: CheckpointName) -> Checkpoint:
    """Raises BadCheckpoint, with the file's name in its text, and FileNotFoundError."""
    path = name.path_in(log_name)
    try:
        return parse_checkpoint(storage.read_bytes(path), name.epoch)
    except FileNotFoundError:
        raise
    except (BadCheckpoint, OSError) as error:
        raise BadCheckpoint(f"{path}: {error}") from None


def read_timestamp(storage: Storage, log_name: str, name: CheckpointName) -> int:
    """The timestamp of the last log record below the snapshot's end, from its header; -1 if it is unreadable.

    Raises OSError.
    """
    file = storage.open(name.path_in(log_name))
    try:
        data = file.read_at(0, HEADER_BYTES * 4)
    finally:
        file.close()
    try:
        header = parse_header(data, 0, True)
        if header.size > len(data) or not check_crc(data, 0, header):
            return -1
        value = decode_records(data, 0, header, DECOMPRESSED_BYTES_MAX)[0].value
        return -1 if value is None else decode_snapshot_header_record(Reader(value), 0).last_contained_log_timestamp
    except (DecodeError, DecompressionError, IndexError):
        return -1


@final
class Base:
    """Where reading the metadata log begins: at the end of a snapshot, or at its first record if `name` is None.

    `damaged` lists newer snapshots that could not be used, with the reasons.
    """

    def __init__(self, start: int) -> None:
        self.start = start
        self.name: CheckpointName | None = None
        self.last_timestamp = -1
        self.values: list[bytes] = []
        self.damaged: list[tuple[CheckpointName, str]] = []
        self.names: list[CheckpointName] = []

    @property
    def offset(self) -> int:
        return 0 if self.name is None else self.name.end_offset

    @property
    def is_missing(self) -> bool:
        """Whether the log does not start at offset 0 and no snapshot replaces the missing records."""
        return self.name is None and self.start > 0


def find_base(storage: Storage, log_name: str, start: int, upto_ms: int = -1) -> Base:
    """The newest complete snapshot after which a log that starts at `start` continues. Changes nothing.

    With `upto_ms`, the newest one without records later than that. Raises OSError.
    """
    base = Base(start)
    base.names = list_checkpoints(storage, log_name)
    for name in reversed(base.names):
        if name.end_offset < start:
            break
        try:
            found = read_checkpoint_file(storage, log_name, name)
        except BadCheckpoint as error:
            base.damaged.append((name, str(error)))
            continue
        except FileNotFoundError:
            # A running server removes older snapshots.
            continue
        if upto_ms < 0 or found.last_timestamp <= upto_ms:
            base.name, base.values, base.last_timestamp = name, found.values, found.last_timestamp
            break
    return base


def no_base(log_name: str, start: int, names: list[CheckpointName], reason: str) -> LogDamaged:
    """The error for a log that begins at `start` if no snapshot in `names` replaces the earlier records."""
    file = names[-1].path_in(log_name) if names else f"{log_name}/{CheckpointName(start, 0).file}"
    if not reason:
        reason = "there is none" if not names else f"the newest ends at {names[-1].end_offset}"
    text = f"the log begins at offset {start} and no snapshot has the earlier records: {reason}"
    return LogDamaged(file, start, 0, text)


@final
class CheckpointWriter:
    """Writes a snapshot under a temporary name and renames it once it is complete and durable. Raises OSError."""

    def __init__(
        self,
        storage: Storage,
        log_name: str,
        name: CheckpointName,
        last_timestamp: int,
        wall_ms: int,
        batch_bytes_max: int = BATCH_BYTES_MAX,
    ) -> None:
        self.storage = storage
        self.log_name = log_name
        self.name = name
        self.wall_ms = wall_ms
        self.batch_bytes_max = batch_bytes_max
        self.records = 0
        self.size_bytes = 0
        self._part = name.path_in(log_name) + PART_SUFFIX
        self._next_offset = 0
        self._builder = BatchBuilder()
        self._file = storage.open(self._part)
        self._file.truncate(0)
        w = BytesWriter()
        encode_snapshot_header_record(w, SnapshotHeaderRecord(0, last_timestamp), 0)
        self._control(HEADER_KEY, w.getvalue())

    def append(self, value: bytes) -> None:
        """Append a record of the state, byte for byte."""
        builder = self._builder
        if builder.count and builder.size_bytes() + len(value) + RECORD_OVERHEAD_BYTES > self.batch_bytes_max:
            self._write(False)
        self._builder.append(self.wall_ms, None, value)
        self.records += 1

    def _control(self, key: bytes, value: bytes) -> None:
        self._builder.append(self.wall_ms, key, value)
        self._write(True)

    def _write(self, control: bool) -> None:
        builder, self._builder = self._builder, BatchBuilder()
        batch = builder.build(self._next_offset, self.name.epoch, control=control)
        self._next_offset += int(builder.count)
        self._file.append(batch)
        self.size_bytes += len(batch)

    def finish(self) -> None:
        """Complete the snapshot after the last record. It is durable when this returns."""
        if self._builder.count:
            self._write(False)
        w = BytesWriter()
        encode_snapshot_footer_record(w, SnapshotFooterRecord(0), 0)
        self._control(FOOTER_KEY, w.getvalue())
        self._file.datasync()
        self._file.close()
        self.storage.rename(self._part, self.name.path_in(self.log_name))
        self.storage.sync_dir(self.log_name)

    def abandon(self) -> None:
        """Discard the unfinished file."""
        self._file.close()
        if self.storage.exists(self._part):
            self.storage.remove(self._part)
