"""A process of the load generator. It reads commands as lines of JSON and answers each with a line.

    {"do": "open", "load": NAME, "kind": "lanes" | "transactions" | "group" | "newcomers", "lanes": [...]}
    {"do": "round", "load": NAME, "warm_up_s": 1, "seconds": 2}
    {"do": STEP, "load": NAME, "arguments": [...]}
    {"do": "close", "load": NAME}

`round` is for steady workloads and newcomers; its answer is made by `load.figures`. STEP is a step of `GroupLoad`,
whose members live on between the commands. The process ends when its input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any, Final, TextIO

from kcoord.cli.bench.group_load import GroupLoad
from kcoord.cli.bench.lanes import LaneLoad
from kcoord.cli.bench.load import LINE_BYTES_MAX, Load
from kcoord.cli.bench.newcomers import NewcomerLoad
from kcoord.cli.bench.transactions import TransactionLoad

KINDS: Final[dict[str, Callable[[list[dict[str, Any]]], Load | GroupLoad]]] = {
    "lanes": LaneLoad, "transactions": TransactionLoad, "group": GroupLoad, "newcomers": NewcomerLoad,
}  # fmt: skip


class Worker:
    def __init__(self) -> None:
        self.loads: dict[str, Load | GroupLoad] = {}

    async def handle(self, command: dict[str, Any]) -> dict[str, Any]:
        name: str = command["load"]
        if command["do"] == "open":
            load = KINDS[command["kind"]](command["lanes"])
            self.loads[name] = load
            await load.open()
            return {}
        if command["do"] == "close":
            await self.loads.pop(name).close()
            return {}
        load = self.loads[name]
        if isinstance(load, GroupLoad):
            return await load.do(command["do"], command["arguments"])
        return await load.round(command["warm_up_s"], command["seconds"])

    async def serve(self, answers: TextIO) -> None:
        """Handle the commands of standard input until it ends."""
        reader = asyncio.StreamReader(LINE_BYTES_MAX)
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        while line := await reader.readline():
            try:
                answer = await self.handle(json.loads(line))
            except Exception as error:
                answer = {"problem": str(error) or type(error).__name__}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


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
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(Worker().serve(answers))


if __name__ == "__main__":
    main()
