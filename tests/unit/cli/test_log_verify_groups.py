"""`kcoord log verify` and the rules about consumer groups: batches, segments, compaction and damage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kcoord.core.groups.members import ConsumerMember
from kcoord.core.groups.records import (
    current_record,
    current_tombstone,
    epoch_record,
    member_record,
    member_tombstone,
)
from kcoord.core.outcome import CoordinatorRecord
from kcoord.log.serde import encode_record
from kcoord.wire.record_batch import BatchBuilder
from tests.unit.cli.rig import METADATA, OFFSETS, START_MS, batches_of, run, stopped

FIRST = 10  # where the history that was there ends
TOPIC = b"t" * 16


def problems(path: Path, severity: str = "error") -> list[tuple[str, int | None]]:
    """(check, offset) of each problem."""
    document = json.loads(run("verify", path, "-o", "json").stdout)
    return [(found["check"], found["offset"]) for found in document["problems"] if found["severity"] == severity]


def member(name: str) -> CoordinatorRecord:
    return member_record("g", ConsumerMember(name))


def epoch(number: int) -> CoordinatorRecord:
    return epoch_record("g", number, 1)


def current(name: str, number: int, *partitions: int) -> CoordinatorRecord:
    made = ConsumerMember(name)
    made.member_epoch = number
    made.assigned = {TOPIC: dict.fromkeys(partitions, number)}
    return current_record("g", made)


def batch(base: int, *records: CoordinatorRecord, producer: tuple[int, int] = (-1, -1)) -> bytes:
    builder = BatchBuilder()
    for record in records:
        assert record.key is not None
        key, value = encode_record(record.key, record.value)
        builder.append(START_MS + 60_000, key, value)
    return builder.build(base, 0, *producer)


class Written:
    """A closed data directory with some segments of batches behind its history."""

    def __init__(self, path: Path) -> None:
        self.path = stopped(path)
        self.log = path / OFFSETS
        self.segment = self.log / f"{0:020d}.log"
        self.end = FIRST
        for stale in self.log.glob("*.*index"):
            stale.unlink()

    def add(self, *records: CoordinatorRecord, is_left_out: bool = False, **options: Any) -> None:
        """A batch; `is_left_out` counts its offsets and does not write it."""
        if not is_left_out:
            data = batch(self.end, *records, **options)
            self.segment.write_bytes(self.segment.read_bytes() + data)
        self.end += len(records)

    def roll(self) -> None:
        self.segment = self.log / f"{self.end:020d}.log"
        self.segment.write_bytes(b"")

    def cleaned_upto(self, offset: int) -> None:
        (self.path / "cleaner-offset-checkpoint").write_text(f"0\n1\n__consumer_offsets 0 {offset}\n")


@pytest.fixture
def log(tmp_path: Path) -> Written:
    written = Written(tmp_path)
    # Offsets 10 to 14.
    written.add(member("a"), member("b"), epoch(3), current("a", 3, 0, 1), current("b", 3, 2))
    return written


def test_a_partition_with_two_members(log: Written) -> None:
    log.add(current("b", 3, 1, 2), current("a", 3, 0))
    log.add(current("a", 3, 0, 1))
    assert problems(log.path) == [("ownership", 17)]
    document = json.loads(run("verify", log.path, "-o", "json").stdout)
    (found,) = document["problems"]
    position = sum(map(len, batches_of(log.segment)[:-1]))
    assert (found["file"], found["position"], found["log"]) == (str(log.segment), position, OFFSETS)
    assert "-1 is owned by both 'a' and 'b' of group 'g'" in found["message"]


def test_a_rule_of_one_key(log: Written) -> None:
    log.roll()
    log.add(epoch(1))
    assert ("group epoch", 15) in problems(log.path)


def test_without_gaps_every_batch_of_every_segment_counts(log: Written) -> None:
    log.add(current("b", 3, 1, 2))
    log.add(current("b", 3, 2))
    log.roll()
    log.add(epoch(4))
    log.roll()
    assert problems(log.path) == [("ownership", 15)]
    # It is told where it was found, though it was held back.
    (found,) = json.loads(run("verify", log.path, "-o", "json").stdout)["problems"]
    assert found["file"].endswith(f"{0:020d}.log") and found["position"] > 0


def compacted(log: Written) -> None:
    """What was right: a gave partition 1 up and b took it, then a left. What is left of it begins with b's."""
    log.add(current("a", 3, 0), is_left_out=True)
    log.add(current("b", 3, 1, 2))
    log.add(epoch(4), is_left_out=True)
    log.roll()
    log.add(current("a", 4, 0))
    log.add(epoch(5))
    log.roll()


def test_nonsense_below_what_was_compacted_is_none(log: Written) -> None:
    compacted(log)
    assert problems(log.path) == []
    log.cleaned_upto(20)
    assert problems(log.path) == []
    # If the cleaner says that it came less far, what is there at its end is wrong.
    log.cleaned_upto(18)
    assert problems(log.path) == [("ownership", 16), ("member epoch", 18)]


def test_what_is_wrong_at_its_end_is_found(log: Written) -> None:
    log.add(current("b", 3, 1, 2))
    log.add(epoch(4), is_left_out=True)
    log.roll()
    log.add(epoch(5))
    log.roll()
    assert problems(log.path) == [("ownership", 15)]
    # What comes behind it puts it right too late.
    log.add(current("b", 3, 2))
    assert problems(log.path) == [("ownership", 15)]
    log.cleaned_upto(17)
    assert problems(log.path) == [("ownership", 15)]


def test_a_gap_above_the_cleaners_checkpoint(log: Written) -> None:
    compacted(log)
    log.cleaned_upto(12)
    assert problems(log.path) == []


def test_after_damage_states_are_unknown(log: Written) -> None:
    log.add(current("a", 3, 0))
    log.add(current("b", 3, 1, 2))
    log.add(epoch(1))
    data = bytearray(log.segment.read_bytes())
    last = batches_of(log.segment)
    data[-len(last[-1]) - len(last[-2]) - 1] ^= 1
    log.segment.write_bytes(data)
    assert problems(log.path) == [("checksum", 15), ("offsets", 16)]


def test_a_compacted_log_whose_end_is_missing(log: Written) -> None:
    log.add(current("a", 3, 0), is_left_out=True)
    log.add(current("b", 3, 1, 2))
    log.add(current("a", 3, 0))
    (log.path / "recovery-point-offset-checkpoint").write_text(f"0\n1\n__consumer_offsets 0 {log.end}\n")
    log.segment.write_bytes(b"".join(batches_of(log.segment)[:-1]))
    log.cleaned_upto(log.end)
    log.segment = log.log / f"{log.end:020d}.log"
    log.segment.write_bytes(b"")
    assert [check for check, _ in problems(log.path)] == ["durable mark"]


def test_members_that_go(log: Written) -> None:
    a = [current_tombstone("g", "a"), member_tombstone("g", "a")]
    log.add(*a)
    assert problems(log.path) == []
    log.add(member_tombstone("g", "b"))
    assert problems(log.path) == [("members", 17)]


def test_epochs_of_producers_are_a_warning(log: Written) -> None:
    log.add(member("c"), producer=(7, 2))
    log.add(member("c"), producer=(7, 1))
    assert problems(log.path) == [] and problems(log.path, "warning") == [("producer epoch", 16)]


def test_without_a_metadata_log(log: Written) -> None:
    """A directory of a broker that is no controller."""
    log.add(current("b", 3, 1, 2))
    shutil.rmtree(log.path / METADATA)
    (log.path / "meta.properties").unlink()
    document = json.loads(run("verify", log.path, "-o", "json").stdout)
    assert [found["check"] for found in document["problems"]] == ["ownership"]
    assert document["replayed"] == {"groups": 2, "offsets": 2, "topics": 0}
