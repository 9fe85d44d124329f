"""`make explore`: every order of messages, losses, repeats and timeouts of a small consumer group, with one crash.

The core is the real one. From a group of three members and two partitions that nobody has joined, each step that is
possible is taken in each state that is reached; states that differ only in how many epochs went by are one. After
each step the promises of KIP-848 are checked: a partition has one owner, nobody is ahead of the group, the indexes
agree with the members. From a share of the states everything is then left alone, and must come to rest with every
partition owned. Faults are limited by budgets, which make the number of states finite; the report says how many were
covered and whether that is all of them. A sample (`--seconds N --seed S`) walks at random with larger budgets.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from kcoord.core.groups.members import UNREVOKED_PARTITIONS
from tests.explore.model import (
    ANSWERED,
    ASKED,
    IDLE,
    TIMER_CONSUMER_REBALANCE,
    TIMER_SESSION,
    Snapshot,
    World,
)

# Every how many states one is left alone to see that it comes to rest.
SETTLE_EVERY: Final = 8
WALK_STEPS: Final = 120

# Budgets: losses, repeats (requests that are given up and still arrive), leaves, sessions that run out, rebalances
# that run out, crashes.
Budget = tuple[int, int, int, int, int, int]
LOSS, DELAY, LEAVE, SESSION, REBALANCE, CRASH = range(6)
Step = tuple[str, int]


class Violation(Exception):
    """A promise was broken; the steps that lead there are part of the text."""


def spend(budget: Budget, what: int) -> Budget:
    spent = list(budget)
    spent[what] -= 1
    return tuple(spent)  # type: ignore[return-value]


def steps(world: World, budget: Budget) -> Iterator[Step]:
    """What can happen next."""
    group = world.group
    for index, client in enumerate(world.clients):
        if client.phase == IDLE and not client.is_gone:
            yield "beat", index
            if budget[LEAVE] and client.epoch > 0:
                yield "leave", index
        if client.phase == ASKED:
            if not any(index == late for late, _ in world.stale):
                yield "deliver", index
                if budget[DELAY]:
                    yield "delay", index
            if budget[LOSS]:
                yield "lose-request", index
        if client.phase == ANSWERED:
            yield "answer", index
            if budget[LOSS]:
                yield "lose-answer", index
        if client.may_reconcile(world, index):
            yield "reconcile", index
        if group is not None:
            member = group.members.get(client.member_id)
            if member is not None and (budget[SESSION] or client.is_gone):
                yield "session", index
            if member is not None and member.state == UNREVOKED_PARTITIONS and budget[REBALANCE]:
                yield "rebalance", index
    for index in range(len(world.stale)):
        yield "stale", index
    if budget[CRASH] and group is not None:
        yield "crash", 0


def take(world: World, step: Step, budget: Budget) -> Budget:
    """Do one step; what is left of the budget."""
    name, index = step
    if name == "crash":
        world.crash()
        return spend(budget, CRASH)
    if name == "stale":
        member, body = world.stale[index]
        world.stale = world.stale[:index] + world.stale[index + 1 :]
        world.deliver(member, body)
        return budget
    client = world.clients[index]
    if name == "beat":
        client.send(client.epoch)
    elif name == "leave":
        client.owned = client.target = ()
        client.send(-1)
        client.is_gone = True
        return spend(budget, LEAVE)
    elif name == "delay":
        assert client.request is not None
        world.stale = (*world.stale, (index, client.request))
        client.miss()
        return spend(budget, DELAY)
    elif name == "deliver":
        assert client.request is not None
        client.answer = world.deliver(index, client.request)
        client.phase = ANSWERED
    elif name in ("lose-request", "lose-answer"):
        client.miss()
        return spend(budget, LOSS)
    elif name == "answer":
        client.receive()
    elif name == "reconcile":
        client.owned = client.target
    elif name == "session":
        is_gone = client.is_gone
        world.expire(index, TIMER_SESSION)
        return budget if is_gone else spend(budget, SESSION)
    elif name == "rebalance":
        world.expire(index, TIMER_CONSUMER_REBALANCE)
        return spend(budget, REBALANCE)
    return budget


class Node:
    """A state that was reached, and how."""

    def __init__(self, snapshot: Snapshot, budget: Budget, parent: Node | None, step: Step | None) -> None:
        self.snapshot: Snapshot | None = snapshot
        self.budget = budget
        self.parent = parent
        self.step = step

    def path(self) -> tuple[Step, ...]:
        steps: list[Step] = []
        node: Node | None = self
        while node is not None and node.step is not None:
            steps.append(node.step)
            node = node.parent
        return tuple(reversed(steps))


def explore_all(members: int, partitions: int, budget: Budget, states_max: int) -> tuple[int, int, int, bool]:
    """Depth first over all states: (states, steps, states left alone, whether that is all of them)."""
    world = World(members, partitions)
    # Hashes of 64 bits: among millions of states, two that collide are not to be expected.
    seen = {hash((world.key(), budget))}
    stack = [Node(world.snapshot(), budget, None, None)]
    taken = settled = 0
    shown = time.monotonic()
    while stack:
        if len(seen) >= states_max:
            return len(seen), taken, settled, False
        node = stack.pop()
        snapshot = node.snapshot
        assert snapshot is not None
        node.snapshot = None
        world.restore(snapshot)
        for step in list(steps(world, node.budget)):
            world.restore(snapshot)
            left = guarded(world, step, node.budget, node.path)
            taken += 1
            key = hash((world.key(), left))
            if key in seen:
                continue
            seen.add(key)
            after = Node(world.snapshot(), left, node, step)
            stack.append(after)
            if len(seen) % SETTLE_EVERY == 0:
                settled += 1
                settle(world, after.path)
        if sys.stderr.isatty() and time.monotonic() - shown > 1:
            shown = time.monotonic()
            print(f"\r{len(seen):,} states, {len(stack):,} to go ", end="", file=sys.stderr)
    return len(seen), taken, settled, True


def walk(seed: int, members: int, partitions: int, budget: Budget, seconds: float) -> tuple[int, int, int]:
    """Random walks: (different states, steps, walks that were left alone at their end)."""
    rng = random.Random(seed)
    seen: dict[tuple[object, ...], bool] = {}
    taken = walks = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        world = World(members, partitions, rng.choice(("uniform", "range")))
        left = budget
        path: list[Step] = []
        for _ in range(rng.randrange(10, WALK_STEPS)):
            possible = list(steps(world, left))
            if not possible:
                break
            step = rng.choice(possible)
            left = guarded(world, step, left, partial(tuple, path))
            path.append(step)
            taken += 1
            seen[world.key()] = True
        settle(world, partial(tuple, path))
        walks += 1
    return len(seen), taken, walks


def guarded(world: World, step: Step, budget: Budget, path: Callable[[], tuple[Step, ...]]) -> Budget:
    try:
        left = take(world, step, budget)
        problem = world.check()
    except AssertionError as error:
        raise Violation(story((*path(), step), f"assertion: {error}")) from error
    if problem is not None:
        raise Violation(story((*path(), step), problem))
    return left


def settle(world: World, path: Callable[[], tuple[Step, ...]]) -> None:
    problem = world.settle()
    if problem is not None:
        raise Violation(story(path(), f"left alone, it does not come to rest: {problem}"))


def story(path: tuple[Step, ...], problem: str) -> str:
    lines = [
        f"{name} {'abcdefgh'[index]}" if name not in ("crash", "stale") else f"{name} {index}" for name, index in path
    ]
    return f"{problem}\nafter " + ", ".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="explore", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--losses", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=1, help="requests that are given up and still arrive")
    parser.add_argument("--leaves", type=int, default=0)
    parser.add_argument("--sessions", type=int, default=0)
    parser.add_argument("--rebalances", type=int, default=0)
    parser.add_argument("--crashes", type=int, default=1)
    parser.add_argument("--states", type=int, default=2_000_000, help="stop after so many")
    parser.add_argument("--seconds", type=float, help="a random sample for so long, instead of all states")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    started = time.monotonic()
    try:
        if args.seconds is not None:
            budget: Budget = (4, 3, 1, 2, 2, 2)
            states, taken, settled = walk(args.seed, args.members, args.partitions, budget, args.seconds)
            extent = f"random walks, seed {args.seed}"
        else:
            budget = (args.losses, args.repeats, args.leaves, args.sessions, args.rebalances, args.crashes)
            states, taken, settled, is_all = explore_all(args.members, args.partitions, budget, args.states)
            extent = "all of them" if is_all else f"stopped after {args.states:,}"
    except Violation as violation:
        print(f"violation: {violation}")
        return 1
    print(
        f"{args.members} members, {args.partitions} partitions; losses, repeats, leaves, sessions, rebalances, "
        f"crashes up to {budget}\n{states:,} states ({extent}), {taken:,} steps, {settled:,} left alone and "
        f"come to rest, 0 violations, {time.monotonic() - started:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
