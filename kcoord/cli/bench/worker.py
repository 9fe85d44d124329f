"""A process of the load generator. It reads commands as lines of JSON and answers each with a line.

    {"do": "open", "load": NAME, "kind": "lanes" | "transactions", "lanes": [...]}
    {"do": "round", "load": NAME, "warm_up_s": 1, "seconds": 2}
    {"do": "close", "load": NAME}

It ends when its input ends. The parent reads the figures of a round from the answer (`Figures`).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any, Final

from kcoord.cli.bench.lanes import LaneLoad
from kcoord.cli.bench.load import Load
from kcoord.cli.bench.transactions import TransactionLoad

KINDS: Final[dict[str, Callable[[list[dict[str, Any]]], Load]]] = {"lanes": LaneLoad, "transactions": TransactionLoad}


class Worker:
    def __init__(self) -> None:
        self.loads: dict[str, Load] = {}

    async def handle(self, command: dict[str, Any]) -> dict[str, Any]:
        name: str = command["load"]
        if command["do"] == "open":
            load = KINDS[command["kind"]](command["lanes"])
            self.loads[name] = load
            await load.open()
            return {}
        if command["do"] == "round":
            return await self.loads[name].round(command["warm_up_s"], command["seconds"])
        await self.loads.pop(name).close()
        return {}


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def main() -> None:
    # Ours alone: what anything else prints goes to standard error.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    worker = Worker()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        for line in sys.stdin:
            try:
                answer = runner.run(worker.handle(json.loads(line)))
            except Exception as error:
                answer = {"problem": str(error) or type(error).__name__}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
