"""The child process that writes state checkpoints, with one answer for each.

    python -m kcoord.server.maintenance.state_child

`kcoord.log.parent` describes the protocol.
"""

from __future__ import annotations

import gc
from typing import Any

from kcoord.engine.state_checkpoint import StatePlan, write_state
from kcoord.log.parent import LogFiles, Parent
from kcoord.log.partition_log import Extent
from kcoord.log.state_file import TEMPORARY_SUFFIX


def encode_plan(plan: StatePlan) -> dict[str, Any]:
    return {
        "log": plan.log_name,
        "start": plan.start_offset,
        "from": plan.from_offset,
        "end": plan.end_offset,
        "extents": [[extent.path, extent.start, extent.end] for extent in plan.extents],
    }


def decode_plan(data: dict[str, Any]) -> StatePlan:
    extents = [Extent(path, start, end) for path, start, end in data["extents"]]
    return StatePlan(data["log"], data["start"], data["from"], data["end"], extents)


def main() -> None:
    # It would look through millions of keys again and again, and find nothing.
    gc.disable()
    parent = Parent()
    storage = LogFiles(parent.work["root"], (TEMPORARY_SUFFIX,), parent.meter)
    for plan in parent.work["plans"]:
        try:
            parent.answer({"records": write_state(storage, decode_plan(plan))})
        except Exception as error:
            parent.answer({"error": f"{type(error).__name__}: {error}"})
            # What was surveyed so far refers to itself in circles.
            gc.collect()
    parent.end()


if __name__ == "__main__":
    main()
