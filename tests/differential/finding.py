"""Plays a sequence against both servers, finds the first difference, and shrinks the sequence that led to it."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.differential import known
from tests.differential.sequence import Kind, Step, play
from tests.differential.talk import Talk
from tests.harness.compare import Difference, differences
from tests.harness.schema_json import ZERO_UUID

Recorded = list[dict[str, Any]]
# A difference counts if it shows again when everybody has more time; others are races, and only counted.
PATIENCE = (1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Played:
    """What both servers answered to the same steps, and the number of the step that each request belongs to."""

    expected: Recorded
    actual: Recorded
    numbers: list[int]


@dataclass(frozen=True)
class Finding:
    """The first difference that nobody has explained yet."""

    steps: list[Step]
    played: Played
    difference: Difference

    @property
    def signature(self) -> tuple[str, str, str, str]:
        """The same for a difference in a sequence and in what is left of it after shrinking."""
        d = self.difference
        return d.api, re.sub(r"\[\d+\]", "[]", d.path), masked(d.expected), masked(d.actual)


def masked(value: Any) -> str:
    return re.sub(r"\d+", "N", str(value)) if isinstance(value, str) else str(value)


@dataclass
class Tally:
    """What was compared."""

    sequences: int = 0
    answers: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    races: Counter[str] = field(default_factory=Counter)


class Pair:
    """A broker and kcoord, at 127.0.0.1. Every sequence has names of its own."""

    def __init__(self, broker: int, kcoord: int) -> None:
        self._ports = (broker, kcoord)
        self._runs = itertools.count()
        self._since = int(time.time())

    def play(self, kind: Kind, steps: Sequence[Step], patience: float = 1.0) -> Played:
        prefix = f"d{self._since}-{next(self._runs):05}"
        talks = [Talk("127.0.0.1", port, prefix, patience) for port in self._ports]
        results: list[Recorded] = [[], []]
        failures: list[BaseException] = []

        def one(index: int) -> None:
            try:
                results[index] = play(kind, steps, talks[index])
            except BaseException as e:
                failures.append(e)

        threads = [threading.Thread(target=one, args=(index,)) for index in range(len(talks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return Played(results[0], results[1], talks[0].numbers())


def finding(kind: Kind, steps: list[Step], played: Played, tally: Tally | None = None) -> Finding | None:
    """The first difference that is neither free nor known."""
    for d in differences(kind.name, played.expected, played.actual):
        if known.is_free(d):
            continue
        explained = known.known(kind.name, d)
        if explained is None:
            return Finding(steps, played, d)
        if tally is not None:
            tally.known[f"{explained.reason} ({explained.where})"] += 1
        if explained.ends:
            return None
    return None


def confirmed(pair: Pair, kind: Kind, found: Finding) -> Finding | None:
    """The finding again, from the slowest of several runs; None if it does not show in each of them."""
    again: Finding | None = found
    for patience in PATIENCE[1:]:
        again = finding(kind, found.steps, pair.play(kind, found.steps, patience))
        if again is None or again.signature != found.signature:
            return None
    return again


def shrunk(steps: list[Step], differs: Callable[[list[Step]], bool], deadline: float) -> list[Step]:
    """Drops steps while the rest still differs: large parts first, then single ones."""
    size = max(len(steps) // 2, 1)
    while time.monotonic() < deadline:
        start, dropped = 0, False
        while start < len(steps) and time.monotonic() < deadline:
            rest = steps[:start] + steps[start + size :]
            if rest and differs(rest):
                steps, dropped = rest, True
            else:
                start += size
        if size == 1 and not dropped:
            break
        size = max(size // 2, 1)
    return steps


def shrink(pair: Pair, kind: Kind, found: Finding, seconds: float) -> Finding:
    """The same difference after as few steps as possible."""

    def differs(steps: list[Step]) -> bool:
        other = finding(kind, steps, pair.play(kind, steps, PATIENCE[1]))
        return other is not None and other.signature == found.signature

    upto = found.played.numbers[found.difference.index] + 1
    steps = found.steps[:upto] if 0 < upto <= len(found.steps) and differs(found.steps[:upto]) else found.steps
    steps = shrunk(steps, differs, time.monotonic() + seconds)
    for _ in PATIENCE:
        last = finding(kind, steps, pair.play(kind, steps, PATIENCE[1]))
        if last is not None and last.signature == found.signature:
            return last
    return found


# ---- in words


def short(value: Any) -> Any:
    """A JSON without what has its usual value."""
    if isinstance(value, dict):
        usual: tuple[Any, ...] = (None, "", [], {}, 0, False, ZERO_UUID)
        return {k: short(v) for k, v in value.items() if k == "errorCode" or v not in usual}
    if isinstance(value, list):
        return [short(one) for one in value]
    return value


def told(found: Finding) -> str:
    """The sequence and its answers, up to the difference."""
    lines = []
    for index, number in enumerate(found.played.numbers[: found.difference.index + 1]):
        left, right = found.played.expected[index], found.played.actual[index]
        lines.append(f"  {number:>3} {left['step']}")
        lines.append(f"      {left.get('api', '?')} v{left['version']} {short(left.get('request'))}")
        answers = [short(side.get("response", "closed" if "closed" in side else "silent")) for side in (left, right)]
        if index == found.difference.index or answers[0] != answers[1]:
            lines += [f"      broker: {answers[0]}", f"      kcoord: {answers[1]}"]
        else:
            lines.append(f"      both:   {answers[0]}")
    d = found.difference
    lines.append(f"  differs: {d.api} v{d.version} {d.path}: the broker says {d.expected!r}, kcoord says {d.actual!r}")
    lines.append("  steps: " + "; ".join(str(step) for step in found.steps))
    return "\n".join(lines)
