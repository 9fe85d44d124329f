"""Searches for the frames that cost a server the most CPU, for each byte and in all.

    python -m tests.fuzz.costliest --seconds 120 --seed 1
    python -m tests.fuzz.costliest --recipe '{"api": 32, ...}'      one frame again

Each execution is a request of any API made from its schema around one array (tests/stall/shapes.py), with values that
the server knows or does not know, or a change of one that was costly before: another size, another value in a field,
more nesting, tagged fields, duplicates. It meets a copy of a server's state, like those of `make stall`, and is
measured in CPU time of the turns that follow. Frames of the search are small. In the end the costliest of each API are
measured at full size, the worst of those several times, and the least of these measurements counts.

The exit code is 1 when one turn takes more than the limit, which is higher than that of `make stall`: nobody looked at
what this finds. Measured times decide what is changed next, so a seed alone does not lead to the same frames again; the
recipe that is printed for each does.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from typing import Any, Final

from kcoord.codegen.schema import Message
from kcoord.log.storage import MemoryStorage
from kcoord.protocol import apis
from kcoord.server.pump import read_clocks
from kcoord.wire.native import is_compiled
from tests.stall.rig import Cost, measure_apart
from tests.stall.shapes import STRING_CHARS_MAX, Shape, ShapeEncoder, array_paths, requests
from tests.stall.worlds import (
    CLASSIC_GROUP,
    CONSUMER_GROUP,
    DATA,
    OFFSETS_GROUP,
    WIDE,
    World,
    chooser,
    group_name,
    topic_name,
)

# CPU of one turn, of native and of interpreted code. This runs beside other tests, and CPU time grows with company.
TURN_MS_MAX: Final = 150.0
INTERPRETED_TURN_MS_MAX: Final = 900.0
# First frames are this large, as a share of the largest frame of their API.
FIRST_SHARE: Final = 0.02
# Of each API so many of the costliest are kept to be changed; so many of all are shown.
KEPT: Final = 4
SHOWN: Final = 10
TIMES: Final = 3
CPU_SECONDS_MAX: Final = 5
SECONDS: Final = 120.0
# The world is smaller than that of `make stall`, so that a copy of it is made quickly.
SCALE: Final = 0.05
# Of the frames that are tried, so many are changes of costly ones.
CHANGED: Final = 0.7
# Bytes that every frame counts for, so that the smallest do not win by their size alone.
BYTES_BESIDE: Final = 200

NAMES: Final = [
    WIDE, DATA, CLASSIC_GROUP, CONSUMER_GROUP, OFFSETS_GROUP, topic_name(0), group_name(0), "", "1", "u", "range",
    "consumer", "retention.ms", "cleanup.policy", "__consumer_offsets", ".*",
]  # fmt: skip
LONG_NAMES: Final = [{"text": "x", "times": 249}, {"text": "x", "times": STRING_CHARS_MAX}]
NUMBERS: Final = [-3, -2, -1, 0, 1, 2, 4, 16, 32, 1_000, 10_000, 2**31 - 1]
COUNTS: Final = [1, 64, 400, 8_000, 70_000]
# Values of a field by element, by the name that stands for them in a recipe.
TOPIC_NAMES: Final = "topic names"
GROUP_NAMES: Final = "group names"
TOPIC_IDS: Final = "topic ids"


def values_of(world: World, value: Any) -> object:
    """What a recipe's value stands for."""
    if isinstance(value, dict):
        if "count" in value:
            return range(value["count"])
        return str(value["text"]) * value["times"] if "text" in value else bytes(value["bytes"])
    if value == TOPIC_NAMES:
        return [topic_name(number) for number in range(1_000)]
    if value == GROUP_NAMES:
        return [group_name(number) for number in range(1_000)]
    if value == TOPIC_IDS:
        return [world.topic_ids[name] for name in sorted(world.topic_ids)]
    return value


class Recipe:
    """How a frame is made."""

    def __init__(self, api_key: int, version: int, path: tuple[str, ...]) -> None:
        self.api_key = api_key
        self.version = version
        self.path = path
        self.flags: dict[str, bool] = {}
        self.tags = 0
        self.chars = 0
        self.share = FIRST_SHARE
        # By field: a value, or what stands for values.
        self.fixed: dict[str, Any] = {}

    @classmethod
    def parse(cls, text: str) -> Recipe:
        found = json.loads(text)
        recipe = cls(found["api"], found["version"], tuple(found["path"]))
        for name in ("flags", "tags", "chars", "share", "fixed"):
            setattr(recipe, name, found[name])
        return recipe

    def text(self) -> str:
        """Everything about it, for `--recipe`."""
        return json.dumps({
            "api": self.api_key, "version": self.version, "path": self.path, "flags": self.flags, "tags": self.tags,
            "chars": self.chars, "share": self.share, "fixed": self.fixed,
        })  # fmt: skip

    def build(self, world: World) -> bytes:
        shape = Shape(self.path, **self.flags, tags=self.tags, chars=self.chars, share=self.share)
        fixed = {name: values_of(world, value) for name, value in self.fixed.items()}
        return ShapeEncoder(requests()[self.api_key], self.version, shape, chooser(world, **fixed)).frame()

    def describe(self) -> str:
        shape = Shape(self.path, **self.flags, tags=self.tags, chars=self.chars)
        words = [f"{apis.APIS[self.api_key].name} v{self.version}", shape.describe()]
        words += [f"{name}={json.dumps(value)}" for name, value in sorted(self.fixed.items())]
        return ", ".join(words)


class Found:
    """A recipe and what its frame cost."""

    def __init__(self, recipe: Recipe, frame_bytes: int, cost: Cost) -> None:
        self.recipe = recipe
        self.bytes = frame_bytes
        self.cost = cost

    @property
    def per_byte(self) -> float:
        """Nanoseconds of CPU for each byte."""
        return self.cost.cpu_ms * 1e6 / (self.bytes + BYTES_BESIDE)


class Inventor:
    """Makes recipes: everything it chooses comes from one random generator, whatever was measured meanwhile."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def new(self) -> Recipe:
        rng = self.rng
        message = requests()[rng.choice(sorted(requests()))]
        version = rng.randint(message.valid.low, message.valid.high)
        assert message.api_key is not None
        recipe = Recipe(message.api_key, version, rng.choice(array_paths(message, version) or [()]))
        for _ in range(rng.randint(0, 4)):
            self._change_one(recipe, message)
        return recipe

    def change(self, old: Recipe) -> Recipe:
        recipe = Recipe.parse(old.text())
        message = requests()[recipe.api_key]
        for _ in range(self.rng.randint(1, 3)):
            self._change_one(recipe, message)
        return recipe

    def _change_one(self, recipe: Recipe, message: Message) -> None:
        rng = self.rng
        kind = rng.randrange(8)
        if kind == 0:
            recipe.path = rng.choice(array_paths(message, recipe.version) or [()])
        elif kind == 1:
            flag = rng.choice(("different", "twice", "deep", "nulls"))
            recipe.flags[flag] = not recipe.flags.get(flag, False)
        elif kind == 2:
            recipe.tags = rng.choice((0, 0, 1, 8, 64))
        elif kind == 3:
            recipe.chars = rng.choice((0, 0, 10, 249, STRING_CHARS_MAX))
        elif kind == 4:
            recipe.share = rng.choice((1e-4, 1e-3, 0.01, FIRST_SHARE, 0.05))
        else:
            self._fix_field(recipe, message)

    def _fix_field(self, recipe: Recipe, message: Message) -> None:
        rng = self.rng
        fields = [field for struct in message.structs for field in struct.fields if not field.is_struct]
        if not fields:
            return
        field = rng.choice(fields)
        if rng.random() < 0.2:
            recipe.fixed.pop(field.name, None)
        elif field.element == "string":
            recipe.fixed[field.name] = rng.choice([*NAMES, *LONG_NAMES, TOPIC_NAMES, GROUP_NAMES])
        elif field.element in ("bytes", "records"):
            recipe.fixed[field.name] = {"bytes": rng.choice((0, 1, 100, 10_000))}
        elif field.element == "uuid":
            recipe.fixed[field.name] = TOPIC_IDS
        elif field.element != "bool":
            bits = {"int8": 7, "int16": 15, "uint16": 15}.get(field.element, 31)
            if bits == 31 and rng.random() < 0.5:
                recipe.fixed[field.name] = {"count": rng.choice(COUNTS)}
            else:
                recipe.fixed[field.name] = max(min(rng.choice(NUMBERS), (1 << bits) - 1), -1)


class Search:
    def __init__(self, seed: int, scale: float = SCALE) -> None:
        self.inventor = Inventor(seed)
        self.world = make_search_world(scale)
        # Nothing of the world is garbage: the collector need not look at it in each copy.
        gc.freeze()
        self.number = 0
        # By API the costliest so far, the first one ahead.
        self.costly: dict[int, list[Found]] = {}
        # Frames that ended badly: a bug, or no end.
        self.failed: list[Found] = []

    def step(self) -> None:
        self.number += 1
        rng = self.inventor.rng
        if self.costly and rng.random() < CHANGED:
            recipe = self.inventor.change(rng.choice(self.costly[rng.choice(sorted(self.costly))]).recipe)
        else:
            recipe = self.inventor.new()
        found = self.measure(recipe)
        if found is None:
            return
        if found.cost.error or found.cost.close_reason.startswith("internal error"):
            self.failed.append(found)
        kept = self.costly.setdefault(recipe.api_key, [])
        kept.append(found)
        kept.sort(key=lambda each: -each.per_byte)
        del kept[KEPT:]

    def measure(self, recipe: Recipe, is_full: bool = False) -> Found | None:
        """None for a number that does not fit into its field."""
        if is_full:
            recipe = Recipe.parse(recipe.text())
            recipe.share = 1.0
        try:
            frame = recipe.build(self.world)
        except OverflowError:
            return None
        return Found(recipe, len(frame), measure_apart(self.world, [frame], None, CPU_SECONDS_MAX))

    def largest(self) -> list[Found]:
        """The costliest at full size, the least of several measurements."""
        once = [self.measure(kept[0].recipe, is_full=True) for kept in self.costly.values()]
        worst = sorted((each for each in once if each is not None), key=lambda each: -each.cost.longest_ms)
        result = []
        for found in worst[:SHOWN]:
            again = [self.measure(found.recipe) for _ in range(TIMES - 1)]
            tries = [found, *(each for each in again if each is not None)]
            result.append(min(tries, key=lambda each: each.cost.longest_ms))
        return sorted(result, key=lambda each: -each.cost.longest_ms)


def make_search_world(scale: float) -> World:
    """All that a server may hold, in one."""
    world = World(MemoryStorage(), read_clocks(), scale=scale)
    for add in (World.add_topics, World.add_groups, World.add_offsets, World.add_classic_members,
                World.add_consumer_members, World.add_data):  # fmt: skip
        add(world)
    world.engine.take_facts()
    world.engine.outbox.strict = False
    return world


def problem_of(found: Found) -> str:
    limit = TURN_MS_MAX if is_compiled() else INTERPRETED_TURN_MS_MAX
    if found.cost.error:
        return found.cost.error.strip().splitlines()[-1]
    if found.cost.close_reason.startswith("internal error"):
        return found.cost.close_reason
    return f"a turn takes more than {limit:.0f} ms" if found.cost.longest_ms > limit else ""


def show(found: Found) -> None:
    cost = found.cost
    print(
        f"{cost.cpu_ms:8.1f} ms {cost.longest_ms:8.1f} ms a turn {found.bytes:>10,} bytes "
        f"{found.per_byte:7.0f} ns a byte  {found.recipe.describe()}  {problem_of(found)}"
    )


def report(found: list[Found]) -> int:
    """Say how to make those again that are beyond the limit; the exit code."""
    bad = [each for each in found if problem_of(each)]
    for each in bad:
        command = f"python -m tests.fuzz.costliest --recipe '{each.recipe.text()}'"
        print(f"{problem_of(each)}; again with: {command}", file=sys.stderr)
    return 1 if bad else 0


def run(executions: int, seconds: float, seed: int) -> int:
    """Search until either bound is reached; the exit code."""
    until = time.monotonic() + seconds
    search = Search(seed)
    while search.number < executions and time.monotonic() < until:
        search.step()
    largest = search.largest()
    print(f"{search.number:,} frames with seed {seed}; the costliest at full size, the least of {TIMES} measurements:")
    for found in largest:
        show(found)
    return report(search.failed + largest)


def run_again(text: str) -> int:
    """One frame, by its recipe."""
    search = Search(0)
    tries = [search.measure(Recipe.parse(text)) for _ in range(TIMES)]
    found = [each for each in tries if each is not None]
    for each in found:
        show(each)
    return report([min(found, key=lambda each: each.cost.longest_ms)])


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--executions", type=int, default=1_000_000_000, help="how many frames are tried")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long frames are tried")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--recipe", default="", help="measure this one alone, as it was printed")
    arguments = parser.parse_args()
    if arguments.recipe:
        return run_again(arguments.recipe)
    return run(arguments.executions, arguments.seconds, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
