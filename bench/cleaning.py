"""How fast the cleaner is, at full speed: `python -m bench.cleaning [--mb N]`.

The log is that of a coordinator of consumer groups: batches of 640 commits, of 40 keys. The figures are CPU times of
this process, the best of three rounds. PYTHONPATH decides whether native code is measured.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from kcoord.log.cleaner import CleanConfig, CleanResult, clean
from kcoord.log.directory import open_directory
from kcoord.log.journal import Journal
from kcoord.log.partition_log import PartitionLog
from kcoord.log.serde import encode_record
from kcoord.log.storage import DiskStorage
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.wire.record_batch import BatchBuilder

UUID = "YmVuY2gtYmVuY2gtYmVuY2g"
TOPIC = "__consumer_offsets"
GROUPS = 8
PARTITIONS = 5
BATCH_RECORDS = 640
COMMIT_BATCHES = 100
START_MS = 1_800_000_000_000
ROUNDS = 3


def fill(journal: Journal, log: PartitionLog, size_bytes: int) -> None:
    """Write commits of a few groups, again and again, and close the segment."""
    commits = [
        encode_record(
            OffsetCommitKey(f"bench-group-{group}", "bench", index), OffsetCommitValue(group, 0, "", START_MS)
        )
        for group in range(GROUPS)
        for index in range(PARTITIONS)
    ]
    offset = 0
    while log.size_bytes < size_bytes:
        for _ in range(COMMIT_BATCHES):
            builder = BatchBuilder()
            for number in range(BATCH_RECORDS):
                builder.append(START_MS + offset, *commits[number % len(commits)])
            last = offset + BATCH_RECORDS - 1
            journal.append(log, builder.build(offset, 0), offset, last, START_MS + offset)
            offset = last + 1
        journal.commit()
    journal.roll(log)
    builder = BatchBuilder()
    builder.append(START_MS, *commits[0])
    journal.append(log, builder.build(offset, 0), offset, offset, START_MS)
    journal.commit()


def measure(folder: Path, size_bytes: int) -> tuple[float, CleanResult]:
    """The best CPU time in seconds, and the result of that cleaning."""
    storage = DiskStorage(str(folder))
    directory = open_directory(storage, 1, UUID, UUID)
    log = directory.create_log(TOPIC, 0, b"\x00" * 15 + b"\x02")
    fill(Journal(directory, "os"), log, size_bytes)
    bases = [segment.base_offset for segment in log.closed_segments]
    found: list[tuple[float, CleanResult]] = []
    for _ in range(ROUNDS):
        used = time.process_time()
        result = clean(storage, log.name, bases, 0, CleanConfig(), START_MS)
        found.append((time.process_time() - used, result))
    return min(found, key=lambda one: one[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=200, help="the size of the log")
    size_bytes: int = parser.parse_args().mb * 1_000_000
    with tempfile.TemporaryDirectory(dir=".") as name:
        seconds, result = measure(Path(name), size_bytes)
    size = f"{result.records_before:,} records of {result.bytes_before / 1e6:,.0f} MB"
    each = seconds / result.records_before * 1e6
    print(f"{size}: {result.bytes_before / seconds / 1e6:,.0f} MB/s, {each:.2f} us each")


if __name__ == "__main__":
    main()
