"""Which regular expressions are taken, in which words the others are refused, and what they match."""

from __future__ import annotations

import pytest

from kcoord.core.groups.consumer import ResolvedRegex
from kcoord.core.groups.records import regex_record
from kcoord.core.topics.regex import (
    REGEX_BYTES_MAX,
    REGEX_OPERATORS_MAX,
    RESULT_BYTES_MAX,
    ResolveRegexJob,
    check,
)
from kcoord.log.serde import encode_record

TOPICS = ("orders", "orders.eu", "Orders", "payments", "a", "b", "ab")


def resolve(*patterns: str, topics: tuple[str, ...] = TOPICS) -> dict[str, list[str] | None]:
    return ResolveRegexJob("g", "m", patterns, topics, 7, 1000).run()


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("[a", "missing closing ]"),
        ("(a", "missing closing )"),
        ("a)", "unexpected )"),
        ("*a", "missing argument to repetition operator"),
        ("a**", "invalid nested repetition operator"),
        ("a{1001}", "invalid repeat count"),
        ("a\\", "trailing backslash at end of expression"),
        ("(a)\\1", "invalid escape sequence"),
        ("a(?=b)", "invalid or unsupported Perl syntax"),
        ("(?P<a b>x)", "invalid named capture"),
        ("[z-a]", "invalid character class range"),
        ("\\p{Foo}", "invalid character class range"),
        ("a\ud800", "invalid UTF-8"),
        ("\\pL{1000}", "pattern too large - compile failed"),
        ("(((a{100}){100}){100})", "invalid repeat count"),
    ],
)
def test_what_is_refused(pattern: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert check(pattern) == message
    assert capfd.readouterr() == ("", "")
    assert resolve(pattern) == {pattern: []}


def test_length_is_bounded_in_bytes() -> None:
    assert check("a" * REGEX_BYTES_MAX) is None
    longer = "é" * (REGEX_BYTES_MAX // 2 + 1)
    assert check(longer) == f"it has {REGEX_BYTES_MAX + 2} bytes, and 25000 are allowed"


@pytest.mark.parametrize("atom", ["a?", "a*", "a|", "(|a)+", "a{1,2}"])
def test_alternatives_and_repetitions_are_bounded(atom: str) -> None:
    """RE2's time grows with the square of their number."""
    each = sum(atom.count(operator) for operator in "|?*+{")
    count = REGEX_OPERATORS_MAX // each
    assert check(atom * count) is None
    message = f"it has {(count + 1) * each} alternatives and repetitions, and 2000 are allowed"
    assert check(atom * (count + 1)) == message


def test_two_thousand_names_fit() -> None:
    assert check("|".join(f"topic-{index:05}" for index in range(2_000))) is None


@pytest.mark.parametrize("name", ["\\pL", "\\PL", "\\p{Greek}"])
def test_unicode_classes_are_bounded(name: str) -> None:
    assert check(name * 20) is None
    assert check(name * 21) == "it has 21 Unicode classes, and 20 are allowed"


def test_a_hundred_of_the_longest_names_fit() -> None:
    assert check("|".join(f"{index:03}" + "x" * 246 for index in range(100))) is None


def test_the_whole_name_must_match() -> None:
    found = resolve("a", "a|ab", "orders.*", "(?i)orders", "", "order", "^b$", "[^o].*")
    assert found == {
        "a": ["a"],
        "a|ab": ["a", "ab"],
        "orders.*": ["orders", "orders.eu"],
        "(?i)orders": ["Orders", "orders"],
        "": [],
        "order": [],
        "^b$": ["b"],
        "[^o].*": ["Orders", "a", "ab", "b", "payments"],
    }


def test_internal_topics_are_matched_as_by_a_broker_except_kcoords() -> None:
    internal = ("__consumer_offsets", "__transaction_state", "__share_group_state", "__group_events")
    found = resolve(".*", "__group_events", "__.*", topics=(*internal, "__mine", "a"))
    of_kafka = ["__consumer_offsets", "__mine", "__share_group_state", "__transaction_state"]
    assert found == {".*": [*of_kafka, "a"], "__group_events": [], "__.*": of_kafka}


def test_results_stay_within_the_bytes_that_their_records_may_take() -> None:
    names = tuple(f"topic-{number:03}" for number in range(100))
    job = ResolveRegexJob("g", "m", ("none", ".*", "topic-00.", "topic-01."), names, 7, 1000, bytes_max=600)
    found = job.run()
    assert found["none"] == []
    # 100 names do not fit; those that come after may.
    assert found[".*"] is None
    assert found["topic-00."] == [f"topic-00{digit}" for digit in range(10)]
    assert found["topic-01."] is None


def test_the_bound_holds_for_the_records_as_they_are_written() -> None:
    for pattern, names in (
        (".*", tuple(f"{number}{'x' * 200}" for number in range(300))),
        ("\U0001f600?" * 500, ()),
    ):
        job = ResolveRegexJob("g" * 60, "m", (pattern,), names, 1, 1)
        found = job.run()[pattern]
        assert found is not None
        resolved = ResolvedRegex(found, 2**62, 2**62)
        record = regex_record("g" * 60, pattern, resolved)
        assert record.key is not None
        key, value = encode_record(record.key, record.value)
        assert value is not None
        assert len(key) + len(value) <= RESULT_BYTES_MAX - job.bytes_left


def test_what_takes_other_engines_for_ever() -> None:
    """Time grows with the name's length, not with the ways in which it could match."""
    assert resolve("(a*)*b", "(a|aa)+$", topics=("a" * 249,)) == {"(a*)*b": [], "(a|aa)+$": ["a" * 249]}


def test_one_job_for_a_group_at_a_time() -> None:
    one = ResolveRegexJob("g", "m1", ("a",), TOPICS, 7, 1000)
    other = ResolveRegexJob("g", "m2", ("b",), TOPICS, 8, 1001)
    assert one.key == other.key != ResolveRegexJob("h", "m1", ("a",), TOPICS, 7, 1000).key


def test_a_job_ends_when_its_result_is_not_needed() -> None:
    job = ResolveRegexJob("g", "m", (".*",), TOPICS, 7, 1000)
    job.is_abandoned = True
    assert job.run() == {".*": []}
