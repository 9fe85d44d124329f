"""What hostile compressed data can make a decoder do: counted in calls, bytes and blocks, not in time."""

from __future__ import annotations

import struct
import zlib
from types import SimpleNamespace
from typing import Any

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord.wire import compression
from kcoord.wire.compression import (
    BLOCK_CHARGE_BYTES,
    CODEC_GZIP,
    CODEC_LZ4,
    CODEC_NONE,
    CODEC_SNAPPY,
    CODEC_ZSTD,
    GZIP_INPUT_SLICE_BYTES,
    GZIP_SLICE_BYTES,
    XERIAL_HEADER,
    DecompressedTooLarge,
    DecompressionError,
    charged_bytes,
    compress,
    decompress,
    survey,
)

MIB = 1024 * 1024
REAL_CODECS = [CODEC_GZIP, CODEC_SNAPPY, CODEC_LZ4, CODEC_ZSTD]
SKIPPABLE = b"\x50\x2a\x4d\x18"


class Work:
    """Counts what the decoders are asked for, and what they make of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.allocated = 0
        self.copied = 0
        for name in ("zstd", "lz4"):
            module = getattr(cramjam, name)
            monkeypatch.setattr(module, "decompress_into", self._counting(module.decompress_into))
        raw = cramjam.snappy.decompress_raw_into
        monkeypatch.setattr(cramjam.snappy, "decompress_raw_into", self._counting(raw))
        fake = SimpleNamespace(error=zlib.error, decompressobj=lambda wbits: GzipWork(self, wbits))
        monkeypatch.setattr(compression, "zlib", fake)

    def _counting(self, real: Any) -> Any:
        def counted(data: bytes, view: memoryview) -> int:
            self.calls += 1
            self.allocated += len(view)
            return int(real(data, view))

        return counted


class GzipWork:
    def __init__(self, work: Work, wbits: int) -> None:
        self.work = work
        self.real = zlib.decompressobj(wbits)

    def decompress(self, data: bytes, size: int) -> bytes:
        assert size <= GZIP_SLICE_BYTES and len(data) <= GZIP_INPUT_SLICE_BYTES
        part = self.real.decompress(data, size)
        self.work.calls += 1
        self.work.allocated += len(part)
        self.work.copied += len(self.real.unconsumed_tail)
        return part

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@pytest.mark.parametrize("codec", REAL_CODECS)
@pytest.mark.parametrize("limit", [1000, MIB, 8 * MIB])
def test_a_bomb_is_worked_off_once_and_up_to_the_limit(codec: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = compress(codec, bytes(64 * MIB))
    work = Work(monkeypatch)
    with pytest.raises(DecompressedTooLarge):
        decompress(codec, bomb, limit)
    assert work.allocated <= limit + GZIP_SLICE_BYTES
    assert work.calls <= (2 + limit // GZIP_SLICE_BYTES if codec == CODEC_GZIP else 1)
    assert work.copied <= 2 * limit + GZIP_INPUT_SLICE_BYTES


@pytest.mark.parametrize("codec", [CODEC_LZ4, CODEC_ZSTD])
def test_content_of_any_ratio_takes_one_call(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = bytes(5 * MIB) + b"x"
    packed = compress(codec, plain)
    work = Work(monkeypatch)
    assert decompress(codec, packed, 64 * MIB) == plain
    assert work.calls == 1 and work.allocated <= 6 * MIB


@pytest.mark.parametrize("codec", REAL_CODECS)
@given(data=st.binary(max_size=3000), times=st.integers(1, 400))
def test_a_survey_bounds_the_content(codec: int, data: bytes, times: int) -> None:
    plain = data * times
    packed = compress(codec, plain)
    found = survey(codec, packed)
    assert found.bytes_max == -1 if codec == CODEC_GZIP else found.bytes_max >= len(plain)
    assert decompress(codec, packed, len(plain), found) == plain
    # What real writers make is charged for its content, and a little for the smallest batch.
    assert charged_bytes(len(plain), found.blocks) <= max(len(plain), 8 * len(packed), 3 * BLOCK_CHARGE_BYTES)


@pytest.mark.parametrize("codec", [CODEC_SNAPPY, CODEC_LZ4, CODEC_ZSTD])
@given(data=st.binary(min_size=1, max_size=300), cut=st.integers(1, 300), flips=st.lists(st.integers(0), max_size=4))
def test_damaged_data_stays_within_its_survey(codec: int, data: bytes, cut: int, flips: list[int]) -> None:
    packed = bytearray(compress(codec, data * 20)[:cut])
    for flip in flips:
        packed[flip % len(packed)] ^= 1 << flip % 8
    try:
        found = survey(codec, bytes(packed))
        content = decompress(codec, bytes(packed), MIB, found)
    except DecompressionError:
        return
    assert len(content) <= found.bytes_max


def zstd_frame(blocks: bytes, header: bytes = b"\x00\x58") -> bytes:
    return b"\x28\xb5\x2f\xfd" + header + blocks


def test_empty_blocks_and_frames_are_counted() -> None:
    empty_zstd = zstd_frame(bytes(3) * 5000 + b"\x01\x00\x00")
    assert decompress(CODEC_ZSTD, empty_zstd, 10) == b""
    assert survey(CODEC_ZSTD, empty_zstd).blocks == 5002
    frames = zstd_frame(b"\x01\x00\x00") * 300
    assert decompress(CODEC_ZSTD, frames, 10) == b""
    assert survey(CODEC_ZSTD, frames).blocks == 600
    padding = compress(CODEC_LZ4, b"x") + (SKIPPABLE + bytes(4)) * 1000
    assert survey(CODEC_LZ4, padding).blocks == 1002
    block = struct.pack(">I", 3) + bytes(cramjam.snappy.compress_raw(b"x"))
    assert survey(CODEC_SNAPPY, XERIAL_HEADER + block * 1000).blocks == 1000
    assert charged_bytes(10, 1000) == 1000 * BLOCK_CHARGE_BYTES
    # 20 bytes of gzip may be a block.
    assert survey(CODEC_GZIP, bytes(MIB)).blocks * BLOCK_CHARGE_BYTES == 8 * MIB


def test_a_survey_ends_where_there_are_too_many_blocks() -> None:
    cut_short = b"\xff\xff"
    block = struct.pack(">I", 3) + bytes(cramjam.snappy.compress_raw(b"x"))
    for codec, data in (
        (CODEC_ZSTD, zstd_frame(bytes(3) * 5000 + cut_short)),
        (CODEC_ZSTD, zstd_frame(b"\x01\x00\x00") * 5000 + cut_short),
        (CODEC_LZ4, compress(CODEC_LZ4, b"") * 5000 + cut_short),
        (CODEC_LZ4, compress(CODEC_LZ4, b"")[:7] + b"\x00\x00\x00\x80" * 5000 + cut_short),
        (CODEC_SNAPPY, XERIAL_HEADER + block * 5000 + cut_short),
    ):
        assert survey(codec, data, 4000).blocks in (4001, 4002)
        with pytest.raises(DecompressionError):
            survey(codec, data)


def test_frames_glued_together_and_skipped_ones() -> None:
    for codec in (CODEC_LZ4, CODEC_ZSTD):
        one, two = compress(codec, b"one"), compress(codec, b"two" * 1000)
        padding = SKIPPABLE + struct.pack("<I", 5) + b"hello"
        assert decompress(codec, one + padding + two, 3003) == b"one" + b"two" * 1000
        with pytest.raises(DecompressionError, match="unknown frame"):
            decompress(codec, one + b"garbage", 100)
        with pytest.raises(DecompressionError, match="truncated"):
            decompress(codec, one + SKIPPABLE + b"\xff\xff\xff\xff", 100)


@pytest.mark.parametrize("kind", ["repeated", "raw"])
def test_what_a_frame_states_wrongly_is_no_bound_to_cross(kind: str) -> None:
    size = 1000
    blocks = struct.pack("<I", size << 3 | 2 | 1)[:3] + b"x" if kind == "repeated" else None
    if blocks is None:
        blocks = struct.pack("<I", size << 3 | 1)[:3] + bytes(size)
    assert len(decompress(CODEC_ZSTD, zstd_frame(blocks), 2000)) == size
    for stated in (size - 1, size + 1, 1 << 62, (1 << 64) - 1):
        lying = zstd_frame(blocks, b"\xe0" + struct.pack("<Q", stated))
        with pytest.raises(DecompressionError) as caught:
            decompress(CODEC_ZSTD, lying, 2000)
        assert not isinstance(caught.value, DecompressedTooLarge)


@pytest.mark.parametrize("level", [0, 6])
@pytest.mark.parametrize("size", [GZIP_SLICE_BYTES - 1, GZIP_SLICE_BYTES, GZIP_SLICE_BYTES + 1, 3 * MIB])
def test_gzip_in_slices(size: int, level: int) -> None:
    plain = (bytes(range(251)) * (size // 251 + 1))[:size]
    packer = zlib.compressobj(level, zlib.DEFLATED, 31)
    packed = packer.compress(plain) + packer.flush()
    assert decompress(CODEC_GZIP, packed, size) == plain
    assert decompress(CODEC_GZIP, packed * 3, 3 * size) == plain * 3
    with pytest.raises(DecompressedTooLarge):
        decompress(CODEC_GZIP, packed * 3, 3 * size - 1)
    with pytest.raises(DecompressionError, match="truncated"):
        decompress(CODEC_GZIP, packed[:-1], size)


def test_a_survey_of_what_is_no_codec() -> None:
    assert survey(CODEC_NONE, b"abc").bytes_max == 3
    for codec in (CODEC_SNAPPY, CODEC_LZ4, CODEC_ZSTD, 5):
        with pytest.raises(DecompressionError):
            survey(codec, b"")
