"""Copies that are made exactly once under kills, and copies that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.copy_reader import Progress, first_difference
from tests.crash.kill_copies import LIBRARIES, Copies


@pytest.mark.nightly
def test_kills_under_three_client_libraries(tmp_path: Path) -> None:
    copies = Copies(tmp_path / "data", 1, messages=2000)
    copies.run()
    assert copies.problems == []
    assert [one.library for one in copies.copiers] == list(LIBRARIES)
    assert all(one.commits > 0 for one in copies.copiers)
    assert copies.cycles > 0


def test_a_record_twice_lost_or_aborted_is_noticed() -> None:
    assert first_difference([b"0", b"1", b"2"]) == ""
    assert first_difference([b"0", b"1", b"1"]) == "record 2 is 1"
    assert first_difference([b"0", b"aborted"]) == "record 1 is aborted"
    assert first_difference([b"0", b"2"]) == "record 1 is 2"


@pytest.mark.parametrize("wrong", [b"0", b"2", b"aborted"])
def test_a_reader_beside_the_copy_notices_it_at_once(wrong: bytes) -> None:
    progress = Progress("copies")
    progress.take(1, b"0")
    progress.take(0, b"0")
    assert progress.problems == []
    progress.take(0, wrong)
    assert progress.problems == [f"copies-0: a reader got {wrong.decode()} instead of 1"]
    assert progress.counts == {0: 2, 1: 1}
