"""The process that writes snapshots of the metadata log: `python -m kcoord.server.metadata_child`, with what to do on
its stdin. It gets one line of JSON and gives one line back."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from kcoord.engine.metadata_writer import SnapshotPlan, WrittenSnapshot, write_snapshot
from kcoord.log.metadata_checkpoint import PART_SUFFIX
from kcoord.log.partition_log import Extent
from kcoord.server.child import LogFiles, begin_work


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
    return SnapshotPlan(
        data["log"], data["node_id"], data["base"], data["from"], data["end"], extents, data["syncs"]
    )


def encode_result(result: WrittenSnapshot) -> dict[str, int]:
    return {
        "end_offset": result.end_offset,
        "epoch": result.epoch,
        "last_timestamp": result.last_timestamp,
        "records": result.records,
        "kept": result.kept,
        "size_bytes": result.size_bytes,
    }


def main() -> None:
    work = begin_work()
    storage = LogFiles(work["root"], PART_SUFFIX)
    answer: dict[str, Any]
    try:
        answer = encode_result(
            write_snapshot(storage, decode_plan(work["plan"]), time.time_ns() // 1_000_000)
        )
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
    # The thread still reads.
    os._exit(0)


if __name__ == "__main__":
    main()
