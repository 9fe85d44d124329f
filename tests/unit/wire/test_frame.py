"""Cutting frames: any chunking gives the same frames, and sizes are checked before anything is buffered."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord.wire.frame import FrameError, FrameLimits, FrameSplitter

LIMITS = FrameLimits({3: 100, 8: 1000})
LARGE = 4_000_000


def frame(api_key: int, size: int) -> bytes:
    body = api_key.to_bytes(2, "big") + bytes(i % 251 for i in range(size - 2))
    return size.to_bytes(4, "big") + body


@given(st.lists(st.tuples(st.sampled_from([3, 8]), st.integers(10, 100)), max_size=6), st.data())
def test_any_chunking_gives_the_same_frames(shapes: list[tuple[int, int]], data: st.DataObject) -> None:
    frames = [frame(key, size) for key, size in shapes]
    stream = b"".join(frames)
    splitter = FrameSplitter(LIMITS)
    found: list[bytes] = []
    position = 0
    while position < len(stream):
        step = data.draw(st.integers(1, 400))
        chunk = stream[position : position + step]
        position += step
        start = 0
        # A part of the chunk at a time, some of them with what belongs to one frame.
        while start < len(chunk):
            part = splitter.frame_bytes(chunk, start) if data.draw(st.booleans()) else data.draw(st.integers(1, 40))
            end = min(start + max(part, 1), len(chunk))
            splitter.feed(chunk, found, start, end)
            start = end
    assert found == [f[4:] for f in frames]
    assert splitter.pending_bytes() == splitter.missing_bytes() == 0


def test_how_many_bytes_a_frame_takes_of_those_that_follow() -> None:
    whole = frame(8, 300)
    splitter = FrameSplitter(LIMITS)
    assert splitter.frame_bytes(b"abc" + whole + whole, 3) == 304
    assert splitter.frame_bytes(whole[:5], 0) == 0
    splitter.feed(whole, [], 0, 100)
    assert splitter.missing_bytes() == splitter.frame_bytes(whole, 100) == 204


def test_the_size_is_checked_from_the_first_six_bytes() -> None:
    for head, reason in (
        ((101).to_bytes(4, "big") + b"\x00\x03", "at most 100"),
        ((50).to_bytes(4, "big") + b"\x00\x63", "unknown api key 99"),
        (b"\xff\xff\xff\xff\x00\x03", "frame of -1 bytes"),
        ((9).to_bytes(4, "big") + b"\x00\x03", "frame of 9 bytes"),
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
    ):
        with pytest.raises(FrameError, match=reason):
            FrameSplitter(LIMITS).feed(head, [])


def test_frames_before_a_bad_one_are_kept() -> None:
    found: list[bytes] = []
    with pytest.raises(FrameError):
        FrameSplitter(LIMITS).feed(frame(3, 20) + b"GET / HT", found)
    assert len(found) == 1


def test_five_bytes_wait_for_the_sixth() -> None:
    splitter = FrameSplitter(LIMITS)
    found: list[bytes] = []
    whole = frame(8, 300)
    splitter.feed(whole[:5], found)
    assert found == [] and splitter.pending_bytes() == 5
    splitter.feed(whole[5:], found)
    assert found == [whole[4:]]


def test_a_large_frame_is_put_together_once() -> None:
    whole = frame(8, LARGE)
    chunks = [whole[start : start + 65_536] for start in range(0, LARGE + 4, 65_536)]
    chunks[-1] += frame(8, 20)
    splitter = FrameSplitter(FrameLimits({8: LARGE}))
    found: list[bytes] = []
    tracemalloc.start()
    for chunk in chunks:
        splitter.feed(chunk, found)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [len(one) for one in found] == [LARGE, 20] and found[0] == whole[4:]
    assert peak < 1.1 * LARGE, "there is one copy beside the chunks"


@pytest.mark.parametrize("key", [-32768, -1, 0, 127, 128, 10_000, 32767])
def test_each_key_has_its_own_limit(key: int) -> None:
    listed = FrameSplitter(FrameLimits({key: 50}))
    found: list[bytes] = []
    listed.feed((50).to_bytes(4, "big") + key.to_bytes(2, "big", signed=True) + bytes(48), found)
    assert len(found) == 1
    with pytest.raises(FrameError, match="at most 50 allowed"):
        listed.feed((51).to_bytes(4, "big") + key.to_bytes(2, "big", signed=True), found)
    unlisted = FrameSplitter(FrameLimits({5: 50}))
    with pytest.raises(FrameError, match=f"unknown api key {key}$"):
        unlisted.feed((50).to_bytes(4, "big") + key.to_bytes(2, "big", signed=True), found)
