"""The child process that writes a snapshot of the metadata log, with one answer.

    python -m kcoord.server.maintenance.metadata_child

`kcoord.log.parent` describes the protocol.
"""

from __future__ import annotations

import time
from typing import Any

from kcoord.engine.metadata_writer import SnapshotPlan, WrittenSnapshot, write_snapshot
from kcoord.log.metadata_checkpoint import PART_SUFFIX
from kcoord.log.parent import LogFiles, Parent
from kcoord.log.partition_log import Extent
from kcoord.server.maintenance.child import int_of


def encode_plan(plan: SnapshotPlan) -> dict[str, Any]:
    return {
        "log": plan.log_name,
        "node_id": plan.node_id,
        "base": plan.base,
        "from": plan.from_offset,
        "end": plan.end_offset,
        "extents": [[extent.path, extent.start, extent.end] for extent in plan.extents],
        "syncs": plan.syncs,
    }


def decode_plan(data: dict[str, Any]) -> SnapshotPlan:
    extents = [Extent(path, start, end) for path, start, end in data["extents"]]
    return SnapshotPlan(data["log"], data["node_id"], data["base"], data["from"], data["end"], extents, data["syncs"])


def encode_result(result: WrittenSnapshot) -> dict[str, int]:
    return {
        "end_offset": result.end_offset,
        "epoch": result.epoch,
        "last_timestamp": result.last_timestamp,
        "records": result.records,
        "kept": result.kept,
        "size_bytes": result.size_bytes,
    }


def decode_result(answer: dict[str, Any]) -> WrittenSnapshot:
    """Raises BadAnswer."""
    return WrittenSnapshot(
        int_of(answer, "end_offset"),
        int_of(answer, "epoch"),
        int_of(answer, "last_timestamp"),
        int_of(answer, "records"),
        int_of(answer, "kept"),
        int_of(answer, "size_bytes"),
    )


def main() -> None:
    parent = Parent()
    storage = LogFiles(parent.work["root"], (PART_SUFFIX,), parent.meter)
    try:
        result = write_snapshot(storage, decode_plan(parent.work["plan"]), time.time_ns() // 1_000_000)
        parent.answer(encode_result(result))
    except Exception as error:
        parent.answer({"error": f"{type(error).__name__}: {error}"})
    parent.end()


if __name__ == "__main__":
    main()
