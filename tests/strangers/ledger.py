"""What the polite clients were promised and what they saw, and every broken promise.

Times are those of `time.monotonic`, which all processes of a machine share. Nothing here asks a server: the search
passes what it and its children see.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.strangers.newcomers import DEADLINE_S, Newcomer

KILL: Final = "kill"
PAUSE: Final = "pause"
# For so long after a kill a client may be told of errors, and a member may be replaced by a new one: a busy machine may
# take longer than a session to start the server.
KILL_EXCUSES_S: Final = 30.0
# librdkafka may send no heartbeat for a minute after a kill (tests/crash/kill_loop.py).
LIBRDKAFKA: Final = "confluent"
LIBRDKAFKA_EXCUSES_S: Final = 75.0
# How libraries name that they gave up waiting.
TIMED_OUT: Final = ("_TIMED_OUT", "RequestTimedOut")
KIND_BUG: Final = "bug"
# Lines of Python and of the event loop begin with none of the server's own braces.
LINE_CHARS_MAX: Final = 500


class Span:
    """When strangers did something, or the search killed or paused the server."""

    def __init__(self, kind: str, began: float, ended: float = float("inf")) -> None:
        self.kind = kind
        self.began = began
        # Infinite while it lasts.
        self.ended = ended

    def overlaps(self, began: float, ended: float) -> bool:
        return self.began <= ended and began <= self.ended


class Ledger:
    """Methods may be called on any thread."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.interruptions: list[Span] = []
        # By the number of the action.
        self.action_spans: dict[int, Span] = {}
        self.newcomers: list[Newcomer] = []
        # Of the members of polite groups, in words.
        self.changes: list[str] = []
        self.counts: Counter[str] = Counter()
        self.actions: Counter[str] = Counter()
        # (group, partition) -> offset: the last that a member asked to commit, and the last that was acknowledged.
        self._asked: dict[tuple[str, int], int] = {}
        self._acknowledged: dict[tuple[str, int], int] = {}
        # The largest that anybody found. What members asked may arrive here later than what a reader found.
        self._found: dict[tuple[str, int], int] = {}
        self._members: dict[str, frozenset[str]] = {}
        # From here on the polite groups do not change.
        self.is_settled = False
        # The strangers are ready to begin.
        self.is_prepared = False
        self._lock = threading.Lock()

    def violate(self, text: str) -> None:
        with self._lock:
            self.violations.append(text)

    # --- the search itself -------------------------------------------------------------------------------------

    @contextmanager
    def interruption(self, kind: str) -> Iterator[None]:
        """Around what the search does to the server. Clients may report what they see before it is over."""
        one = Span(kind, time.monotonic())
        self.interruptions.append(one)
        self.actions[kind] += 1
        try:
            yield
        finally:
            one.ended = time.monotonic()

    def is_excused(self, began: float, ended: float, after_s: float = KILL_EXCUSES_S) -> bool:
        """Whether the search killed the server between `after_s` before `began` and `ended`."""
        return any(one.kind == KILL and one.overlaps(began - after_s, ended) for one in self.interruptions)

    def action_began(self, name: str, number: int) -> None:
        self.actions[name] += 1
        self.action_spans[number] = Span(name, time.monotonic())

    def action_ended(self, name: str, number: int, made: int) -> None:
        self.counts[f"made by {name}"] += made
        self.action_spans[number].ended = time.monotonic()

    def during(self, began: float, ended: float) -> list[str]:
        """What went on between these times."""
        spans = [*self.interruptions, *self.action_spans.values()]
        return sorted({one.kind for one in spans if one.overlaps(began, ended)})

    # --- groups ------------------------------------------------------------------------------------------------

    def asked(self, group: str, partition: int, offset: int) -> None:
        with self._lock:
            self._asked[group, partition] = max(offset, self._asked.get((group, partition), -1))

    def acknowledged(self, group: str, partition: int, offset: int) -> None:
        with self._lock:
            self.counts["commits"] += 1
            self._acknowledged[group, partition] = max(offset, self._acknowledged.get((group, partition), -1))

    def promised(self, group: str) -> dict[int, int]:
        """What was acknowledged by now, by partition. To be taken before a reader asks."""
        with self._lock:
            return {partition: offset for (name, partition), offset in self._acknowledged.items() if name == group}

    def stored(self, group: str, partition: int, promised: int, found: int) -> None:
        """A reader found this offset, after `promised` was acknowledged."""
        with self._lock:
            self._found[group, partition] = max(found, self._found.get((group, partition), -1))
        if found < promised:
            self.violate(f"{group}-{partition}: offset {promised} was committed, and {found} is stored")

    def check_invented(self) -> None:
        """No offset was found that no member committed. To be called when nothing of the members is under way."""
        for (group, partition), found in self._found.items():
            asked = self._asked.get((group, partition), -1)
            if found > asked:
                self.violate(f"{group}-{partition}: offset {found} was stored, and nobody committed more than {asked}")

    def members(self, group: str, found: frozenset[str], at: float) -> None:
        """Who is in a polite group now. Its members never leave by themselves."""
        with self._lock:
            known = self._members.get(group)
            self._members[group] = found
        if not self.is_settled or known is None or known == found:
            return
        gone = sorted(known - found)
        self.changes.append(f"{group}: {gone} left, {sorted(found - known)} came")
        if gone and not self.is_excused(at, at, excuses_s(group)):
            self.violate(f"{group}: members {gone} lost their membership, and {sorted(found)} are there")

    def failed(self, who: str, text: str, began: float, ended: float) -> None:
        """A polite client got an error that its library did not hide.

        A library may give up early because the machine is busy: librdkafka closes a connection, with all that waits
        there, when a heartbeat is not answered within its interval.
        """
        self.counts["errors of polite clients"] += 1
        is_impatient = ended - began < DEADLINE_S and any(word in text for word in TIMED_OUT)
        if self.is_settled and not is_impatient and not self.is_excused(began, ended, excuses_s(who)):
            self.violate(f"{who} failed after {ended - began:.1f} s: {text}")

    # --- newcomers ---------------------------------------------------------------------------------------------

    def newcomer(self, one: Newcomer) -> None:
        with self._lock:
            self.newcomers.append(one)
        if one.error and not self.is_excused(one.began, one.began + one.seconds, 1.0):
            self.violate(f"newcomer {one.number} after {one.seconds:.1f} s at {one.step}: {one.error}")

    # --- the server's log --------------------------------------------------------------------------------------

    def line(self, text: str, fields: dict[str, object] | None) -> None:
        """One line of the server's log; without fields it is no JSON."""
        if fields is None:
            if text.strip():
                self.violate(f"the server wrote what is no event: {text.strip()[:LINE_CHARS_MAX]}")
            return
        self.counts[f"log: {fields.get('event')}"] += 1
        if fields.get("kind") == KIND_BUG or fields.get("event") == "internal_error":
            self.violate(f"the server logged a bug: {text.strip()[: 4 * LINE_CHARS_MAX]}")
        group = str(fields.get("group", ""))
        if self.is_settled and fields.get("event") == "group_rebalanced" and group.startswith("polite-"):
            self.counts["rebalances of polite groups"] += 1


def excuses_s(group: str) -> float:
    return LIBRDKAFKA_EXCUSES_S if LIBRDKAFKA in group else KILL_EXCUSES_S


def percentiles(values: list[float]) -> tuple[float, float, float]:
    """The median, the 99th percentile and the maximum; zeros without values."""
    if not values:
        return 0.0, 0.0, 0.0
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)], ordered[-1]
