"""The hot part of compaction: which records of a batch stay.

A cleaning sees every record twice: once to learn which one is the newest of its key, and once to decide whether it
stays. So nothing here makes an object for a record: keys are cut out of the batch, and what stays is noted as ranges of
bytes. `cleaner.py` has the rules, and calls this for one batch at a time.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.log.pace import Pace
from kcoord.wire.primitives import BytesWriter, Reader, i64, varint_size, write_varint
from kcoord.wire.record_batch import record_end

# Longer keys are remembered by a digest. It is one byte longer than the longest whole key, so the two never collide.
WHOLE_KEY_BYTES_MAX: Final = 96
DIGEST_BYTES: Final = 64
DIGEST_PAD: Final = b"\x00" * (WHOLE_KEY_BYTES_MAX + 1 - DIGEST_BYTES)
# Memory is bounded by a number of keys of this size; larger ones count as more than one.
USUAL_KEY_BYTES: Final = 32
# `Pace.breathe` is called before every 64th record.
BREATH_RECORDS: Final = 64
NO_OFFSET: Final = -1
# Sorting so many offsets takes about 30 ms, in which the work does not pause.
SURVIVORS_MAX: Final = 1 << 17


@final
class NewestOffsets:
    """The newest offset of each key."""

    def __init__(self, keys_max: int) -> None:
        self.by_key: dict[bytes, int] = {}
        self.bytes_max = keys_max * USUAL_KEY_BYTES
        self.bytes: i64 = 0

    @property
    def is_full(self) -> bool:
        return self.bytes >= self.bytes_max

    def survivors(self) -> Survivors:
        """The newest offsets of all keys."""
        return Survivors(sorted(self.by_key.values()))

    def note_batch(self, r: Reader, base_offset: i64, count: i64, first_dirty: i64, pace: Pace) -> None:
        """Note the keys of the next `count` records in `r`, from offset `first_dirty` on. Raises DecodeError."""
        by_key = self.by_key
        buf = r.buf
        breath: i64 = 0
        while count > 0:
            count -= 1
            if breath == 0:
                pace.breathe()
                breath = BREATH_RECORDS
            breath -= 1
            end = record_end(r)
            r.varlong()
            offset = base_offset + r.varint()
            size = r.varint()
            if size >= 0 and offset >= first_dirty:
                at = r.take(size)
                known = len(by_key)
                by_key[short_key(buf[at : at + size])] = int(offset)
                if len(by_key) != known:
                    self.bytes += USUAL_KEY_BYTES if size < USUAL_KEY_BYTES else min(size, WHOLE_KEY_BYTES_MAX)
            r.pos = end


@final
class Survivors:
    """The offsets of records that stay, in ascending order. Batches are looked up in their order, too."""

    def __init__(self, offsets: list[int]) -> None:
        self.offsets = offsets
        self.next: i64 = 0

    def knows_none(self, first_offset: int, last_offset: int) -> bool:
        """Whether no record of a batch stays."""
        offsets = self.offsets
        at = self.next
        count = len(offsets)
        while at < count and offsets[at] < first_offset:
            at += 1
        self.next = at
        return at == count or offsets[at] > last_offset


@final
class Sieve:
    """What stays of a batch. `ranges` has the start and the end of each run of bytes, in turn."""

    def __init__(self) -> None:
        self.ranges: list[int] = []
        self.kept: i64 = 0
        self.has_tombstone = False
        self.time_delta_max = 0

    def take_all(self, r: Reader, count: i64) -> None:
        """Keep all of the next `count` records in `r`. Raises DecodeError."""
        start = r.pos
        while count > 0:
            count -= 1
            end = record_end(r)
            self._keep(start, end, r.varlong())
            r.pos = end
            start = end

    def take_newest(
        self,
        r: Reader,
        base_offset: i64,
        count: i64,
        newest: NewestOffsets,
        end_offset: i64,
        deleted_end: i64,
        pace: Pace,
    ) -> None:
        """Keep, of the next `count` records in `r`, those from `end_offset` on, and before it those that are the newest
        of their key. Tombstones before `deleted_end` go. Raises DecodeError.
        """
        by_key = newest.by_key
        buf = r.buf
        breath: i64 = 0
        while count > 0:
            count -= 1
            if breath == 0:
                pace.breathe()
                breath = BREATH_RECORDS
            breath -= 1
            start = r.pos
            end = record_end(r)
            time_delta = r.varlong()
            offset = base_offset + r.varint()
            size = r.varint()
            stays = offset >= end_offset
            if size >= 0:
                at = r.take(size)
                if not stays:
                    found = by_key.get(short_key(buf[at : at + size]))
                    stays = found is None or found <= int(offset)
            if stays and r.varint() < 0:
                if offset < deleted_end:
                    stays = False
                else:
                    self.has_tombstone = True
            if stays:
                self._keep(start, end, time_delta)
            r.pos = end

    def _keep(self, start: i64, end: i64, time_delta: int) -> None:
        ranges = self.ranges
        if ranges and ranges[-1] == start:
            ranges[-1] = int(end)
        else:
            ranges.append(int(start))
            ranges.append(int(end))
        if self.kept == 0 or time_delta > self.time_delta_max:
            self.time_delta_max = time_delta
        self.kept += 1


def short_key(key: bytes) -> bytes:
    """What stands for a key: itself, or its digest if it is long."""
    if len(key) <= WHOLE_KEY_BYTES_MAX:
        return key
    # Here, so that a start does not load OpenSSL for it.
    import hashlib

    return DIGEST_PAD + hashlib.blake2b(key, digest_size=DIGEST_BYTES).digest()


def cut_out(buf: bytes, ranges: list[int]) -> bytes:
    """The bytes in these ranges."""
    w = BytesWriter()
    for i in range(0, len(ranges), 2):
        w.write(buf[ranges[i] : ranges[i + 1]])
    return w.getvalue()


def cut_out_shifted(buf: bytes, ranges: list[int], shift: int) -> bytes:
    """Like `cut_out`, with `shift` added to the timestamp delta of every record."""
    w = BytesWriter()
    r = Reader(buf)
    for i in range(0, len(ranges), 2):
        r.pos = ranges[i]
        range_end: i64 = ranges[i + 1]
        while r.pos < range_end:
            end = record_end(r)
            delta = r.varlong() + shift
            rest = r.pos
            write_varint(w, 1 + varint_size(delta) + end - rest)
            w.append(0)
            write_varint(w, delta)
            w.write(buf[rest:end])
            r.pos = end
    return w.getvalue()
