"""The strangers: a process that misbehaves from a few loopback addresses, one to four actions at a time.

    python -m tests.strangers.rogues PORT SEED [ACTION]...

Without names of actions it does all of them, in an order that the seed decides. On standard output: `prepared` once its
topics are there, `began` and `ended` with the name of an action and its number, and for `ended` what came of it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final

from tests.strangers.child import report, until_end
from tests.strangers.rogue import Rogue, burst, half_frames, huge_claims, noise
from tests.strangers.rogue_requests import bombs, damaged, flood, lookups, prepare, storm, topics, transactions

AT_ONCE: Final = 4
# An action that takes longer is cut off.
ACTION_S: Final = 40.0
BUSY_S: Final = (0.5, 4.0)
PREPARE_TIMES: Final = 5

Action = Callable[[Rogue], Awaitable[int]]


def _spin(seconds: float) -> None:
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        sum(range(10_000))


async def busy_machine(rogue: Rogue) -> int:
    """Processes that use all processors for a while."""
    context = multiprocessing.get_context("spawn")
    seconds = rogue.rng.uniform(*BUSY_S)
    processes = [context.Process(target=_spin, args=(seconds,), daemon=True) for _ in range(rogue.rng.randint(1, 4))]
    for process in processes:
        process.start()
    await asyncio.sleep(seconds)
    for process in processes:
        await asyncio.to_thread(process.join)
    return len(processes)


ACTIONS: Final[dict[str, Action]] = {
    "bombs": bombs,
    "burst": burst,
    "busy machine": busy_machine,
    "damaged": damaged,
    "flood": flood,
    "half frames": half_frames,
    "huge claims": huge_claims,
    "lookups": lookups,
    "noise": noise,
    "storm": storm,
    "topics": topics,
    "transactions": transactions,
}


async def prepare_again(port: int) -> None:
    """The server may be killed meanwhile."""
    for _ in range(PREPARE_TIMES - 1):
        try:
            await prepare(port)
            return
        except OSError:
            await asyncio.sleep(1)
    await prepare(port)


async def act(name: str, number: int, rogue: Rogue) -> None:
    report("began", name, number)
    made = 0
    try:
        async with asyncio.timeout(ACTION_S):
            made = await ACTIONS[name](rogue)
    except TimeoutError:
        report("cut off", name, number)
    report("ended", name, number, made)


async def run(port: int, seed: int, names: list[str]) -> None:
    rng = random.Random(seed)
    over = until_end()
    await prepare_again(port)
    report("prepared")
    running: set[asyncio.Future[None]] = set()
    left: list[str] = []
    number = 0
    while not over.done():
        wanted = rng.randint(1, AT_ONCE)
        while len(running) < wanted:
            if not left:
                # Each once before any comes again.
                left = rng.sample(names, len(names))
            name = left.pop()
            running.add(asyncio.ensure_future(act(name, number, Rogue(port, random.Random(f"{seed} {number}")))))
            number += 1
        done, running = await asyncio.wait({*running, over}, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
        running.discard(over)
        await asyncio.wait([over], timeout=rng.uniform(0, 0.5))
    if running:
        await asyncio.wait(running)


def main() -> None:
    port, seed, *names = sys.argv[1:]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if soft != hard else soft, hard))
    asyncio.run(run(int(port), int(seed), names or list(ACTIONS)))


if __name__ == "__main__":
    main()
