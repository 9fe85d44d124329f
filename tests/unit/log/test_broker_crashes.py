"""Every state that a broker can leave while it changes segments, against what Kafka made of it.

tests/data/README.md says where the states and the answers come from.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from kcoord.log.reader import DamagedBytes, read_batches, recovered_files
from kcoord.spark.reader.discovery import discover
from kcoord.spark.reader.filesystem import Storage
from tests.data.known import BROKER, lines_of

CRASHES = BROKER / "crashes"
PARTITION = "__consumer_offsets-0"
STATES = lines_of(CRASHES / "states.jsonl.gz")
CHANGES = sorted({state["change"] for state in STATES})


def lay_out(state: dict[str, Any], root: Path) -> Path:
    path = root / PARTITION
    path.mkdir(parents=True)
    for name, content in state["files"].items():
        (path / name).symlink_to(CRASHES / "files" / content)
    return path


def pieces(data: bytes, state: dict[str, Any]) -> list[list[int]]:
    """Data in pieces of the size of Kafka's segments, as its answer has them; what is over is one more."""
    found = []
    position = 0
    for base, size, _ in state["segments"]:
        found.append([base, size, zlib.crc32(data[position : position + size])])
        position += size
    return [*found, [-1, len(data) - position, 0]] if position < len(data) else found


@pytest.mark.parametrize("change", CHANGES)
def test_segments_are_those_that_kafka_has_after_its_start(change: str, tmp_path: Path) -> None:
    equal = 0
    states = [state for state in STATES if state["change"] == change]
    for number, state in enumerate(states):
        path = lay_out(state, tmp_path / str(number))
        found = recovered_files(str(path))
        data = b"".join((path / name).read_bytes() for _, name in found.segments)
        # A segment whose offsets overflow is damaged for us, and nothing of that is passed over in silence.
        if "split" in change and any(isinstance(item, DamagedBytes) for item in read_batches(str(path))):
            continue
        equal += 1
        assert pieces(data, state) == state["segments"], (change, sorted(state["files"]))
        assert [base for base, _ in found.segments] == [base for base, _, _ in state["segments"]]
        (listed,) = discover(*Storage(str(path.parent)).open())
        assert [Path(one.path).name for one in listed.segments] == [name for _, name in found.segments]
    assert equal == len(states) or ("split" in change and equal > 0)


def test_the_states_are_all_that_the_changes_pass_through() -> None:
    endings = {name.partition(".")[2] for state in STATES for name in state["files"]}
    for kind in ("log", "index", "timeindex", "txnindex"):
        for suffix in (".cleaned", ".swap", ".deleted"):
            assert kind + suffix in endings
    assert len(CHANGES) == 8 and len(STATES) > 200
