"""The primitives at their edges, interpreted and compiled alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord.wire import primitives as p


def written(function: Any, value: Any) -> bytes:
    w = p.BytesWriter()
    function(w, value)
    return w.getvalue()


@given(st.integers(0, 2**32 - 1))
def test_uvarint_round_trip(value: int) -> None:
    data = written(p.write_uvarint, value)
    reader = p.Reader(data)
    assert reader.uvarint() == value
    assert reader.end - reader.pos == 0
    assert p.uvarint_size(value) == len(data)


@given(st.integers(-(2**31), 2**31 - 1))
def test_varint_round_trip(value: int) -> None:
    data = written(p.write_varint, value)
    assert p.Reader(data).varint() == value
    assert p.varint_size(value) == len(data)


def varlong(value: int) -> bytes:
    """The signed (zigzag) varint of an int64."""
    rest = (value << 1) ^ (value >> 63)
    data = bytearray()
    while rest >= 128:
        data.append((rest & 127) | 128)
        rest >>= 7
    data.append(rest)
    return bytes(data)


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlong_round_trip(value: int) -> None:
    assert p.Reader(varlong(value)).varlong() == value


def test_varints_have_known_bytes() -> None:
    # From the protocol guide's zigzag and base-128 rules, worked out by hand.
    assert written(p.write_uvarint, 300) == b"\xac\x02"
    assert written(p.write_varint, -1) == b"\x01"
    assert written(p.write_varint, 63) == b"\x7e"
    assert written(p.write_varint, 64) == b"\x80\x01"


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x10", b"\xff" * 6])
def test_uvarint_longer_than_32_bits_is_refused(data: bytes) -> None:
    with pytest.raises(p.DecodeError):
        p.Reader(data).uvarint()


def test_varlong_longer_than_64_bits_is_refused() -> None:
    with pytest.raises(p.DecodeError):
        p.Reader(b"\xff" * 9 + b"\x02").varlong()


EDGES = [
    (p.write_int8, "int8", -128, 127),
    (p.write_int16, "int16", -0x8000, 0x7FFF),
    (p.write_uint16, "uint16", 0, 0xFFFF),
    (p.write_int32, "int32", -0x80000000, 0x7FFFFFFF),
    (p.write_uint32, "uint32", 0, 0xFFFFFFFF),
    (p.write_int64, "int64", -(2**63), 2**63 - 1),
]


@pytest.mark.parametrize(("write", "read", "low", "high"), EDGES)
def test_integers_at_their_edges(write: Any, read: str, low: int, high: int) -> None:
    for value in (low, low + 1, 0, 1, high - 1, high):
        if low <= value <= high:
            assert getattr(p.Reader(written(write, value)), read)() == value
    for value in (low - 1, high + 1):
        with pytest.raises((p.EncodeError, OverflowError)):
            written(write, value)


@pytest.mark.parametrize(("write", "read", "low", "high"), EDGES)
def test_integers_cut_short_are_refused(write: Any, read: str, low: int, high: int) -> None:
    data = written(write, high)
    for cut in range(len(data)):
        with pytest.raises(p.DecodeError):
            getattr(p.Reader(data[:cut]), read)()


@pytest.mark.parametrize("read", ["array_len", "compact_array_len", "nullable_array_len", "compact_nullable_array_len"])
def test_an_array_longer_than_the_bytes_is_refused(read: str) -> None:
    data = b"\x7f\xff\xff\xff" if "compact" not in read else b"\xff\xff\xff\x7f"
    with pytest.raises(p.DecodeError, match="array of"):
        getattr(p.Reader(data + b"\x00" * 100), read)(1)


def test_elements_of_one_message_have_a_budget() -> None:
    count = p.ARRAY_ELEMENTS_MAX // 2 + 1
    data = count.to_bytes(4, "big") * 2 + b"\x00" * count
    reader = p.Reader(data)
    assert reader.array_len(1) == count
    with pytest.raises(p.DecodeError, match=f"this message may have {p.ARRAY_ELEMENTS_MAX - count} more"):
        reader.array_len(1)


def test_a_reader_may_allow_fewer_elements() -> None:
    data = (5).to_bytes(4, "big") + b"\x00" * 5
    assert p.Reader(data, 0, 5).array_len(1) == 5
    with pytest.raises(p.DecodeError, match="array of 5 elements, this message may have 4 more"):
        p.Reader(data, 0, 4).array_len(1)


def test_strings_and_bytes() -> None:
    assert written(p.write_string, "aé") == b"\x00\x03a\xc3\xa9"
    assert written(p.write_nullable_string, None) == b"\xff\xff"
    assert written(p.write_compact_string, "ab") == b"\x03ab"
    assert written(p.write_compact_nullable_string, None) == b"\x00"
    assert written(p.write_bytes, b"x") == b"\x00\x00\x00\x01x"
    assert written(p.write_nullable_bytes, None) == b"\xff\xff\xff\xff"
    assert written(p.write_compact_nullable_bytes, b"") == b"\x01"
    with pytest.raises(p.DecodeError):
        p.Reader(b"\xff\xff").string()
    with pytest.raises(p.DecodeError):
        p.Reader(b"\x00").compact_string()
    with pytest.raises(p.DecodeError, match="UTF-8"):
        p.Reader(b"\x00\x01\xff").string()
    with pytest.raises(p.DecodeError):
        p.Reader(b"\x00\x05ab").string()
    with pytest.raises(p.EncodeError):
        written(p.write_string, "x" * 32768)


def test_unknown_tags_are_skipped_within_limits() -> None:
    reader = p.Reader(b"\x02\x00\x01a\x05\x02bc" + b"rest")
    reader.skip_tags()
    assert reader.end - reader.pos == 4
    with pytest.raises(p.DecodeError, match="ascending"):
        p.Reader(b"\x02\x05\x00\x05\x00").skip_tags()
    with pytest.raises(p.DecodeError, match="65 tagged fields"):
        p.Reader(b"\x41" + b"\x00" * 200).skip_tags()
    with pytest.raises(p.DecodeError):
        p.Reader(b"\x01\x00\x7fab").skip_tags()


def test_trailing_bytes_are_noticed() -> None:
    reader = p.Reader(b"\x00\x01\x02")
    reader.int16()
    with pytest.raises(p.DecodeError, match="1 trailing"):
        reader.expect_end()


def test_patch_int32_overwrites_in_place() -> None:
    w = p.BytesWriter()
    w.write(b"ab\x00\x00\x00\x00cd")
    p.patch_int32(w, 2, 0x01FF00AB)
    assert w.getvalue() == b"ab\x01\xff\x00\xabcd"
