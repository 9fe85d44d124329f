"""The metadata hash of groups and what regular expressions match, beside Kafka's own group coordinator code."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from kcoord.core.topics.hash import group_hash, topic_hash
from kcoord.core.topics.regex import ResolveRegexJob, check
from tests.interop.oracle import Oracle
from tests.interop.patterns import ALL_NAMES, ATOMS, ONLY_HERE, ONLY_IN_KAFKA, PATTERNS

IMAGES = 300
RANDOM_PATTERNS = 4000
PATTERNS_AT_ONCE = 500
LETTERS = "ab._-Z9éß\u4e2d\uff5e\ue000\U0001f600\U00010000"


@pytest.fixture(scope="module")
def groups() -> Iterator[Oracle]:
    with Oracle("GroupOracle") as running:
        yield running


# --- the metadata hash ---------------------------------------------------------------------------------------


def text(rng: random.Random, longest: int) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, longest)))


def make_image(rng: random.Random) -> dict[str, Any]:
    """Brokers with and without racks, topics on some of them, and a group that also wants topics that are missing."""
    racks = [text(rng, 4) for _ in range(rng.randint(1, 4))]
    brokers = [rng.choice([None, "", *racks]) for _ in range(rng.randint(1, 6))]
    topics = {
        text(rng, 12): {
            "id": rng.randbytes(16).hex(),
            "partitions": [
                rng.sample(range(len(brokers)), rng.randint(1, len(brokers)))
                for _ in range(rng.choice([1, 2, 3, rng.randint(1, 60)]))
            ],
        }
        for _ in range(rng.randint(0, 8))
    }
    subscribed = {name: True for name in topics if rng.random() < 0.7} | {
        text(rng, 12): True for _ in range(rng.randint(0, 2))
    }
    return {"brokers": brokers, "topics": topics, "subscribed": list(subscribed)}


def our_hashes(image: dict[str, Any]) -> dict[str, Any]:
    brokers = image["brokers"]
    hashes: dict[str, int] = {}
    for name in image["subscribed"]:
        topic = image["topics"].get(name)
        if topic is not None:
            partitions = [
                (number, [brokers[replica] for replica in replicas if brokers[replica] is not None])
                for number, replicas in enumerate(topic["partitions"])
            ]
            hashes[name] = topic_hash(bytes.fromhex(topic["id"]), name, partitions)
    # Kafka calls the hash of a missing topic 0, and leaves it out of the group's.
    every = {name: hashes.get(name, 0) for name in image["subscribed"]}
    return {"topics": every, "group": group_hash(hashes)}


def test_metadata_hashes(groups: Oracle) -> None:
    rng = random.Random(848)
    seen: dict[int, bool] = {}
    for number in range(IMAGES):
        image = make_image(rng)
        ours = our_hashes(image)
        assert groups.ask("hash", image) == ours, (number, image)
        seen[ours["group"]] = True
    assert len(seen) > IMAGES * 0.8


# --- regular expressions -------------------------------------------------------------------------------------


def ask_all(groups: Oracle, patterns: list[str], names: list[str]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for start in range(0, len(patterns), PATTERNS_AT_ONCE):
        some = patterns[start : start + PATTERNS_AT_ONCE]
        answers |= groups.ask("regex", {"patterns": some, "topics": names})
    return answers


def random_patterns(rng: random.Random) -> list[str]:
    made = {"".join(rng.choice(ATOMS) for _ in range(rng.randint(1, 8))): True for _ in range(RANDOM_PATTERNS)}
    return list(made)


def difference(pattern: str, theirs: dict[str, Any]) -> str:
    """What differs between Kafka's answer and ours; empty when nothing does."""
    error = check(pattern)
    if error is None and theirs["error"] is None:
        ours = ResolveRegexJob("g", "m", (pattern,), tuple(ALL_NAMES), 1, 1).run()[pattern]
        assert ours is not None
        return "" if sorted(ours) == sorted(theirs["topics"]) else f"Kafka matches {theirs['topics']}, we {ours}"
    if (error is None) == (theirs["error"] is None):
        return ""
    return f"Kafka says {theirs['error']}, we {error}"


def test_patterns_are_taken_and_match_as_in_kafka(groups: Oracle) -> None:
    answers = ask_all(groups, PATTERNS, ALL_NAMES)
    differences = {pattern: difference(pattern, answers[pattern]) for pattern in PATTERNS}
    assert {pattern: text for pattern, text in differences.items() if text} == {}
    assert sum(answer["error"] is None for answer in answers.values()) > 200


def test_what_only_one_of_the_two_takes(groups: Oracle) -> None:
    """The list in docs/kips.md, one by one: a difference that goes away is to be taken out of it."""
    answers = ask_all(groups, [*ONLY_IN_KAFKA, *ONLY_HERE], ALL_NAMES)
    for pattern in ONLY_IN_KAFKA:
        assert answers[pattern]["error"] is None and check(pattern) is not None, pattern
    for pattern in ONLY_HERE:
        assert answers[pattern]["error"] is not None and check(pattern) is None, pattern


def is_known(pattern: str, theirs: dict[str, Any]) -> bool:
    """Whether a random pattern hits one of the listed differences."""
    error = theirs["error"]
    if error == "invalid nested repetition operator":
        # A brace that stands for itself, repeated.
        return any(brace in pattern for brace in ("{*", "{+", "{?", "{{"))
    if error == "duplicate capture group name":
        return pattern.count("(?P<x>") > 1
    return error is None and "\\é" in pattern


def test_random_patterns_are_taken_and_match_as_in_kafka(groups: Oracle) -> None:
    patterns = random_patterns(random.Random(848))
    answers = ask_all(groups, patterns, ALL_NAMES)
    for pattern in patterns:
        text = difference(pattern, answers[pattern])
        assert not text or is_known(pattern, answers[pattern]), (pattern, text)
    assert sum(answer["error"] is None for answer in answers.values()) > RANDOM_PATTERNS / 4


SAME_WORDS = (
    ("[a", "missing closing ]"),
    ("(a", "missing closing )"),
    ("*a", "missing argument to repetition operator"),
    ("a**", "invalid nested repetition operator"),
    ("a{1001}", "invalid repeat count"),
    ("a\\", "trailing backslash at end of expression"),
    ("a\\1", "invalid escape sequence"),
    ("(?=a)", "invalid or unsupported Perl syntax"),
    ("(?P<a b>x)", "invalid named capture"),
    ("[z-a]", "invalid character class range"),
)


@pytest.mark.parametrize(("pattern", "message"), SAME_WORDS)
def test_refusals_have_kafkas_words(groups: Oracle, pattern: str, message: str) -> None:
    assert groups.ask("regex", {"patterns": [pattern], "topics": []})[pattern]["error"] == message
    assert check(pattern) == message


def test_internal_topics_are_matched_as_by_kafka(groups: Oracle) -> None:
    names = ["__consumer_offsets", "__transaction_state", "t"]
    assert groups.ask("regex", {"patterns": [".*"], "topics": names})[".*"]["topics"] == names
    assert ResolveRegexJob("g", "m", (".*",), tuple(names), 1, 1).run() == {".*": names}
