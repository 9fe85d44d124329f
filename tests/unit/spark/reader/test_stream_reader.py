"""The streaming reader without Spark: offsets, limits, and what is lost between two batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from kcoord.spark.reader.planner import DataLoss
from kcoord.spark.reader.stream_reader import KcoordStreamReader, share
from tests.unit.spark.log_rig import LogRig, options

EVERYTHING = ReadAllAvailable()


def reader(root: Path, **given: str) -> KcoordStreamReader:
    return KcoordStreamReader(options(root, **{"startingOffsets": "earliest", **given}))


def read(stream: KcoordStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    return [
        row["offset"]
        for part in stream.partitions(start, end)
        for batch in stream.read(part)
        for row in batch.to_pylist()
    ]


def test_it_ends_where_the_log_is_durable(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    for _ in range(5):
        log.append((b"k", b"v"))
    log.checkpoint("recovery-point-offset-checkpoint", 3)
    stream = reader(tmp_path)
    start = stream.initialOffset()
    end = stream.latestOffset(start, EVERYTHING)
    assert end == {".": {"t": {"0": 3}}}
    assert read(stream, start, end) == [0, 1, 2]
    assert stream.latestOffset(end, EVERYTHING) == end
    log.checkpoint("recovery-point-offset-checkpoint", 5)
    later = stream.latestOffset(end, EVERYTHING)
    assert read(stream, end, later) == [3, 4]
    assert reader(tmp_path, until="written").latestOffset(start, EVERYTHING) == later


def test_the_high_watermark_of_a_broker_comes_first(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    for _ in range(5):
        log.append((b"k", b"v"))
    log.checkpoint("recovery-point-offset-checkpoint", 1)
    log.checkpoint("replication-offset-checkpoint", 4)
    stream = reader(tmp_path)
    assert stream.latestOffset(stream.initialOffset(), EVERYTHING) == {".": {"t": {"0": 4}}}


def test_it_starts_at_no_offset_that_does_not_exist(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    log.append((b"k", b"v"), (b"k", b"v"))
    assert reader(tmp_path, startingOffsets='{"t": {"0": 2}}').initialOffset() == {".": {"t": {"0": 2}}}
    with pytest.raises(DataLoss, match="t-0 in . ends at 2, before offset 3 of startingOffsets"):
        reader(tmp_path, startingOffsets='{"t": {"0": 3}}').initialOffset()
    with pytest.raises(DataLoss, match="startingOffsets has t-1"):
        reader(tmp_path, startingOffsets='{"t": {"1": 0}}').initialOffset()
    given = {"startingOffsets": '{"t": {"0": 3, "1": 0}}', "failOnDataLoss": "false"}
    assert reader(tmp_path, **given).initialOffset() == {".": {"t": {"0": 2}}}


def test_a_torn_end_is_not_read(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    log.append((b"k", b"v"))
    whole = log.size
    log.append((b"k", b"v"))
    with log.file(".log").open("r+b") as file:
        file.truncate(whole + 30)
    stream = reader(tmp_path)
    assert stream.latestOffset(stream.initialOffset(), EVERYTHING) == {".": {"t": {"0": 1}}}


def test_it_waits_for_open_transactions(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    log.append((b"k", b"v"))
    log.append((b"open", b"v"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    log.append((b"k", b"v"))
    stream = reader(tmp_path)
    start = stream.initialOffset()
    first = stream.latestOffset(start, EVERYTHING)
    assert read(stream, start, first) == [0]
    log.append((b"\0\0\0\1", b"\0\0\0\0\0\0"), producer_id=5, producer_epoch=0, transactional=True, control=True)
    assert read(stream, first, stream.latestOffset(first, EVERYTHING)) == [1, 2]


def test_from_the_end_by_default(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    log.append((b"k", b"v"))
    stream = KcoordStreamReader(options(tmp_path))
    start = stream.initialOffset()
    assert start == {".": {"t": {"0": 1}}}
    log.append((b"k", b"v"))
    assert read(stream, start, stream.latestOffset(start, EVERYTHING)) == [1]


def test_new_partitions_are_read_from_their_beginning(tmp_path: Path) -> None:
    LogRig(tmp_path).append((b"k", b"v"))
    stream = KcoordStreamReader(options(tmp_path))
    start = stream.initialOffset()
    LogRig(tmp_path, "new").append((b"k", b"v"), (b"k", b"v"))
    assert read(stream, start, stream.latestOffset(start, EVERYTHING)) == [0, 1]


def test_a_limit_is_shared_out(tmp_path: Path) -> None:
    for partition, count in ((0, 90), (1, 9), (2, 1)):
        LogRig(tmp_path, "t", partition).append(*[(b"k", b"v")] * count)
    stream = reader(tmp_path, maxOffsetsPerTrigger="20")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(20)
    offsets = [stream.initialOffset()]
    seen = 0
    while True:
        end = stream.latestOffset(offsets[-1], limit)
        if end == offsets[-1]:
            break
        count = len(read(stream, offsets[-1], end))
        assert 0 < count <= 20
        seen += count
        offsets.append(end)
    assert seen == 100


def test_shares_are_never_nothing() -> None:
    begins = {("l", "t", 0): 0, ("l", "t", 1): 0}
    ends = {("l", "t", 0): 1_000_000, ("l", "t", 1): 1}
    assert share(begins, ends, 10) == {("l", "t", 0): 9, ("l", "t", 1): 1}
    assert sum(share(begins, ends, 1).values()) == 1


def test_available_now_has_an_end(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    log.append((b"k", b"v"))
    stream = reader(tmp_path)
    stream.prepareForTriggerAvailableNow()
    log.append((b"k", b"v"))
    assert stream.latestOffset(stream.initialOffset(), EVERYTHING) == {".": {"t": {"0": 1}}}


def test_what_retention_took(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    log.append((b"k", b"v"))
    log.roll()
    log.append((b"k", b"v"))
    strict, lenient = reader(tmp_path), reader(tmp_path, failOnDataLoss="false")
    start = strict.initialOffset()
    min(log.path.glob("*.log")).unlink()
    end = strict.latestOffset(start, EVERYTHING)
    with pytest.raises(DataLoss, match="begins at 1, offset 0 is gone"):
        strict.partitions(start, end)
    assert read(lenient, start, end) == [1]


def test_a_log_that_was_removed_or_recreated(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    log.append((b"k", b"v"), (b"k", b"v"))
    stream = reader(tmp_path)
    end = stream.latestOffset(stream.initialOffset(), EVERYTHING)
    log.file(".log").unlink()
    # One that has listed it just now finds out when it reads.
    for one, message in ((stream, "was removed while it was read"), (reader(tmp_path), "is gone")):
        with pytest.raises(DataLoss, match=message):
            read(one, {".": {"t": {"0": 1}}}, end)
    log.file(".log").touch()
    with pytest.raises(DataLoss, match="before offset 2"):
        stream.latestOffset(end, EVERYTHING)
    assert reader(tmp_path, failOnDataLoss="false").latestOffset(end, EVERYTHING) == end


def test_it_follows_what_was_asked_for(tmp_path: Path) -> None:
    for topic in ("red", "blue"):
        LogRig(tmp_path, topic).append((b"k", b"v"))
    stream = reader(tmp_path, where='{"topic": "red"}', columns="offset")
    start = stream.initialOffset()
    assert start == {".": {"red": {"0": 0}}}
    assert read(stream, start, stream.latestOffset(start, EVERYTHING)) == [0]
