"""Kafka's log dumper reads what compaction leaves: gaps, delete horizons, empty batches, markers and their indexes."""

from __future__ import annotations

from pathlib import Path

from kcoord.log.cleaner import CleanConfig, clean
from kcoord.log.segment import Segment, segment_name
from kcoord.log.storage import DiskStorage
from kcoord.log.transaction_index import ABORT, COMMIT
from kcoord.wire.record_batch import BatchBuilder
from tests.interop import tools

NOW_MS = 1_700_000_000_000
HORIZON_MS = NOW_MS + 24 * 3600 * 1000


class Writer:
    """One segment of a log, batch by batch."""

    def __init__(self, root: Path) -> None:
        self.storage = DiskStorage(str(root))
        self.storage.make_dir("t-0")
        self.file = self.storage.open(f"t-0/{segment_name(0)}.log")
        self.end = 0

    def put(self, *keys: bytes, value: bytes | None = b"v", pid: int = -1, txn: bool = False, codec: int = 0) -> None:
        builder = BatchBuilder()
        for key in keys:
            builder.append(NOW_MS + self.end, key, value)
        has_producer = pid >= 0
        batch = builder.build(
            self.end, 0, pid, 0 if has_producer else -1, self.end if has_producer else -1, txn, False, codec
        )
        self.file.append(batch)
        self.end += len(keys)

    def mark(self, kind: int, pid: int) -> None:
        builder = BatchBuilder()
        builder.append(NOW_MS, b"\x00\x00\x00" + bytes([kind]), b"\x00\x00\x00\x00\x00\x00")
        self.file.append(builder.build(self.end, 0, pid, 0, -1, True, True))
        self.end += 1


def test_the_dumper_reads_a_cleaned_segment_and_its_indexes(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for codec in range(5):
        writer.put(b"a", b"b", b"c%d" % codec, codec=codec)
    writer.put(b"d", b"a", value=None, codec=2)
    writer.put(b"p", pid=7)
    writer.put(b"p")
    writer.put(b"x", b"y", pid=8, txn=True)
    writer.mark(ABORT, 8)
    writer.put(b"z", pid=8, txn=True)
    writer.mark(COMMIT, 8)
    for number in range(300):
        writer.put(b"many %d" % (number % 150), value=bytes(50))
    result = clean(writer.storage, "t-0", [0], 0, CleanConfig(index_interval_bytes=500), NOW_MS)
    assert result.records_after < result.records_before
    Segment(writer.storage, "t-0", 0, 500).remove()
    Segment(writer.storage, "t-0", 0, 500, ".cleaned").existing().rename("")
    log = tmp_path / "t-0" / f"{segment_name(0)}.log"
    shown = tools.run(tools.DUMP_LOG, "--deep-iteration", "--print-data-log", "--files", str(log))
    assert shown.code == 0 and "isvalid: false" not in shown.out, shown
    batches = [line for line in shown.lines if line.startswith("baseOffset:")]
    records = [line for line in shown.lines if line.startswith("| offset:")]
    assert len(records) == result.records_after
    assert any(f"deleteHorizonMs: OptionalLong[{HORIZON_MS}]" in line for line in batches)
    assert any("producerId: 7 " in line and "count: 0 " in line for line in batches)
    assert any("endTxnMarker: ABORT" in line for line in records)
    assert not any(" key: x" in line or " key: y" in line for line in records)
    for kind, option in ((".index", "--index-sanity-check"), (".timeindex", "--index-sanity-check"), (".txnindex", "")):
        path = log.with_suffix(kind)
        shown = tools.run(tools.DUMP_LOG, *([option] if option else []), "--files", str(path))
        assert shown.code == 0 and "Found" not in shown.out, shown
        if kind == ".txnindex":
            assert "producerId: 8 firstOffset: 19 lastOffset: 21" in shown.out, shown
