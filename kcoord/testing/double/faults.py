"""Rules for requests: what happens to those that a selector matches, how often, and what was hit.

The first rule that matches decides. A rule passes over its first `skip` matches, then acts on each match with its
probability until it has acted `times` times. Random decisions come from a seed, so a test sees the same ones again.
"""

from __future__ import annotations

import importlib
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, final

from kcoord.protocol import apis, errors
from kcoord.protocol.errors import ERROR_NAMES
from kcoord.server.exchange import Request
from kcoord.testing.double.selector import Selector, TopicNames

# --- actions

# Not handled: the answer has an error.
FAIL: Final = "fail"
# Handled; the answer has an error all the same.
FAIL_AFTER: Final = "fail after"
# Handled later, and with it everything that its connection sends after it.
DELAY: Final = "delay"
HOLD: Final = "hold"
# Nothing is handled any more, or nothing is answered any more: the connection stays open, and silent.
DROP: Final = "drop"
DROP_ANSWER: Final = "drop answer"
# The connection is closed: not handled; handled and not answered; in the middle of the answer.
CUT_BEFORE: Final = "cut before"
CUT_AFTER: Final = "cut after"
CUT_MIDDLE: Final = "cut middle"
# Answered with a throttle time.
THROTTLE: Final = "throttle"
# Handled; the answer is changed.
ANSWER: Final = "answer"

CUTS: Final = {"before": CUT_BEFORE, "after": CUT_AFTER, "middle": CUT_MIDDLE}
ERROR_CODES: Final = {name: code for code, name in ERROR_NAMES.items()}
DEFAULT_SEED: Final = 1


# What changes an answer: a function of the request and the answer.
Change = Callable[[Any, Any], object]


def field_change(api: str, fields: Mapping[str, object]) -> Change:
    """Sets fields of an answer. A name may be a path such as `topics.partitions.error_code`: it is set in each of them.

    Raises ValueError for a field that the answers of this API do not have.
    """
    module_name = re.sub(r"(?<!^)(?=[A-Z])", "_", api).lower()
    known = getattr(importlib.import_module(f"kcoord.protocol.{module_name}"), f"{api}Response").FIELDS
    for path in fields:
        if path.split(".")[0] not in known:
            raise ValueError(f"answers of {api} have no field {path!r}; they have {', '.join(known)}")

    def change(_: Any, answer: Any) -> None:
        for path, value in fields.items():
            _set(answer, path.split("."), value)

    return change


def _set(place: Any, path: list[str], value: object) -> None:
    if isinstance(place, list):
        for one in place:
            _set(one, path, value)
    elif len(path) > 1:
        _set(getattr(place, path[0]), path[1:], value)
    elif path[0] in place.FIELDS:
        setattr(place, path[0], value)
    else:
        raise AttributeError(f"{type(place).__name__} has no field {path[0]!r}; it has {', '.join(place.FIELDS)}")


def error_code(name: str) -> int:
    """The code of an error with Kafka's name, such as `NOT_COORDINATOR`. Raises ValueError."""
    code = ERROR_CODES.get(name.upper())
    if code is None or code == 0:
        raise ValueError(f"there is no error {name!r}; see the error codes of the Kafka protocol")
    return code


@final
@dataclass(frozen=True, slots=True)
class Action:
    """What to do. `error_code` belongs to FAIL and FAIL_AFTER, `ms` to DELAY and THROTTLE, `change` to ANSWER."""

    kind: str
    error_code: int = 0
    ms: int = 0
    # Called with the request and the answer, which it changes.
    change: Change | None = None

    def __str__(self) -> str:
        if self.error_code:
            return f"{self.kind} {ERROR_NAMES.get(self.error_code, self.error_code)}"
        return f"{self.kind} {self.ms} ms" if self.ms else self.kind


@final
class Rule:
    """One rule and what it hit. `times` None: without end. Used by the server's thread only."""

    def __init__(
        self,
        number: int,
        selector: Selector,
        action: Action,
        times: int | None = None,
        skip: int = 0,
        probability: float = 1.0,
        seed: int = DEFAULT_SEED,
    ) -> None:
        if times is not None and times < 1:
            raise ValueError("times is 1 or more, or None for every request")
        if skip < 0:
            raise ValueError("skip is 0 or more")
        if not 0.0 < probability <= 1.0:
            raise ValueError("probability is above 0 and at most 1")
        self.number = number
        self.selector = selector
        self.action = action
        self.times = times
        self.skip = skip
        self.probability = probability
        self.matched = 0
        self.hits = 0
        # How many answers it has changed, or failed to change with this error.
        self.changed = 0
        self.error: Exception | None = None
        # A hold that has been released, or a rule that was removed, acts no more.
        self.is_over = False
        self._random = random.Random(seed)

    @property
    def is_used_up(self) -> bool:
        return self.is_over or (self.times is not None and self.hits >= self.times)

    @property
    def is_for_parts(self) -> bool:
        """Whether it answers for some topics or partitions only."""
        is_error = self.action.kind in (FAIL, FAIL_AFTER)
        return is_error and (self.selector.topic is not None or self.selector.partition is not None)

    def takes(self, request: Request, connection: int, topic_name: TopicNames) -> bool:
        """Whether the rule acts on this request. It is counted."""
        if self.is_used_up:
            return False
        if not self.selector.matches(request, connection, topic_name):
            return False
        self.matched += 1
        if self.matched <= self.skip:
            return False
        if self.probability < 1.0 and self._random.random() >= self.probability:
            return False
        self.hits += 1
        return True

    def __str__(self) -> str:
        often = "" if self.times is None else f" of {self.times}"
        failed = "" if self.error is None else f"; failed: {self.error}"
        return f"{self.action}: {self.selector} ({self.hits}{often} hit{failed})"


@final
class Rules:
    """All rules, the oldest first."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self._next_number = 1
        self._full_fetches = Rule(0, Selector(api="Fetch"), Action(FAIL, errors.FETCH_SESSION_ID_NOT_FOUND))

    def add(
        self,
        selector: Selector,
        action: Action,
        times: int | None = None,
        skip: int = 0,
        probability: float = 1.0,
        seed: int = DEFAULT_SEED,
    ) -> Rule:
        rule = Rule(self._next_number, selector, action, times, skip, probability, seed)
        self._next_number += 1
        self.rules.append(rule)
        return rule

    def take(self, request: Request, connection: int, topic_name: TopicNames) -> Rule | None:
        """The rule that acts on this request."""
        if request.api_key == apis.FETCH and self._hides_parts(request, connection, topic_name):
            self._full_fetches.hits += 1
            return self._full_fetches
        for rule in self.rules:
            if rule.takes(request, connection, topic_name):
                return rule
        return None

    def _hides_parts(self, request: Request, connection: int, topic_name: TopicNames) -> bool:
        """Whether a Fetch of a session may be about partitions that it does not name and a rule does.

        The client has to send a Fetch that names all of its partitions; it does so when its session is unknown.
        """
        message: Any = request.message
        if message is None or message.session_epoch <= 0:
            return False
        for rule in self.rules:
            chosen = rule.selector
            if rule.is_for_parts and not rule.is_used_up:
                if replace(chosen, topic=None, partition=None).matches(request, connection, topic_name):
                    return True
        return False

    def remove(self, rule: Rule) -> None:
        rule.is_over = True
        if rule in self.rules:
            self.rules.remove(rule)

    def clear(self) -> None:
        for rule in self.rules:
            rule.is_over = True
        self.rules.clear()
