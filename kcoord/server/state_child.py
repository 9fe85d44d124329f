"""The process that writes state checkpoints: `python -m kcoord.server.state_child`, with what to do on its stdin.

It gets one line of JSON and gives one line for each checkpoint. It ends when its parent does: the other end of its
stdin is then closed.
"""

from __future__ import annotations

import json
import os
from typing import Any

from kcoord.engine.state_checkpoint import StatePlan, write_state
from kcoord.log.partition_log import Extent
from kcoord.log.state_file import TEMPORARY_SUFFIX
from kcoord.server.child import LogFiles, begin_work


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
    work = begin_work()
    storage = LogFiles(work["root"], TEMPORARY_SUFFIX)
    for plan in work["plans"]:
        try:
            answer: dict[str, Any] = {"records": write_state(storage, decode_plan(plan))}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    # The thread still reads.
    os._exit(0)


if __name__ == "__main__":
    main()
