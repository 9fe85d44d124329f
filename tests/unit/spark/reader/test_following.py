"""Transactions of a log that grows: what was walked is not walked again, and the answer is that of a whole walk."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kcoord.spark.reader import segments
from kcoord.spark.reader.discovery import discover
from kcoord.spark.reader.filesystem import FileBytes
from kcoord.spark.reader.following import TAIL_BYTES, Follower
from kcoord.spark.reader.slices import LogPartition
from kcoord.spark.reader.stream_reader import KcoordStreamReader
from kcoord.spark.reader.transactions import Transactions, begin_survey, surveyed, walk
from tests.unit.spark.log_rig import LogRig, options

MARKERS = {"abort": b"\x00\x00\x00\x00", "commit": b"\x00\x00\x00\x01"}


def begin(log: LogRig, producer: int, value: bytes = b"v") -> None:
    log.append((b"k", value), producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)


def end(log: LogRig, producer: int, how: str = "abort") -> None:
    marker = (MARKERS[how], b"\x00\x00\x00\x00\x00\x00")
    log.append(marker, producer_id=producer, producer_epoch=0, transactional=True, control=True)


def listed(root: Path) -> tuple[Any, LogPartition]:
    filesystem, path = options(root).storage.open()
    return filesystem, discover(filesystem, path)[0]


def transactions_of(filesystem: Any, partition: LogPartition) -> Transactions:
    """The same without a follower, from all that the log has."""
    begin, survey, found = begin_survey(filesystem, partition)
    for segment in partition.segments[begin:]:
        with segments.open_segment(filesystem, segment) as file:
            walk(file, survey, 0)
    return surveyed(partition, survey, found)


def boundaries(found: Transactions) -> tuple[Any, ...]:
    return found.aborted, found.stable_end, found.end_offset


class Followed:
    """One follower of one partition, held against a walk over all of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.follower = Follower()

    def check(self) -> Transactions:
        filesystem, partition = listed(self.root)
        found = self.follower.transactions_of(filesystem, partition)
        assert boundaries(found) == boundaries(transactions_of(filesystem, partition))
        return found

    def look(self) -> Transactions:
        return self.follower.transactions_of(*listed(self.root))


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """[bytes, files]"""
    read = [0, 0]

    class Counting(FileBytes):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            read[1] += 1

        def pread(self, size: int, position: int) -> bytes:
            data = super().pread(size, position)
            read[0] += len(data)
            return data

    monkeypatch.setattr(segments, "FileBytes", Counting)
    return read


def large(root: Path) -> LogRig:
    log = LogRig(root)
    for _ in range(20):
        log.append((b"k", bytes(100_000)))
    begin(log, 7)
    return log


def test_a_look_costs_what_is_new(tmp_path: Path, bytes_read: list[int]) -> None:
    log, followed = large(tmp_path), Followed(tmp_path)
    assert followed.look().stable_end == 20
    assert bytes_read[0] > 2_000_000
    bytes_read[:] = [0, 0]
    assert followed.look().stable_end == 20
    assert bytes_read == [0, 0]
    end(log, 7)
    found = followed.look()
    assert [one.last_offset for one in found.aborted] == [21]
    assert found.end_offset == 22
    assert bytes_read[0] < 3 * TAIL_BYTES
    log.roll()
    begin(log, 8)
    bytes_read[:] = [0, 0]
    assert followed.look().stable_end == 22
    assert bytes_read[0] < 3 * TAIL_BYTES
    # Who begins anew knows nothing.
    assert boundaries(Followed(tmp_path).look()) == boundaries(followed.look())
    assert bytes_read[0] > 2_000_000
    followed.check()


def test_a_trigger_of_a_stream_costs_what_is_new(tmp_path: Path, bytes_read: list[int]) -> None:
    log = large(tmp_path)
    stream = KcoordStreamReader(options(tmp_path, startingOffsets="earliest"))
    everything = ReadAllAvailable()
    first = stream.latestOffset(stream.initialOffset(), everything)
    assert first == {".": {"t": {"0": 20}}}
    end(log, 7)
    log.append((b"k", b"last"))
    bytes_read[:] = [0, 0]
    second = stream.latestOffset(first, everything)
    parts = stream.partitions(first, second)
    assert bytes_read[0] < 3 * TAIL_BYTES
    rows = [row for part in parts for batch in stream.read(part) for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == [b"last"]
    # What lies behind is not asked for again.
    log.append((b"k", b"one more"))
    third = stream.latestOffset(second, everything)
    assert len(stream.partitions(second, third)) == 1
    assert stream._follower.transactions_of(*listed(tmp_path)).aborted == []


def test_a_log_that_was_cut_and_written_on(tmp_path: Path) -> None:
    """A crash took the end of a transaction; what came instead is as long as that."""
    log, followed = LogRig(tmp_path), Followed(tmp_path)
    begin(log, 7)
    size, offset = log.size, log.next_offset
    end(log, 7)
    assert followed.check().stable_end > 100
    before = log.size
    for other in (8, 9):
        # Shorter first, then as long as before.
        os.truncate(log.file(".log"), size)
        log.size, log.next_offset = size, offset
        if other == 9:
            end(log, other)
            assert log.size == before
        assert followed.check().stable_end == 0


def test_a_torn_end_that_becomes_whole(tmp_path: Path) -> None:
    log, followed = LogRig(tmp_path), Followed(tmp_path)
    begin(log, 7)
    log.append((b"k", bytes(1000)))
    data = log.file(".log").read_bytes()
    log.file(".log").write_bytes(data[:-400])
    assert followed.check().end_offset == 1
    log.file(".log").write_bytes(data)
    assert followed.check().end_offset == 2
    end(log, 7)
    assert [one.first_offset for one in followed.check().aborted] == [0]


def test_files_that_are_replaced_and_go(tmp_path: Path, bytes_read: list[int]) -> None:
    log, followed = LogRig(tmp_path), Followed(tmp_path)
    for producer in range(5):
        log.append((b"k", bytes(100_000)))
        begin(log, producer)
        end(log, producer)
        log.roll()
    log.append((b"k", b"v"))
    assert len(followed.check().aborted) == 5
    files = sorted(log.path.glob("*.log"))
    # Retention: what is left is known.
    bytes_read[:] = [0, 0]
    files[0].unlink()
    assert followed.look().end_offset == 16
    assert bytes_read == [0, 0]
    # Compaction puts two together.
    files[1].write_bytes(files[1].read_bytes() + files[2].read_bytes())
    files[2].unlink()
    followed.look()
    assert bytes_read[0] > 300_000
    followed.check()
    # The last one is another one of the same name and size.
    data = files[-1].read_bytes()
    log.size = 0
    files[-1].write_bytes(b"")
    log.next_offset = log.base
    log.append((b"k", b"w"))
    assert len(files[-1].read_bytes()) == len(data)
    bytes_read[:] = [0, 0]
    followed.look()
    assert bytes_read[0] > 300_000
    followed.check()
    for file in files[1:]:
        file.unlink(missing_ok=True)
    log.roll()
    followed.check()


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_to_a_log(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    log, followed = LogRig(tmp_path), Followed(tmp_path)
    points = [(log.base, 0, 0)]
    for _ in range(60):
        what = chance.choice(["plain", "begin", "begin", "end", "end", "roll", "cut", "retention", "torn", "look"])
        if what == "plain":
            log.append((b"k", bytes(chance.randrange(3000))))
        elif what == "begin":
            begin(log, chance.randrange(4), bytes(chance.randrange(50)))
        elif what == "end":
            end(log, chance.randrange(4), chance.choice(["abort", "commit"]))
        elif what == "roll" and log.size:
            log.roll()
        elif what == "cut":
            base, size, offset = chance.choice(points)
            if base == log.base:
                os.truncate(log.file(".log"), size)
                log.size, log.next_offset = size, offset
                points = [one for one in points if one[2] <= offset]
        elif what == "retention":
            files = sorted(log.path.glob("*.log"))
            if len(files) > 1:
                files[0].unlink()
        elif what == "torn":
            size = log.size
            log.write(b"\x00" * chance.randrange(30))
            seen = followed.look()
            assert seen.end_offset == transactions_of(*listed(tmp_path)).end_offset
            os.truncate(log.file(".log"), size)
            log.size = size
        points.append((log.base, log.size, log.next_offset))
        if what != "cut" or chance.random() < 0.5:
            seen = followed.look()
            now = transactions_of(*listed(tmp_path))
            first = listed(tmp_path)[1].segments[0].base_offset
            assert (seen.stable_end, seen.end_offset) == (
                now.stable_end,
                now.end_offset,
            ) or seen.stable_end < first
            # Of transactions that began in what retention took, more is known than the files still say.
            by_end = {one.last_offset: one for one in seen.aborted}
            for one in now.aborted:
                same = by_end[one.last_offset]
                assert same == one or (same.producer_id == one.producer_id and same.first_offset < first)
            assert {one for one in seen.aborted if one.first_offset >= first} <= set(now.aborted)
