"""Every message at every version: what is encoded decodes to the same, and damaged bytes never escape as anything
but a DecodeError."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcoord.codegen.schema import Message, snake_case
from kcoord.wire.primitives import BytesWriter, DecodeError, Reader
from tests.unit.protocol import strategies

CASES = [
    pytest.param(message, version, id=f"{message.name}-v{version}")
    for message in strategies.MESSAGES
    for version in range(message.valid.low, message.valid.high + 1)
]


@pytest.mark.parametrize(("message", "version"), CASES)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_round_trip(message: Message, version: int, data: st.DataObject) -> None:
    holder = strategies.module(message)
    original = data.draw(strategies.struct_values(holder, message, message.root, version))
    name = snake_case(message.name)
    w = BytesWriter()
    getattr(holder, f"encode_{name}")(w, original, version)
    encoded = w.getvalue()
    reader = Reader(encoded)
    decoded = getattr(holder, f"decode_{name}")(reader, version)
    reader.expect_end()
    assert decoded == original
    if encoded:
        cut = data.draw(st.integers(0, len(encoded) - 1))
        with pytest.raises(DecodeError):
            truncated = Reader(encoded[:cut])
            getattr(holder, f"decode_{name}")(truncated, version)
            truncated.expect_end()
            raise DecodeError("a prefix was a whole message of another meaning")
        flip = data.draw(st.integers(0, len(encoded) * 8 - 1))
        damaged = bytearray(encoded)
        damaged[flip // 8] ^= 1 << (flip % 8)
        with contextlib.suppress(DecodeError):
            getattr(holder, f"decode_{name}")(Reader(bytes(damaged)), version)
