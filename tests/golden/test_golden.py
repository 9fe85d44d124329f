"""Our codec against bytes that Kafka's Java codec made (make_golden.py): same content, same bytes. Needs no Java."""

from __future__ import annotations

import gzip
import json
from functools import cache
from typing import Any

import pytest

from tests.golden.make_golden import GOLDEN
from tests.harness import schema_json
from tests.harness.session import KcoordCodec

Case = tuple[int, str, dict[str, Any], bytes]


@cache
def golden() -> dict[str, list[Case]]:
    """(version, style, JSON, bytes) by message."""
    found: dict[str, list[Case]] = {}
    with gzip.open(GOLDEN, "rt", encoding="utf-8") as lines:
        for line in lines:
            name, version, style, content, body = json.loads(line)
            found.setdefault(name, []).append((version, style, content, bytes.fromhex(body)))
    return found


@pytest.mark.parametrize("name", sorted(schema_json.kafkas()))
def test_decodes_to_the_content_and_encodes_to_the_bytes_of_java(name: str) -> None:
    codec = KcoordCodec()
    for version, style, content, body in golden()[name]:
        what = f"{name} v{version} ({style})"
        assert codec.decode(name, version, body) == content, what
        assert codec.encode(name, version, content).hex() == body.hex(), what


def test_every_version_of_every_message_is_there() -> None:
    for name, schema in schema_json.kafkas().items():
        assert {case[0] for case in golden()[name]} == set(schema.versions), name


def test_every_cut_of_a_message_is_refused_as_malformed() -> None:
    """A body that ends early is a DecodeError, never another exception and never a shorter message."""
    from kcoord.wire.primitives import DecodeError, Reader

    for name, cases in golden().items():
        decode = getattr(schema_json.module_of(name), f"decode_{schema_json.snake_case(name)}")
        version, _, _, body = max(cases, key=lambda case: (case[1] == "random", case[0], -len(case[3])))
        for size in range(min(len(body), 300)):
            with pytest.raises(DecodeError):
                decode(Reader(body[:size]), version)
