"""Records as JSON, and formats of records."""

from __future__ import annotations

import json

import pytest

from kcoord.cli.online.record_text import (
    GivenRecord,
    ReadRecord,
    RecordFormat,
    RecordProblem,
    parse_escapes,
    parse_json,
    record_json,
)

RECORD = ReadRecord("orders", 3, 41, 1_700_000_000_123, b"k", b"value", [("a", b"1"), ("a", None), ("b", b"\xff")])


def test_what_is_written_is_what_is_read() -> None:
    for record in (RECORD, RECORD._replace(key=b"\xff\x00", value=None, headers=[])):
        line = json.dumps(record_json(record)).encode()
        expected = GivenRecord(record.value, record.key, record.headers, 3, record.timestamp_ms)
        assert parse_json(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"{}", GivenRecord(None, None, [])),
        (b'{"key": "", "value": "\\u00e9"}', GivenRecord("é".encode(), b"", [])),
        (b'{"value": {"a": [1, null]}, "key": 7}', GivenRecord(b'{"a":[1,null]}', b"7", [])),
        (b'{"value": {"base64": "/w=="}}', GivenRecord(b"\xff", None, [])),
        (b'{"headers": {"a": "1", "b": null}}', GivenRecord(None, None, [("a", b"1"), ("b", None)])),
        (b'{"timestamp": "2026-01-31T12:00"}', GivenRecord(None, None, [], None, 1_769_860_800_000)),
        (b'{"timestamp": 5, "partition": 0}', GivenRecord(None, None, [], 0, 5)),
    ],
)
def test_json(line: bytes, expected: GivenRecord) -> None:
    assert parse_json(line) == expected


def test_base64_is_for_every_text() -> None:
    line = b'{"key": "/w==", "value": null, "headers": {"a": "AA=="}}'
    assert parse_json(line, is_base64=True) == GivenRecord(None, b"\xff", [("a", b"\0")])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[1]", "not a JSON object"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"vlaue": 1}', "unknown field 'vlaue'; did you mean 'value'"),
        (b'{"value": {"base64": "&"}}', "value: .* is not base64"),
        (b'{"partition": -1}', "partition: -1 is not a number"),
        (b'{"partition": true}', "partition: true is not a number"),
        (b'{"timestamp_ms": "now"}', 'timestamp: "now" is not a number'),
        (b'{"timestamp": "soon"}', "timestamp: 'soon' is not a time"),
        (b'{"headers": ["a"]}', "headers: give"),
        (b"[" * 100_000 + b"]" * 100_000, "too many lists"),
        (b'{"value":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too many lists"),
    ],
)
def test_wrong_json(line: bytes, message: str) -> None:
    with pytest.raises(RecordProblem, match=message):
        parse_json(line)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%s", b"value"),
        (r"%t-%p@%o %T\t%k\n", b"orders-3@41 1700000000123\tk\n"),
        ("%S %K %R|", b"5 1 \0\0\0\x05|"),
        ("%h", b"a=1,a=,b=\xff"),
        (r"100%%\x00\\", b"100%\0\\"),
    ],
)
def test_formats(text: str, expected: bytes) -> None:
    assert RecordFormat(text).text_of(RECORD) == expected


def test_a_null_has_the_size_minus_1() -> None:
    assert RecordFormat("%S%K%s%k").text_of(RECORD._replace(key=None, value=None)) == b"-1-1"
    assert RecordFormat("%R").text_of(RECORD._replace(value=None)) == b"\xff\xff\xff\xff"


@pytest.mark.parametrize(("text", "part"), [("%x", "'%x'"), ("50%", "'%'"), (r"\q", r"'\\\\q'"), ("a\\", r"'\\\\'")])
def test_wrong_formats(text: str, part: str) -> None:
    with pytest.raises(RecordProblem, match=f"{part} is not one of"):
        RecordFormat(text)


def test_escapes() -> None:
    assert parse_escapes(r"\t:%s\x1f") == b"\t:%s\x1f"
    with pytest.raises(RecordProblem):
        parse_escapes(r"\q")
