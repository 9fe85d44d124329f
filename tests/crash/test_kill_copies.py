"""Two rounds of copies that are made exactly once, and a copy that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.kill_copies import LIBRARIES, Copies, first_difference


@pytest.mark.nightly
def test_two_kills_under_two_client_libraries(tmp_path: Path) -> None:
    copies = Copies(tmp_path / "data", 1, records=600)
    copies.run(2)
    assert copies.problems == []
    assert [one.library for one in copies.copiers] == list(LIBRARIES)
    assert all(one.commits > 0 for one in copies.copiers)


def test_a_record_twice_or_aborted_is_noticed() -> None:
    assert first_difference([b"0", b"1", b"1"]) == "record 2 is 1"
    assert first_difference([b"0", b"aborted"]) == "record 1 is aborted"
    assert first_difference([b"0", b"2"]) == "record 1 is 2"
