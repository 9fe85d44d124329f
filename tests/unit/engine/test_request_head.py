"""The remembered beginning of a member's requests: what is read with it is what is read without it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord.core.topics.registry import Topic
from kcoord.engine.request_head import TOPICS_MAX, RequestHead, read_head
from kcoord.engine.topic_commit import TopicCommit
from kcoord.wire.primitives import (
    ZERO_UUID,
    BytesWriter,
    DecodeError,
    Reader,
    write_compact_nullable_string,
    write_compact_string,
    write_i32_be,
    write_nullable_string,
    write_string,
)

TEXTS = st.sampled_from(["", "g", "group", "member-1", "ä", "x" * 200])
HEADS = st.tuples(TEXTS, st.integers(-1, 300), TEXTS, st.none() | TEXTS)
# (flexible, with an instance id), by a version that stands for it.
FORMS = {1: (False, False), 7: (False, True), 8: (True, True)}


def encode(version: int, group_id: str, epoch: int, member_id: str, instance_id: str | None) -> bytes:
    is_compact, has_instance = FORMS[version]
    w = BytesWriter()
    write = write_compact_string if is_compact else write_string
    write(w, group_id)
    write_i32_be(w, epoch)
    write(w, member_id)
    if has_instance:
        write_nullable = write_compact_nullable_string if is_compact else write_nullable_string
        write_nullable(w, instance_id)
    return w.getvalue()


def read(data: bytes, known: RequestHead | None, version: int) -> tuple[RequestHead, int]:
    reader = Reader(data, 3)
    head = read_head(reader, known, version, *FORMS[version])
    return head, reader.pos


def fields(head: RequestHead) -> tuple[str, int, str, str | None]:
    return head.group_id, head.epoch, head.member_id, head.instance_id


@given(st.lists(st.tuples(st.sampled_from(sorted(FORMS)), HEADS), min_size=1, max_size=6), st.binary(max_size=20))
def test_what_is_remembered_changes_no_result(
    requests: list[tuple[int, tuple[str, int, str, str | None]]], rest: bytes
) -> None:
    known: RequestHead | None = None
    for version, (group_id, epoch, member_id, instance_id) in requests:
        raw = encode(version, group_id, epoch, member_id, instance_id)
        known, end = read(b"..." + raw + rest, known, version)
        expected = (group_id, epoch, member_id, instance_id if FORMS[version][1] else None)
        assert fields(known) == expected and end == 3 + len(raw)
        assert known.raw == raw and known.version == version
        again, end = read(b"..." + raw + rest, known, version)
        assert again is known and end == 3 + len(raw)


@given(st.sampled_from(sorted(FORMS)), HEADS)
def test_a_head_that_is_cut_short_is_refused(version: int, values: tuple[str, int, str, str | None]) -> None:
    raw = encode(version, *values)
    known, _ = read(b"..." + raw, None, version)
    for size in range(len(raw)):
        with pytest.raises(DecodeError):
            read(b"..." + raw[:size], known, version)


def test_the_same_bytes_of_another_version_are_read_anew() -> None:
    """Version 8 has other strings: the bytes of one version may be a head of the other, too."""
    raw = encode(7, "", 1, "", None)
    known, _ = read(b"..." + raw, None, 7)
    head, end = read(b"..." + raw, known, 1)
    assert head is not known and head.instance_id is None and end < 3 + len(raw)


def test_few_topics_are_remembered() -> None:
    head, _ = read(b"..." + encode(8, "g", 1, "m", None), None, 8)
    for number in range(2 * TOPICS_MAX):
        head.remember(TopicCommit("g", Topic(f"topic-{number}", ZERO_UUID)))
    assert len(head.topic_commits) == TOPICS_MAX
    again = TopicCommit("g", Topic("topic-0", bytes(range(16))))
    head.remember(again)
    assert head.topic_commits["topic-0"] is again
    # So are their places, wherever they are named.
    for place in range(2 * TOPICS_MAX):
        head.put(place, again, b"wire")
    assert len(head.places) == TOPICS_MAX
    head.put(0, TopicCommit("g", Topic("topic-0", ZERO_UUID)), b"other")
    assert head.places[0] is again and again.wire == b"wire"
