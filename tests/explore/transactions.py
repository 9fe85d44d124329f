"""`make explore-transactions`: transactional producers under delays, lost answers, crashes and each other.

The engine is the real one, with a disk in memory that loses what was not synced. Producers of both versions of the
protocol write to two partitions and commit offsets of a group. Random walks take the steps of transaction_world.py.
After each end of a transaction, and after each walk is left alone and started again, everything must agree with what
the clients were told: no transaction is torn, mixed with another one, committed although nobody asked for it, or lost.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from typing import Final

from tests.explore.transaction_client import TIMEOUT_MS
from tests.explore.transaction_world import PowerCut, Violation, World

STEPS_MAX: Final = 250
STEPS_SHOWN: Final = 80
RARE: Final = ("crash", "fuse", "die", "rival", "jump")
RARE_SHARE: Final = 0.12
WALKS: Final = 20_000
CHUNK: Final = 50


class Tally:
    """What was covered."""

    def __init__(self) -> None:
        self.walks = 0
        self.steps = 0
        self.txns = 0
        self.crashes = 0
        self.violation = ""


def one_step(world: World, budget: dict[str, int]) -> None:
    rng = world.rng
    waiting = [remote for remote in world.remotes if remote.sent is None]
    choices: list[str] = ["turn"] * 4
    choices += ["send"] * (6 if waiting else 0) + ["sync"] * (6 if world.ticket is not None else 0)
    choices += ["late"] * (budget["hurry"] if world.late else 0) + ["job"] * (4 if world.jobs else 0) + ["look"]
    choices += [name for name in RARE if budget[name] > 0 and rng.random() < RARE_SHARE]
    step = rng.choice(choices)
    if step == "send":
        world.send(rng.choice(waiting))
        return
    world.steps.append(step)
    if step == "turn":
        was_idle = world.ticket is None
        world.end_turn()
        if was_idle and world.ticket is not None and budget["crash"] and rng.random() < RARE_SHARE:
            # Everything of a commit is written and nothing is synced.
            world.steps.append("crash")
            budget["crash"] -= 1
            world.crash(world.storage.snapshot())
    elif step == "sync":
        world.sync()
    elif step == "job":
        world.run_job()
    elif step == "look":
        world.look()
    elif step == "late":
        session, frame, label = world.late.pop(rng.randrange(len(world.late)))
        world.steps.append(f"  {label}")
        world.deliver_late(session, frame)
    else:
        budget[step] -= 1
        rare_step(world, step)


def rare_step(world: World, step: str) -> None:
    rng = world.rng
    if step == "jump":
        # Transactions that are open run out.
        world.jumps += 1
        world.mono_ms += TIMEOUT_MS + 10
    elif step == "die" and world.remotes:
        remote = rng.choice(world.remotes)
        world.remove(remote)
        producer = remote.producer
        world.start_producer(producer.transactional_id, producer.version, 2)
    elif step == "rival" and world.remotes:
        producer = rng.choice(world.remotes).producer
        world.start_producer(producer.transactional_id, rng.choice((1, 2)), 1)
    elif step == "crash":
        world.crash(world.storage.snapshot())
    elif step == "fuse":
        arm(world, rng.randint(1, 12))


def arm(world: World, operations: int) -> None:
    """Lose power at one of the next operations of the storage."""
    left = operations

    def count(kind: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            world.storage.on_operation = None
            raise PowerCut

    world.storage.on_operation = count


def walk(seed: int, version: int = 0) -> tuple[World, int]:
    """One random walk. Raises Violation with the steps that led to it."""
    rng = random.Random(seed)
    world = World(rng, version, rng.randint(1, 2), rng.randint(2, 5))
    budget = {"crash": rng.randint(0, 4), "fuse": rng.randint(0, 1), "die": 1, "rival": rng.randint(0, 1)}
    budget["jump"] = rng.randint(0, 1)
    # How soon late requests arrive.
    budget["hurry"] = rng.choice((1, 4))
    taken = 0
    try:
        for _ in range(rng.randint(20, STEPS_MAX)):
            taken += 1
            survive(world, lambda: one_step(world, budget))
        world.storage.on_operation = None
        world.steps.append("left alone")
        world.settle()
    except (Violation, AssertionError) as error:
        lines = "\n".join(world.steps[-STEPS_SHOWN:])
        raise Violation(f"{error}\nseed {seed}, version {version}, after\n{lines}") from error
    return world, taken


def survive(world: World, act: object) -> None:
    """Take a step; if the power goes, start again, even if it goes again during the start."""
    try:
        assert callable(act)
        act()
    except PowerCut:
        world.steps.append("  crash in the middle")
        world.crash(world.storage.snapshot())


def run(seed: int, walks: int, seconds: float) -> Tally:
    """Walks one after the other, up to the first violation."""
    tally = Tally()
    until = time.monotonic() + seconds
    for number in range(walks):
        if seconds and time.monotonic() > until:
            break
        try:
            world, taken = walk(seed * 1_000_003 + number, number % 3)
        except Violation as violation:
            tally.violation = str(violation)
            break
        tally.walks += 1
        tally.steps += taken
        tally.txns += len(world.txns)
        tally.crashes += world.crashes
    return tally


def run_chunk(chunk: tuple[int, int, float]) -> Tally:
    return run(*chunk)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="explore-transactions", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--walks", type=int, default=WALKS)
    parser.add_argument("--seconds", type=float, default=0.0, help="a sample for so long, instead of all walks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args(argv)
    began = time.monotonic()
    if args.seconds:
        chunks = [(args.seed * args.jobs + number, sys.maxsize, args.seconds) for number in range(args.jobs)]
    else:
        chunks = [(args.seed * args.walks + number, CHUNK, 0.0) for number in range(args.walks // CHUNK)]
    total = Tally()
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for tally in pool.imap_unordered(run_chunk, chunks):
            total.walks += tally.walks
            total.steps += tally.steps
            total.txns += tally.txns
            total.crashes += tally.crashes
            if tally.violation:
                print(f"violation: {tally.violation}")
                return 1
    print(
        f"{total.walks:,} walks, {total.steps:,} steps, {total.txns:,} transactions, {total.crashes:,} crashes, "
        f"0 violations, {time.monotonic() - began:.0f} s (seed {args.seed})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
