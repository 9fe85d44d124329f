"""The processes of the load generator, seen from the command: one round of all of them is one set of figures."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass, field
from typing import Any, Final, Self

from kcoord.cli.bench.load import DRAIN_S, LINE_BYTES_MAX, added
from kcoord.cli.bench.steady import Prepared
from kcoord.client.load.histogram import Histogram

ANSWER_S: Final = 60.0
END_S: Final = 2.0


class WorkerFailed(Exception):
    """A process of the load generator could not do what it was told, or ended."""


@dataclass(slots=True)
class Round:
    """The figures of one round: requests without an error, and errors by name. Latencies in milliseconds."""

    per_second: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    answered: int
    errors: dict[str, int]
    megabytes_per_second: float
    # The cores that the load generator used.
    generator_cores: float
    histogram: Histogram = field(default_factory=Histogram)


def merged(parts: list[dict[str, Any]]) -> Round:
    """One round from the figures of its processes."""
    histogram = Histogram()
    for part in parts:
        histogram.add_all(part["latencies"])
    return Round(
        sum(part["answered"] / part["seconds"] for part in parts),
        histogram.percentile(0.5),
        histogram.percentile(0.99),
        histogram.percentile(0.999),
        sum(part["answered"] for part in parts),
        added(part["errors"] for part in parts),
        sum(part["bytes"] / part["seconds"] for part in parts) / 1e6,
        sum(part["cpu_s"] / part["seconds"] for part in parts),
        histogram,
    )


class Workers:
    """Use it with `async with`. Raises WorkerFailed."""

    def __init__(self, processes: int) -> None:
        self.count = processes
        self.processes: list[asyncio.subprocess.Process] = []

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def start(self) -> None:
        try:
            for _ in range(self.count):
                self.processes.append(await self._start())
        except BaseException:
            await self.end()
            raise

    async def _start(self) -> asyncio.subprocess.Process:
        # In a session of its own: Ctrl-C ends the command, which then ends its processes.
        return await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "kcoord.cli.bench.worker", stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, limit=LINE_BYTES_MAX, start_new_session=True, env=_environment(),
        )  # fmt: skip

    async def end(self) -> None:
        for process in self.processes:
            if process.stdin is not None:
                process.stdin.close()
            if process.returncode is None:
                process.terminate()
        for process in self.processes:
            try:
                async with asyncio.timeout(END_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    async def open(self, load: str, prepared: Prepared, limit_s: float = ANSWER_S) -> None:
        """Let each process connect its share of the lanes."""
        count = len(self.processes)
        await self._all(
            [
                {"do": "open", "load": load, "kind": prepared.kind, "lanes": prepared.lanes[number::count]}
                for number in range(count)
            ],
            limit_s,
        )

    async def round(self, load: str, warm_up_s: float, seconds: float) -> Round:
        command = {"do": "round", "load": load, "warm_up_s": warm_up_s, "seconds": seconds}
        limit_s = warm_up_s + seconds + DRAIN_S + ANSWER_S
        return merged(await self._all([command] * len(self.processes), limit_s))

    async def step(self, load: str, step: str, *arguments: Any) -> list[dict[str, Any]]:
        """Let all processes carry out a step of `GroupLoad` that does not wait for the cluster."""
        return await self._all([_step(load, step, arguments)] * len(self.processes), ANSWER_S)

    async def step_of(
        self, number: int, load: str, step: str, *arguments: Any, limit_s: float = ANSWER_S
    ) -> dict[str, Any]:
        """Let one process carry out a step."""
        (answer,) = await self._tell([self.processes[number]], [_step(load, step, arguments)], limit_s)
        return answer

    async def close(self, load: str, limit_s: float = ANSWER_S) -> None:
        await self._all([{"do": "close", "load": load}] * len(self.processes), limit_s)

    async def _all(self, commands: list[dict[str, Any]], limit_s: float) -> list[dict[str, Any]]:
        return await self._tell(self.processes, commands, limit_s)

    async def _tell(
        self, processes: list[asyncio.subprocess.Process], commands: list[dict[str, Any]], limit_s: float
    ) -> list[dict[str, Any]]:
        asked = [self._ask(one, command) for one, command in zip(processes, commands, strict=True)]
        try:
            async with asyncio.timeout(limit_s):
                # All of them, also if one fails: two readers of one process would take each other's lines.
                answers = await asyncio.gather(*asked, return_exceptions=True)
        except TimeoutError:
            self._kill()
            raise WorkerFailed(f"a process of the load generator did not answer within {limit_s:g} s") from None
        except asyncio.CancelledError:
            self._kill()
            raise
        found: list[dict[str, Any]] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            if "problem" in answer:
                raise WorkerFailed(answer["problem"])
            found.append(answer)
        return found

    def _kill(self) -> None:
        """End the processes in the middle of a command. Their next answers would be to that command."""
        for process in self.processes:
            if process.returncode is None:
                process.kill()

    async def _ask(self, process: asyncio.subprocess.Process, command: dict[str, Any]) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(command).encode() + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
        except OSError:
            line = b""
        if not line:
            raise WorkerFailed("a process of the load generator has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _step(load: str, step: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
    return {"do": step, "load": load, "arguments": arguments}


def _environment() -> dict[str, str]:
    """The processes import kcoord from where it was imported here, also if that is a folder of the command line."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
