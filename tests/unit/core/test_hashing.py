"""Java's string hash and what is derived from it. Expected values were computed by a JVM."""

from __future__ import annotations

import pytest

from kcoord.core.hashing import coordinator_partition, java_string_hash, utf16_length

HASHES = [
    ("", 0),
    ("a", 97),
    ("my-group", -1906497762),
    ("console-consumer-12345", 158455506),
    ("polygenelubricants", -2147483648),
    ("größe", 98762257),
    ("😀-group", -1198440043),
]


@pytest.mark.parametrize(("text", "expected"), HASHES)
def test_java_string_hash(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


def test_partition_of_a_negative_hash_is_its_absolute_value() -> None:
    assert coordinator_partition("my-group", 50) == 12
    assert coordinator_partition("console-consumer-12345", 50) == 6


def test_the_hash_without_a_positive_counterpart_counts_as_zero() -> None:
    assert coordinator_partition("polygenelubricants", 50) == 0


def test_utf16_length_counts_surrogate_pairs_twice() -> None:
    assert utf16_length("abc") == 3
    assert utf16_length("größe") == 5
    assert utf16_length("a😀") == 3
