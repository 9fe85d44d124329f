"""What Kafka's own start makes of interrupted changes to segments, asked anew.

tests/unit/log/test_broker_crashes.py compares our reading with the stored answers to the same question.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.data import broker_crashes
from tests.data.known import BROKER, LOGS, lines_of

STATES = lines_of(BROKER / "crashes" / "states.jsonl.gz")


def test_kafka_starts_on_each_stored_state_as_it_did(tmp_path: Path) -> None:
    paths = []
    for number, state in enumerate(STATES):
        path = tmp_path / str(number)
        path.mkdir()
        for name, content in state["files"].items():
            (path / name).write_bytes((BROKER / "crashes" / "files" / content).read_bytes())
        paths.append(path)
    for stored, now in zip(STATES, broker_crashes.ask_kafka(tmp_path, paths), strict=True):
        assert (stored["end"], stored["segments"]) == (now.end, [list(one) for one in now.segments])


def test_the_cleaner_passes_through_the_stored_states(tmp_path: Path) -> None:
    change = "all closed segments are compacted into one"
    source = LOGS / broker_crashes.PARTITION
    states = broker_crashes.states_of(tmp_path, "one", source, "clean", "1000000")
    stored = {_lasting(state["files"]) for state in STATES if state["change"] == change}
    # The old files are removed by a thread of its own, at any moment between the others.
    now = {_lasting(file.name for file in state.iterdir()) for state in states}
    assert now == stored


def _lasting(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name for name in names if not name.endswith((".deleted", ".tmp", ".snapshot")))
