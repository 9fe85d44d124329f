r"""Records as text: JSON in and out, and the formats of `-f`, which are kcat's.

A JSON record has `key`, `value`, `headers`, `partition` and `timestamp_ms` (or `timestamp`, in ISO 8601). What is
written has `topic` and `offset` too; they are read and ignored, so that the output of one command is the input of the
next. Bytes that are not UTF-8 are `{"base64": "..."}`.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

import click

from kcoord.cli.output import format_time

Headers = list[tuple[str, bytes | None]]

FIELDS: Final = ("topic", "partition", "offset", "timestamp", "timestamp_ms", "key", "value", "headers")
# The letters of a format, beside %%.
LETTERS: Final = "skSKRtpoTh"
ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
PART: Final = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)


class RecordProblem(Exception):
    """Text that is no record, or no format; the message says why."""


class GivenRecord(NamedTuple):
    """A record to write. None as partition: the key decides. None as time: now."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    partition: int | None = None
    timestamp_ms: int | None = None


class ReadRecord(NamedTuple):
    """A record as a consumer has read it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def parse_escapes(text: str) -> bytes:
    r"""`\t`, `\n`, `\r`, `\0`, `\\` and `\xNN` as the bytes that they mean. Raises RecordProblem."""
    found = b""
    for match in PART.finditer(text.replace("%", "%%")):
        found += _literal(match, text)
    return found


def _literal(match: re.Match[str], text: str) -> bytes:
    percent, code, escape, plain, _ = match.groups()
    if plain is not None:
        return plain.encode(errors="surrogateescape")
    if code is not None:
        return bytes([int(code, 16)])
    if percent == "%":
        return b"%"
    if escape in ESCAPES:
        return ESCAPES[escape]
    known = ", ".join(f"%{letter}" for letter in LETTERS) if percent is not None or match.group() == "%" else ""
    known = known or r"\n, \r, \t, \0, \\, \xNN"
    raise RecordProblem(f"{text!r}: {match.group()!r} is not one of {known}")


# --- JSON


def parse_json(line: bytes, is_base64: bool = False) -> GivenRecord:
    """The record of one JSON object; with `is_base64`, texts are bytes in base64. Raises RecordProblem."""
    try:
        return _parse_json(line, is_base64)
    except RecursionError:
        raise RecordProblem("not a JSON object: too many lists and objects inside each other") from None


def _parse_json(line: bytes, is_base64: bool) -> GivenRecord:
    try:
        document = json.loads(line)
    except ValueError as error:
        raise RecordProblem(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise RecordProblem(f"not a JSON object: {_short(document)}")
    for name in document:
        if name not in FIELDS:
            from kcoord.cli.online.suggestions import suggestion

            raise RecordProblem(f"unknown field {name!r}{suggestion(name, FIELDS)}")
    return GivenRecord(
        _bytes(document.get("value"), "value", is_base64),
        _bytes(document.get("key"), "key", is_base64),
        _headers(document.get("headers"), is_base64),
        _number(document.get("partition"), "partition"),
        _timestamp(document),
    )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _bytes(value: Any, name: str, is_base64: bool) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, dict) and list(value) == ["base64"]:
        value, is_base64 = value["base64"], True
    if is_base64:
        import base64

        try:
            return base64.b64decode(value, validate=True)
        except (TypeError, ValueError):
            raise RecordProblem(f"{name}: {_short(value)} is not base64") from None
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")


def _headers(value: Any, is_base64: bool) -> Headers:
    if value is None:
        return []
    if isinstance(value, dict):
        return [(name, _bytes(one, f"header {name}", is_base64)) for name, one in value.items()]
    found: Headers = []
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, dict) or not isinstance(one.get("key"), str):
            raise RecordProblem('headers: give {"name": "value"} or [{"key": "name", "value": "value"}]')
        found.append((one["key"], _bytes(one.get("value"), f"header {one['key']}", is_base64)))
    return found


def _number(value: Any, name: str) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise RecordProblem(f"{name}: {_short(value)} is not a number from 0 on")


def _timestamp(document: dict[str, Any]) -> int | None:
    value = document.get("timestamp_ms", document.get("timestamp"))
    if not isinstance(value, str) or "timestamp_ms" in document:
        return _number(value, "timestamp")
    from kcoord.cli.log.points import parse_time

    try:
        return parse_time(value)
    except click.BadParameter as error:
        raise RecordProblem(f"timestamp: {error.message}") from None


def record_json(record: ReadRecord) -> dict[str, Any]:
    """A record as `parse_json` reads it."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": format_time(record.timestamp_ms) or None,
        "timestamp_ms": record.timestamp_ms if record.timestamp_ms >= 0 else None,
        "key": _plain(record.key),
        "value": _plain(record.value),
        "headers": [{"key": name, "value": _plain(value)} for name, value in record.headers],
    }


def _plain(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        import base64

        return {"base64": base64.b64encode(data).decode()}


# --- formats


class RecordFormat:
    r"""%s value, %k key, %t topic, %p partition, %o offset, %T time in ms, %h headers; %S and %K sizes of value and
    key (-1 for null), %R the size of the value in four bytes. `\n` and the other escapes as in C."""

    def __init__(self, text: str) -> None:
        """Raises RecordProblem."""
        self._parts: list[tuple[str, bytes]] = []
        for match in PART.finditer(text):
            letter = match.group(1)
            if letter is not None and letter in LETTERS:
                self._parts.append((letter, b""))
            else:
                self._parts.append(("", _literal(match, text)))

    def text_of(self, record: ReadRecord) -> bytes:
        return b"".join(_field(letter, record) if letter else text for letter, text in self._parts)


def _field(letter: str, record: ReadRecord) -> bytes:
    if letter in "sk":
        return (record.value if letter == "s" else record.key) or b""
    if letter in "SKR":
        data = record.key if letter == "K" else record.value
        size = -1 if data is None else len(data)
        return size.to_bytes(4, "big", signed=True) if letter == "R" else str(size).encode()
    if letter == "h":
        return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)
    numbers = {"p": record.partition, "o": record.offset, "T": record.timestamp_ms}
    return record.topic.encode() if letter == "t" else str(numbers[letter]).encode()
