"""Steps as data: what a random sequence is made of, and what a kind of sequence has to offer.

A step names what it means and never what a server said: "the epoch before the last", not "epoch 4". So any part of a
sequence is a sequence, which is what shrinking needs, and both servers are asked the same while they answer the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.differential.talk import Talk


@dataclass(frozen=True)
class Step:
    """`action` is a method of the kind's world, `args` are its arguments."""

    action: str
    args: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.action}({', '.join(f'{name}={value!r}' for name, value in self.args.items())})"


class World(Protocol):
    """What one server has told so far; its methods are the actions of steps."""

    def prepare(self) -> None:
        """What all sequences of the kind begin with."""

    def finish(self) -> None:
        """Looks at everything once more, and removes what the server would keep."""


@dataclass(frozen=True)
class Kind:
    """`sequence` makes the steps from a seed alone; `world` plays them."""

    name: str
    sequence: Callable[[random.Random], list[Step]]
    world: Callable[[Talk], World]


def play(kind: Kind, steps: Sequence[Step], talk: Talk) -> list[dict[str, Any]]:
    """Plays the steps against one server; what was recorded, without what differs from run to run."""
    world = kind.world(talk)
    try:
        with talk.at(-1, "prepare"):
            world.prepare()
        for number, step in enumerate(steps):
            with talk.at(number, str(step)):
                getattr(world, step.action)(**step.args)
        with talk.at(len(steps), "finish"):
            world.finish()
    finally:
        talk.close()
    return talk.steps()


def weighted(rng: random.Random, choices: dict[Any, int]) -> Any:
    """One of the keys, as often as its weight says."""
    return rng.choices(list(choices), list(choices.values()))[0]


def steps_after(
    rng: random.Random, first: list[Step], least: int, most: int, one_step: Callable[[random.Random], Step]
) -> list[Step]:
    """These first steps, and random ones after them: `least` to `most` in all."""
    length = rng.randint(least, most)
    steps = list(first)
    while len(steps) < length:
        steps.append(one_step(rng))
    return steps
