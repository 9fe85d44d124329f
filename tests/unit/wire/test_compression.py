"""Codecs: round trips, foreign framings, and limits that hold."""

from __future__ import annotations

import contextlib
import gzip
import tracemalloc
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord.wire.compression import (
    CODEC_GZIP,
    CODEC_LZ4,
    CODEC_SNAPPY,
    CODEC_ZSTD,
    XERIAL_HEADER,
    DecompressedTooLarge,
    DecompressionError,
    compress,
    decompress,
)
from kcoord.wire.crc import crc32c

REAL_CODECS = [CODEC_GZIP, CODEC_SNAPPY, CODEC_LZ4, CODEC_ZSTD]
CODECS = [0, *REAL_CODECS]


def test_crc32c_of_the_standard_check_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(b"x123456789")[1:]) == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=5000), times=st.integers(1, 60))
def test_round_trip(codec: int, data: bytes, times: int) -> None:
    plain = data * times
    packed = compress(codec, plain)
    assert decompress(codec, packed, len(plain)) == plain
    if plain:
        with pytest.raises(DecompressedTooLarge):
            decompress(codec, packed, len(plain) - 1)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_a_bomb_costs_no_more_than_the_limit(codec: int) -> None:
    bomb = compress(codec, bytes(64 * 1024 * 1024))
    limit = 1024 * 1024
    tracemalloc.start()
    try:
        with pytest.raises(DecompressedTooLarge):
            decompress(codec, bomb, limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * limit


@pytest.mark.parametrize("codec", REAL_CODECS)
@given(data=st.binary(max_size=300))
def test_garbage_is_an_error_or_bounded(codec: int, data: bytes) -> None:
    with contextlib.suppress(DecompressionError):
        assert len(decompress(codec, data, 10_000)) <= 10_000


@pytest.mark.parametrize("codec", REAL_CODECS)
@pytest.mark.parametrize("keep", [1, 5, 10, -1])
def test_cut_short(codec: int, keep: int) -> None:
    packed = compress(codec, bytes(range(256)) * 10)
    with pytest.raises(DecompressionError):
        decompress(codec, packed[:keep], 1 << 20)


def test_unknown_codec() -> None:
    with pytest.raises(DecompressionError):
        decompress(5, b"", 10)
    with pytest.raises(ValueError):
        compress(5, b"")


def test_raw_snappy_is_read() -> None:
    raw = bytes(cramjam.snappy.compress_raw(b"kafka" * 100))
    assert decompress(CODEC_SNAPPY, raw, 500) == b"kafka" * 100
    with pytest.raises(DecompressedTooLarge):
        decompress(CODEC_SNAPPY, raw, 499)


def test_snappy_lengths_are_checked_before_they_are_used() -> None:
    with pytest.raises(DecompressionError, match="left"):
        decompress(CODEC_SNAPPY, XERIAL_HEADER + b"\x7f\xff\xff\xffabc", 1 << 20)
    with pytest.raises(DecompressionError, match="block of 0"):
        decompress(CODEC_SNAPPY, XERIAL_HEADER + b"\x00\x00\x00\x00", 1 << 20)
    # A raw block that claims to become 4 GiB.
    with pytest.raises(DecompressedTooLarge):
        decompress(CODEC_SNAPPY, b"\xff\xff\xff\xff\x0f" + b"a", 1 << 20)


def test_snappy_streams_glued_together() -> None:
    packed = compress(CODEC_SNAPPY, b"one") + compress(CODEC_SNAPPY, b"two")
    assert decompress(CODEC_SNAPPY, packed, 6) == b"onetwo"


def test_gzip_members() -> None:
    member = gzip.compress(b"x")
    assert decompress(CODEC_GZIP, member * 3, 3) == b"xxx"
    with pytest.raises(DecompressionError, match="members"):
        decompress(CODEC_GZIP, member * 1000, 1 << 20)
    with pytest.raises(DecompressionError):
        decompress(CODEC_GZIP, zlib.compress(b"not gzip"), 1 << 20)


def test_lz4_is_a_frame_of_independent_blocks() -> None:
    packed = compress(CODEC_LZ4, bytes(200_000))
    assert packed[4] == 0x60  # version 1, independent blocks, nothing else
    assert bytes(cramjam.lz4.decompress(packed)) == bytes(200_000)
    # What other writers make: linked blocks with a content checksum.
    assert decompress(CODEC_LZ4, bytes(cramjam.lz4.compress(b"ab" * 100_000)), 200_000) == b"ab" * 100_000
