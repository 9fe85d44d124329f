"""Subscriptions by regular expression (KIP-848): which patterns are valid, and which topics they match.

Patterns are RE2's: they match in time linear in the topic's name, whatever a client sends, and in bounded memory. A
heartbeat only checks its pattern. Matching it with every topic is a job, whose result comes back as an event and is
stored as a record. A pattern matches a whole name.
"""

from __future__ import annotations

from typing import Final, final

import re2  # type: ignore[import-untyped]

from kcoord.core.outcome import GROUP_EVENTS_TOPIC, Job

# A pattern that names a hundred topics of the longest kind fits. Compiling takes time on the loop with the length.
REGEX_BYTES_MAX: Final = 25_000
# Alternatives and repetitions in a pattern. RE2 looks at all that may follow each, which takes half a second for
# 12,000 times `a?`. So many names with bars between them fit.
REGEX_OPERATORS_MAX: Final = 2_000
_OPERATORS: Final = "|?*+{"
# Mentions of Unicode classes (`\pL`, `\p{Greek}`) in a pattern. RE2 takes a tenth of a millisecond to spell out each,
# and names of topics are ASCII.
UNICODE_CLASSES_MAX: Final = 20
# What one compiled pattern may use, its cache of states included; RE2's default is 8 MiB. One that would need more
# is refused.
REGEX_MEMORY_BYTES_MAX: Final = 1024 * 1024
# A refresh is due at most every 10 s, so a result that takes longer than that is of no use.
RESOLVE_DEADLINE_MS: Final = 10_000
# What the records of one resolution may take together unless the caller says otherwise: half of what the default of
# `coordinator.batch.max.bytes` allows, so that the record of the group's epoch has room beside them.
RESULT_BYTES_MAX: Final = 32 * 1024 * 1024
# What a record takes beside its texts, and a name beside its characters. Names are ASCII; a character of a pattern or
# of a group id has at most four bytes.
RECORD_OVERHEAD_BYTES: Final = 100
NAME_OVERHEAD_BYTES: Final = 2
# Topics between two looks at whether somebody still waits for the result.
_TOPICS_PER_LOOK: Final = 256

# What RE2 says of a pattern, and what Kafka's clients are told of it.
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
    options = re2.Options()
    options.max_mem = REGEX_MEMORY_BYTES_MAX
    options.log_errors = False
    # Only whether a name matches is asked, and RE2 tells that faster when it need not say what the groups are.
    options.never_capture = True
    return options


_OPTIONS: Final = _options()


def check(pattern: str) -> str | None:
    """What is wrong with a pattern, in Kafka's words where it has some for that; None when it is valid."""
    try:
        size = len(pattern.encode())
    except UnicodeEncodeError:
        return "invalid UTF-8"
    if size > REGEX_BYTES_MAX:
        return f"it has {size} bytes, and {REGEX_BYTES_MAX} are allowed"
    # Escaped ones count, too: nobody has so many.
    operators = 0
    for operator in _OPERATORS:
        operators += pattern.count(operator)
    # The question mark of a group like `(?:` is neither.
    operators -= pattern.count("(?")
    if operators > REGEX_OPERATORS_MAX:
        return f"it has {operators} alternatives and repetitions, and {REGEX_OPERATORS_MAX} are allowed"
    classes = pattern.count("\\p") + pattern.count("\\P")
    if classes > UNICODE_CLASSES_MAX:
        return f"it has {classes} Unicode classes, and {UNICODE_CLASSES_MAX} are allowed"
    try:
        re2.compile(pattern, _OPTIONS)
    except re2.error as refusal:
        # The part of the pattern that is meant follows after a colon. It may be all of it.
        said: str = refusal.args[0].decode("utf-8", "replace").partition(": ")[0]
        return _DESCRIPTIONS.get(said, said)
    finally:
        # The module remembers many patterns, as large as somebody likes to send them.
        re2.purge()
    return None


def is_matchable(name: str) -> bool:
    """Whether a pattern may match the topic.

    As on a broker that is any topic, internal ones included. `__group_events` is a topic that no broker has: a pattern
    that was written for a broker must not subscribe to it.
    """
    return name != GROUP_EVENTS_TOPIC


@final
class ResolveRegexJob(Job):
    """Finds the topics that patterns of a group match, on behalf of the member whose heartbeat asked for it.

    `version` and `wall_ms` say of when `topic_names` is: the offset of the last metadata record, and Unix time.
    `bytes_max` bounds the records of all results together, because they go into one batch.
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
        """The sorted names of the topics that each pattern matches; none for a pattern that is not valid.

        None stands for more than fits into `bytes_max` with the results before it.
        """
        names = sorted(name for name in self.topic_names if is_matchable(name))
        return {pattern: self._bounded(pattern, names) for pattern in self.patterns}

    def _bounded(self, pattern: str, names: list[str]) -> list[str] | None:
        """What a pattern matches, if its record still fits."""
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
        full_match = re2.compile(pattern, _OPTIONS).fullmatch
        re2.purge()
        found: list[str] = []
        for start in range(0, len(names), _TOPICS_PER_LOOK):
            if self.is_abandoned:
                return []
            for name in names[start : start + _TOPICS_PER_LOOK]:
                if full_match(name) is not None:
                    found.append(name)
        return found
