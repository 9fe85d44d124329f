"""The metadata hash, with values that Kafka 4.3.1 computed; `tests/interop/test_group_metadata.py` asks it for more."""

from __future__ import annotations

from kcoord.core.topics.hash import group_hash, topic_hash

ID = bytes.fromhex("00112233445566778899aabbccddeeff")


def test_what_kafka_computes() -> None:
    t = topic_hash(ID, "t", [(0, ["r1", "é\U0001f600"]), (1, ["é\U0001f600", "r1"])])
    odd = topic_hash(b"\xff" * 16, "ü\U0001f600", [(0, [])])
    assert t == 142230918538970953
    assert odd == -8555893013826841761
    assert group_hash({"t": t, "ü\U0001f600": odd}) == -7928925573088796424
    assert group_hash({"ü\U0001f600": odd, "t": t}) == -7928925573088796424


def test_no_topics() -> None:
    assert group_hash({}) == 0


def test_everything_counts() -> None:
    hashes = {
        topic_hash(ID, "t", [(0, []), (1, [])]),
        topic_hash(ID, "u", [(0, []), (1, [])]),
        topic_hash(ID[::-1], "t", [(0, []), (1, [])]),
        topic_hash(ID, "t", [(0, [])]),
        topic_hash(ID, "t", [(0, ["a"]), (1, [])]),
        topic_hash(ID, "t", [(0, []), (1, ["a"])]),
        topic_hash(ID, "t", [(0, ["ab"]), (1, ["c"])]),
        topic_hash(ID, "t", [(0, ["a"]), (1, ["bc"])]),
        topic_hash(ID, "t", [(0, ["a", "b"]), (1, [])]),
    }
    assert len(hashes) == 9
    assert all(-(2**63) <= value < 2**63 for value in hashes)
    assert topic_hash(ID, "t", [(0, ["a", "b"])]) == topic_hash(ID, "t", [(0, ["b", "a"])])


def test_names_are_in_the_order_of_java() -> None:
    """U+FF5E comes after U+1F600 in UTF-16 and before it in code points."""
    swapped = {"\uff5e": 2, "\U0001f600": 1}
    assert group_hash(swapped) == group_hash({"a": 1, "b": 2})
