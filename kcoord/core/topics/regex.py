"""Subscriptions by regular expression (KIP-848): which patterns are valid, and which topics they match.

Patterns are RE2's: they match in time linear in the topic's name, whatever a client sends, and in bounded memory. A
heartbeat only checks its pattern. Matching it with every topic is a job, whose result comes back as an event and is
stored as a record. A pattern has to match the whole name. RE2 is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from kcoord.core.outcome import GROUP_EVENTS_TOPIC, Job

if TYPE_CHECKING:
    import re2  # type: ignore[import-untyped]

# A pattern with a hundred topics of the longest names fits. Compiling blocks the event loop for longer with the length.
REGEX_BYTES_MAX: Final = 25_000
# Alternatives and repetitions in a pattern. RE2 examines everything that may follow each of them, which takes half a
# second for `a?` repeated 12,000 times. This many names separated by bars fit.
REGEX_OPERATORS_MAX: Final = 2_000
_OPERATORS: Final = "|?*+{"
# Unicode classes (`\pL`, `\p{Greek}`) in a pattern. RE2 takes a tenth of a millisecond to expand each, and topic names
# are ASCII.
UNICODE_CLASSES_MAX: Final = 20
# The memory of one compiled pattern, with its cache of states. RE2's default is 8 MiB. A pattern that needs more is
# refused.
REGEX_MEMORY_BYTES_MAX: Final = 1024 * 1024
# A refresh is due at most every 10 s, so a result that takes longer is useless.
RESOLVE_DEADLINE_MS: Final = 10_000
# The bytes of all records of one resolution, unless the caller sets another limit: half of the default of
# `coordinator.batch.max.bytes`, so that the record of the group's epoch fits into the same batch.
RESULT_BYTES_MAX: Final = 32 * 1024 * 1024
# The bytes of a record besides its texts, and of a name besides its characters. Names are ASCII; a character of a
# pattern or a group id has at most four bytes.
RECORD_OVERHEAD_BYTES: Final = 100
NAME_OVERHEAD_BYTES: Final = 2
# After this many topics the job checks whether its result is still needed.
_TOPICS_PER_LOOK: Final = 256

# RE2's messages about a pattern, and those that Kafka's clients get.
_DESCRIPTIONS: Final = {
    "bad repetition operator": "invalid nested repetition operator",
    "invalid named capture group": "invalid named capture",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid repetition size": "invalid repeat count",
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "trailing \\": "trailing backslash at end of expression",
}


def _options() -> re2.Options:
    import re2

    options = re2.Options()
    options.max_mem = REGEX_MEMORY_BYTES_MAX
    options.log_errors = False
    # Only a full match matters; RE2 is faster when it does not return groups.
    options.never_capture = True
    return options


def check(pattern: str) -> str | None:
    """Check a pattern: None if it is valid, otherwise a message, in Kafka's words if it has some."""
    try:
        size = len(pattern.encode())
    except UnicodeEncodeError:
        return "invalid UTF-8"
    if size > REGEX_BYTES_MAX:
        return f"it has {size} bytes, and {REGEX_BYTES_MAX} are allowed"
    # Escaped ones count as well: no real pattern has that many.
    operators = 0
    for operator in _OPERATORS:
        operators += pattern.count(operator)
    # The question mark in a group like `(?:` is not one.
    operators -= pattern.count("(?")
    if operators > REGEX_OPERATORS_MAX:
        return f"it has {operators} alternatives and repetitions, and {REGEX_OPERATORS_MAX} are allowed"
    classes = pattern.count("\\p") + pattern.count("\\P")
    if classes > UNICODE_CLASSES_MAX:
        return f"it has {classes} Unicode classes, and {UNICODE_CLASSES_MAX} are allowed"
    import re2

    try:
        re2.compile(pattern, _options())
    except re2.error as refusal:
        # After a colon follows the faulty part of the pattern, which may be all of it.
        reason: str = refusal.args[0].decode("utf-8", "replace").partition(": ")[0]
        return _DESCRIPTIONS.get(reason, reason)
    finally:
        # re2 would cache many patterns, as large as clients send them.
        re2.purge()
    return None


def full_match_of(pattern: str) -> Callable[[str], object]:
    """A function that returns None for a text which the valid pattern does not match as a whole."""
    import re2

    matches: Callable[[str], object] = re2.compile(pattern, _options()).fullmatch
    re2.purge()
    return matches


def is_matchable(name: str) -> bool:
    """Whether a pattern may match the topic.

    As on a broker that is any topic, including internal ones. `__group_events` is a topic that no broker has: a pattern
    that was written for a broker must not subscribe to it.
    """
    return name != GROUP_EVENTS_TOPIC


@final
class ResolveRegexJob(Job):
    """Finds the topics that the patterns of a group match, for the member whose heartbeat requested it.

    `version` and `wall_ms` are the version of `topic_names`: the offset of the last metadata record, and Unix time.
    `bytes_max` limits the records of all results together, because they are one batch.
    """

    def __init__(
        self,
        group_id: str,
        member_id: str,
        patterns: tuple[str, ...],
        topic_names: tuple[str, ...],
        version: int,
        wall_ms: int,
        bytes_max: int = RESULT_BYTES_MAX,
    ) -> None:
        super().__init__(f"resolve-regex:{group_id}", RESOLVE_DEADLINE_MS)
        self.group_id = group_id
        self.member_id = member_id
        self.patterns = patterns
        self.topic_names = topic_names
        self.version = version
        self.wall_ms = wall_ms
        self.bytes_left = bytes_max

    def run(self) -> dict[str, list[str] | None]:
        """The sorted names of the topics that each pattern matches; an empty list for an invalid pattern.

        None means that the result exceeds `bytes_max` together with those before it.
        """
        names = sorted(name for name in self.topic_names if is_matchable(name))
        return {pattern: self._bounded(pattern, names) for pattern in self.patterns}

    def _bounded(self, pattern: str, names: list[str]) -> list[str] | None:
        """The topics that a pattern matches, if its record still fits."""
        size = RECORD_OVERHEAD_BYTES + 4 * (len(pattern) + len(self.group_id))
        if size > self.bytes_left:
            return None
        found = self._matching(pattern, names)
        for name in found:
            size += len(name) + NAME_OVERHEAD_BYTES
        if size > self.bytes_left:
            return None
        self.bytes_left -= size
        return found

    def _matching(self, pattern: str, names: list[str]) -> list[str]:
        if check(pattern) is not None:
            return []
        full_match = full_match_of(pattern)
        found: list[str] = []
        for start in range(0, len(names), _TOPICS_PER_LOOK):
            if self.is_abandoned:
                return []
            for name in names[start : start + _TOPICS_PER_LOOK]:
                if full_match(name) is not None:
                    found.append(name)
        return found
