"""Writes a data directory with many committed offsets: `open_log DIR OFFSETS GROUPS PER_COMMIT HISTORY`.

The commits are record batches, as a server writes them. If HISTORY asks for more records than offsets, the same batches
are repeated at later offsets. A state checkpoint is written at the end. Prints the figures of the log and the time of
the checkpoint as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Final

from kcoord.engine.state_checkpoint import write_state
from kcoord.log.journal import Journal
from kcoord.log.partition_log import PartitionLog
from kcoord.log.serde import encode_record
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.server.assembly import open_assembly
from kcoord.server.pump import read_clocks
from kcoord.server.settings.load import load
from kcoord.wire.record_batch import BatchBuilder, with_offsets

TOPICS_PER_GROUP: Final = 4
# The largest number of bytes that wait to be written.
PENDING_BYTES: Final = 8 << 20
WALL_MS: Final = 1_800_000_000_000


def place(group: int, number: int, per_group: int) -> tuple[str, int]:
    """The topic and the partition of one of the offsets that a group has."""
    per_topic = max(per_group // TOPICS_PER_GROUP, 1)
    return f"orders-{(group + number // per_topic) % 200:03d}", number % per_topic


def commits(offsets: int, groups: int, per_commit: int) -> list[tuple[bytes, int]]:
    """(batch at offset 0, its number of records) of one commit of every partition of every group."""
    each = offsets // groups
    batches: list[tuple[bytes, int]] = []
    for first in range(0, each, per_commit):
        for group in range(groups):
            builder = BatchBuilder()
            wall_ms = WALL_MS + len(batches)
            for number in range(first, min(first + per_commit, each)):
                topic, partition = place(group, number, each)
                key = OffsetCommitKey(f"group-{group:06d}", topic, partition)
                value = OffsetCommitValue(5_000_000_000 + group * 1000 + number, 3, "", wall_ms)
                key_bytes, value_bytes = encode_record(key, value)
                builder.append(wall_ms, key_bytes, value_bytes)
            count = int(builder.count)
            batches.append((builder.build(0, 0), count))
    return batches


def fill(journal: Journal, log: PartitionLog, batches: list[tuple[bytes, int]], records: int) -> None:
    wall_ms = WALL_MS
    while log.end_offset < records:
        for batch, count in batches:
            base = log.end_offset
            journal.append(log, with_offsets(batch, base, 0), base, base + count - 1, wall_ms)
            if journal.pending_bytes > PENDING_BYTES:
                journal.commit()
    journal.commit()


def main() -> None:
    data = sys.argv[1]
    offsets, groups, per_commit, history = (int(word) for word in sys.argv[2:6])
    config = load()
    config.server.data_dir = data
    config.server.log_sync = "os"
    assembly = open_assembly(config)
    assembly.engine.load(read_clocks())
    while assembly.engine.has_unwritten():
        assembly.engine.end_turn(read_clocks())
    log = assembly.directory.get("__consumer_offsets", 0)
    assert log is not None
    batches = commits(offsets, groups, per_commit)
    fill(assembly.journal, log, batches, max(offsets, history))
    figures: dict[str, float] = {"records": log.end_offset, "bytes": log.size_bytes}
    figures["segments"] = len(log.segments)
    began = time.perf_counter()
    for plan in assembly.engine.states.plans(True):
        figures["live_records"] = write_state(log.storage, plan)
    figures["checkpoint_s"] = time.perf_counter() - began
    assembly.close()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
