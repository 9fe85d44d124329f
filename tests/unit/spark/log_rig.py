"""Logs on disk for the reader's tests, written batch by batch, with indexes where a broker would have them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from kcoord.log.serde import encode_record
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.spark.reader.batch_reader import plan_tasks
from kcoord.spark.reader.filters import asked_for
from kcoord.spark.reader.history import plan_history, read_history
from kcoord.spark.reader.options import ReadOptions, parse_options
from kcoord.spark.reader.row_filter import RowFilter
from kcoord.spark.reader.tasks import read_task
from kcoord.wire.record_batch import BatchBuilder, Headers

NOW = 1_769_860_800_000


class LogRig:
    """One partition's directory; `append` writes batches to its last segment."""

    def __init__(self, root: Path, topic: str = "t", partition: int = 0) -> None:
        self.root = root
        self.path = root / f"{topic}-{partition}"
        self.path.mkdir(parents=True)
        self.next_offset = 0
        self.size = 0
        self.base = 0
        self.roll()

    def roll(self) -> None:
        """Begin a new segment."""
        self.base = self.next_offset
        self.size = 0
        self.file(".log").touch()

    def file(self, suffix: str) -> Path:
        return self.path / f"{self.base:020d}{suffix}"

    def append(
        self,
        *records: tuple[bytes | None, bytes | None],
        at_ms: int = NOW,
        headers: Headers | None = None,
        **batch: Any,
    ) -> int:
        """A batch of records, one millisecond apart; the offset of the first."""
        builder = BatchBuilder()
        for number, (key, value) in enumerate(records):
            builder.append(at_ms + number, key, value, headers)
        first = self.next_offset
        data = builder.build(first, 0, **batch)
        self.write(data)
        self.next_offset += len(records)
        return first

    def write(self, data: bytes) -> None:
        with self.file(".log").open("ab") as file:
            file.write(data)
        self.size += len(data)

    def index(self, *entries: tuple[int, int]) -> None:
        """Entries (last offset of a batch, its position) for the segment."""
        data = b"".join(struct.pack(">ii", offset - self.base, position) for offset, position in entries)
        self.file(".index").write_bytes(data)

    def checkpoint(self, name: str, offset: int) -> None:
        topic, _, partition = self.path.name.rpartition("-")
        (self.root / name).write_text(f"0\n1\n{topic} {partition} {offset}\n")


def commit(
    group: str, topic: str, partition: int, offset: int, metadata: str = "", at_ms: int = NOW
) -> tuple[bytes | None, bytes | None]:
    value = OffsetCommitValue(offset, -1, metadata, at_ms)
    return encode_record(OffsetCommitKey(group, topic, partition), value)


def options(root: Path | str, table: str = "messages", **given: str) -> ReadOptions:
    return parse_options({"path": str(root), "table": table, **given})


def rows(
    root: Path | str, table: str = "messages", rows: RowFilter | None = None, /, **given: str
) -> list[dict[str, Any]]:
    """All rows of a table, in the order of the tasks."""
    chosen = options(root, table, **given)
    wanted = asked_for(chosen) if rows is None else rows
    found: list[dict[str, Any]] = []
    if chosen.table.HAS_ROW_PER_PARTITION:
        for one in plan_history(chosen, wanted):
            found += read_history(one, chosen).to_pylist()
        return found
    for task in plan_tasks(chosen, wanted):
        for batch in read_task(task, chosen, wanted):
            found += batch.to_pylist()
    return found
