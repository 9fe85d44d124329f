"""The checksum of batches, wherever its function comes from."""

from __future__ import annotations

from importlib.machinery import PathFinder

import crc32c as package
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord.wire.crc import crc32c, find_checksum


@given(st.binary(max_size=300), st.integers(0, 0xFFFFFFFF))
def test_it_is_that_of_the_package(data: bytes, value: int) -> None:
    expected = package.crc32c(data, value)
    assert crc32c(data, value) == crc32c(bytearray(data), value) == crc32c(memoryview(data), value) == expected


def test_it_is_found_where_there_are_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in one file with everything in it."""
    assert find_checksum() is not package.crc32c
    monkeypatch.setattr(PathFinder, "find_spec", lambda *_: None)
    assert find_checksum() is package.crc32c
