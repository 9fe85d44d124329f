"""The header with the cause of an epoch is the JSON that any reader expects."""

from __future__ import annotations

import json

import pytest

from kcoord.core.cause import NO_TIME, Cause
from kcoord.core.groups.cause_header import CAUSE_HEADER, decode_cause, encode_cause

TEXTS = ("", "member-1", 'a "quoted" \\ text', "line\nbreak\ttab \x00 \x1f \x7f", "Größe \u2028 \U0001f600")


@pytest.mark.parametrize("since_ms", [NO_TIME, 0, 1769860800000])
@pytest.mark.parametrize("detail", TEXTS)
@pytest.mark.parametrize("member_id", TEXTS)
def test_the_header_is_compact_json(member_id: str, detail: str, since_ms: int) -> None:
    document: dict[str, object] = {"kind": "session_timeout", "member": member_id, "detail": detail}
    document |= {"since_ms": since_ms} if since_ms != NO_TIME else {}
    expected = {name: value for name, value in document.items() if value != ""}
    encoded = encode_cause(Cause("session_timeout", member_id, detail, since_ms))
    assert encoded == json.dumps(expected, ensure_ascii=False, separators=(",", ":")).encode()
    decoded = decode_cause([(CAUSE_HEADER, encoded)])
    assert decoded is not None
    assert (decoded.member_id, decoded.detail, decoded.since_ms) == (member_id, detail, since_ms)


def test_half_a_character_becomes_a_question_mark() -> None:
    assert encode_cause(Cause("rebalanced", "a\ud83d")) == b'{"kind":"rebalanced","member":"a?"}'
