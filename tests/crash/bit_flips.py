"""Every bit of a log of a megabyte flipped, one at a time, and the log opened.

    python -m tests.crash.bit_flips [--seconds N] [--seed S] [--jobs J]

The log has many small segments, with batches of every codec, of idempotent and transactional producers, markers and
several leader epochs; a flip concerns one segment, so that one alone is opened, as

* the segment that was being written when the server died, below the durable mark: opening must refuse it;
* a closed segment, as `verify` looks at it: it must be refused;
* for one bit of every byte, the segment that was being written, with the mark in its middle: damage below the mark
  must be refused; above it, what is lost must be cut from the damaged batch on, and be reported.

A flip that both accept would be harmless only if every reader still got the same offsets, records and epochs. There
should be none, and each is listed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time

from kcoord.log.errors import LogDamaged
from kcoord.log.log_config import LogConfig
from kcoord.log.partition_log import EPOCH_CHECKPOINT, PartitionLog
from kcoord.log.storage import MemoryStorage
from kcoord.wire.compression import CODEC_GZIP, CODEC_LZ4, CODEC_NONE, CODEC_SNAPPY, CODEC_ZSTD
from kcoord.wire.record_batch import BatchBuilder, decode_records
from tests.harness.record_batches import parse_batches

LOG_BYTES = 1 << 20
SEGMENT_BYTES = 2048
CODECS = (CODEC_NONE, CODEC_NONE, CODEC_GZIP, CODEC_SNAPPY, CODEC_LZ4, CODEC_ZSTD)
CONFIG = LogConfig(segment_bytes=SEGMENT_BYTES)
PROBLEMS_SHOWN = 10


class Specimen:
    """One segment: its bytes, where its batches are, and the epochs of its log."""

    def __init__(self, base: int, data: bytes, end: int, epochs: list[tuple[int, int]]) -> None:
        self.base = base
        self.data = data
        self.end = end
        self.epochs = epochs
        headers = parse_batches(data)
        self.positions = [header.pos for header in headers]
        self.offsets = [header.base_offset for header in headers]


def make_batch(rng: random.Random, base: int, epoch: int) -> tuple[bytes, int]:
    """A batch and the offset after it."""
    builder = BatchBuilder()
    count = rng.choice((1, 2, 5))
    for i in range(count):
        builder.append(1_700_000_000_000 + i, b"key-%d" % i, rng.randbytes(rng.choice((0, 20, 200))))
    producer = (rng.randrange(1 << 40), rng.randrange(100), rng.randrange(1 << 20))
    if rng.random() < 0.5:
        producer = (-1, -1, -1)
    is_control = rng.random() < 0.05
    is_transactional = is_control or (producer[0] >= 0 and rng.random() < 0.5)
    batch = builder.build(base, epoch, *producer, is_transactional, is_control, rng.choice(CODECS))
    return batch, base + count


def make_log(seed: int) -> list[Specimen]:
    """Segments of LOG_BYTES together."""
    rng = random.Random(seed)
    specimens: list[Specimen] = []
    base = epoch = total = 0
    epochs = [(0, 0)]
    while total < LOG_BYTES:
        start, data = base, b""
        while len(data) < SEGMENT_BYTES:
            if rng.random() < 0.02:
                epoch += rng.randrange(1, 4)
                epochs.append((epoch, base))
            batch, base = make_batch(rng, base, epoch)
            data += batch
        total += len(data)
        specimens.append(Specimen(start, data, base, list(epochs)))
    return specimens


class Bench:
    """A log of one segment in memory, to be damaged and opened again and again."""

    def __init__(self, specimen: Specimen) -> None:
        self.specimen = specimen
        self.storage = MemoryStorage()
        self.storage.make_dir("t-0")
        lines = ["0", str(len(specimen.epochs)), *(f"{epoch} {start}" for epoch, start in specimen.epochs)]
        self._write(f"t-0/{EPOCH_CHECKPOINT}", ("\n".join(lines) + "\n").encode())
        self.path = f"t-0/{specimen.base:020d}.log"

    def _write(self, path: str, data: bytes) -> None:
        file = self.storage.open(path)
        file.truncate(0)
        file.append(data)

    def open(self, data: bytes, mark: int, clean: bool, commit_bytes_max: int = 1 << 20) -> PartitionLog:
        """Raises LogDamaged. `last_events` tells what was cut."""
        self._write(self.path, data)
        log = PartitionLog(self.storage, "t", 0, bytes(16), CONFIG)
        self.last_events = log.recover(mark, self.specimen.base, clean, commit_bytes_max)
        return log

    def close_segment(self) -> None:
        """Put an empty segment behind, so that the damaged one counts as closed."""
        self._write(f"t-0/{self.specimen.end:020d}.log", b"")

    def verify(self, data: bytes) -> PartitionLog:
        self._write(self.path, data)
        log = PartitionLog(self.storage, "t", 0, bytes(16), CONFIG)
        self.last_events = log.recover(self.specimen.end, self.specimen.base, False, None, True)
        return log


class Tally:
    """What was covered. Adds up over processes."""

    def __init__(self) -> None:
        self.bits = 0
        self.found_active = 0
        self.found_closed = 0
        self.harmless = 0
        self.middle_refused = 0
        self.middle_cut = 0
        self.problems: list[str] = []

    def add(self, other: Tally) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def readings(data: bytes) -> list[tuple[object, ...]] | None:
    """What a reader gets: offsets, epochs and records. None if it would stumble."""
    try:
        return [
            (
                header.base_offset,
                header.leader_epoch,
                [(r.offset, r.timestamp, r.key, r.value) for r in decode_records(data, header.pos, header, 1 << 20)],
            )
            for header in parse_batches(data)
        ]
    except Exception:
        return None


def flip_all(
    specimen: Specimen, number: int, seed: int, ends_at: float, tally: Tally, count: int | None = None
) -> None:
    """Every bit of one segment, or as many as the time or `count` allows."""
    active, closed = Bench(specimen), Bench(specimen)
    closed.close_segment()
    active.open(specimen.data, specimen.end, False)
    closed.verify(specimen.data)
    rng = random.Random(seed * 100_000 + number)
    bits = list(range(len(specimen.data) * 8))
    if ends_at or count is not None:
        rng.shuffle(bits)
    data = bytearray(specimen.data)
    for bit in bits[:count]:
        if ends_at and time.monotonic() >= ends_at:
            return
        byte, mask = bit >> 3, 1 << (bit & 7)
        data[byte] ^= mask
        _flip_one(active, closed, bytes(data), f"segment {number}, byte {byte}, bit {bit & 7}", tally)
        if bit & 7 == byte % 8:
            _flip_in_the_middle(active, bytes(data), byte, f"segment {number}, byte {byte}", tally)
        data[byte] ^= mask


def _flip_one(active: Bench, closed: Bench, data: bytes, where: str, tally: Tally) -> None:
    tally.bits += 1
    accepted = 0
    try:
        active.open(data, active.specimen.end, False)
        accepted += 1
        if active.last_events:
            tally.problems.append(f"{where}: dropped below the mark: {active.last_events}")
    except LogDamaged:
        tally.found_active += 1
    try:
        closed.verify(data)
        accepted += 1
    except LogDamaged:
        tally.found_closed += 1
    if accepted:
        if readings(data) == readings(active.specimen.data):
            tally.harmless += 1
        else:
            tally.problems.append(f"{where}: not found")


def _flip_in_the_middle(bench: Bench, data: bytes, byte: int, where: str, tally: Tally) -> None:
    specimen = bench.specimen
    middle = len(specimen.positions) // 2
    mark, mark_position = specimen.offsets[middle], specimen.positions[middle]
    batch_at = max(position for position in specimen.positions if position <= byte)
    try:
        log = bench.open(data, mark, False)
    except LogDamaged as error:
        tally.middle_refused += 1
        if byte >= mark_position or error.position > byte:
            tally.problems.append(f"{where}, mark at {mark}: {error}")
        return
    tally.middle_cut += 1
    event = bench.last_events[0] if bench.last_events else None
    if byte < mark_position or event is None or event.position != batch_at:
        tally.problems.append(f"{where}, mark at {mark}: {event} instead of a cut at {batch_at}")
    elif log.end_offset != specimen.offsets[specimen.positions.index(batch_at)]:
        tally.problems.append(f"{where}, mark at {mark}: ends at {log.end_offset}")
    elif event.bytes_cut != len(data) - batch_at:
        tally.problems.append(f"{where}, mark at {mark}: {event.bytes_cut} bytes reported")


def run(seed: int, part: int, parts: int, seconds: float) -> Tally:
    """One of `parts` shares of the segments; `seconds` 0 takes every bit."""
    tally = Tally()
    specimens = list(enumerate(make_log(seed)))[part::parts]
    ends_at = 0.0
    for i, (number, specimen) in enumerate(specimens):
        if seconds:
            # An even share of the time for every segment.
            ends_at = (ends_at or time.monotonic()) + seconds / len(specimens)
        flip_all(specimen, number, seed + i, ends_at, tally)
    return tally


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="flip every bit of a log")
    parser.add_argument("--seconds", type=float, default=0.0, help="a sample for so long instead of everything")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    total = Tally()
    work = [(options.seed, part, options.jobs, options.seconds) for part in range(options.jobs)]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for tally in pool.starmap(run, work, 1):
            total.add(tally)
    size = sum(len(specimen.data) for specimen in make_log(options.seed))
    print(
        f"{total.bits} of the {size * 8} bits of a log flipped: {total.found_active} found at the start after a "
        f"crash, {total.found_closed} by verify, {total.harmless} harmless; with the mark in the middle of the segment "
        f"{total.middle_refused} refused, {total.middle_cut} cut and reported; {time.monotonic() - began:.0f} s "
        f"(seed {options.seed})"
    )
    for text in total.problems[:PROBLEMS_SHOWN]:
        print(f"  {text}")
    print(f"{len(total.problems)} flips were not dealt with")
    return 1 if total.problems else 0


if __name__ == "__main__":
    sys.exit(main())
