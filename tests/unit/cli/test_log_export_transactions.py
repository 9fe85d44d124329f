"""`kcoord log export --csv` with offsets from transactions: it has what the coordinator answers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kcoord.log.committed_offsets import CommittedOffsets, Place
from kcoord.log.storage import DiskStorage
from kcoord.protocol import apis
from kcoord.protocol.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.unit.cli.rig import run
from tests.unit.engine.test_txn_offset_commit import NOW, Rig

PLACE = ("g", "t", 0)


def exported(path: Path) -> list[str]:
    result = run("export", "-", "--csv", "--data", path)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def live(rig: Rig) -> list[str]:
    return sorted(
        f"{group},{topic},{partition},{stored.committed_offset}"
        for group, topics in rig.engine.core.offsets.by_group.items()
        for topic, partitions in topics.items()
        for partition, stored in partitions.items()
    )


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(DiskStorage(str(tmp_path)))


def test_an_aborted_transaction_does_not_count(rig: Rig, tmp_path: Path) -> None:
    rig.plain(5)
    rig.commit(99)
    rig.end(False)
    rig.commit(98, partition=1)
    rig.end(False)
    rig.engine.stop()
    assert exported(tmp_path) == ["g,t,0,5"]


def test_an_open_transaction_does_not_count(rig: Rig, tmp_path: Path) -> None:
    rig.plain(5)
    rig.commit(99)
    rig.commit(98, partition=1)
    rig.engine.stop()
    assert exported(tmp_path) == ["g,t,0,5"]


def test_a_committed_one_counts_at_its_records(rig: Rig, tmp_path: Path) -> None:
    rig.plain(5)
    rig.commit(7)
    rig.commit(8, partition=1)
    rig.plain(6, partition=1)
    rig.commit(9, number=1, partition=2)
    rig.end(False, number=1)
    rig.end(True)
    rig.engine.stop()
    # For partition 1 the plain commit is newer than the record of the transaction, though not than its marker.
    assert exported(tmp_path) == ["g,t,0,7", "g,t,1,6"]


def test_a_marker_above_the_durable_mark_does_not_count(rig: Rig, tmp_path: Path) -> None:
    rig.plain(5)
    rig.commit(7)
    rig.engine.directory.write_recovery_points()
    rig.end(True)
    assert exported(tmp_path) == ["g,t,0,5"]
    rig.engine.directory.write_recovery_points()
    assert exported(tmp_path) == ["g,t,0,7"]
    rig.engine.stop()


@pytest.mark.parametrize("seed", range(6))
def test_random_histories(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(DiskStorage(str(tmp_path)))
    for offset in range(60):
        step, partition, number = rng.randrange(7), rng.randrange(3), rng.randrange(3)
        if step < 3:
            rig.commit(offset, partition, number)
        elif step == 3:
            rig.plain(offset, partition)
        elif step < 6:
            rig.end(rng.random() < 0.5, number)
        else:
            topics = [OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(partition)])]
            rig.client.ask(apis.OFFSET_DELETE, 0, OffsetDeleteRequest("g", topics), NOW)
    rig.engine.stop()
    expected = live(rig)
    assert exported(tmp_path) == expected
    result = run("compact", tmp_path, "--roll", "--history", "0")
    assert result.exit_code == 0, result.output
    assert exported(tmp_path) == expected


def committed(offsets: CommittedOffsets) -> dict[Place, int]:
    return {place: commit[1] for place, commit in offsets.by_place.items()}


def test_a_tombstone_drops_what_transactions_hold() -> None:
    """DeleteGroups writes them for offsets of open transactions, too."""
    offsets = CommittedOffsets()
    offsets.commit(PLACE, (0, 5), -1)
    offsets.commit(PLACE, (1, 6), 1)
    offsets.commit(PLACE, (2, 7), 2)
    offsets.commit(("g", "t", 1), (3, 8), 2)
    offsets.remove(PLACE)
    offsets.commit(PLACE, (5, 9), 3)
    for producer_id in (1, 2):
        offsets.end_transaction(producer_id, True)
    assert committed(offsets) == {("g", "t", 1): 8}
    offsets.end_transaction(3, True)
    assert committed(offsets) == {("g", "t", 1): 8, PLACE: 9}
    assert not offsets.held and not offsets.producers


def test_the_last_record_of_a_key_counts_whichever_marker_comes_first() -> None:
    offsets = CommittedOffsets()
    offsets.commit(PLACE, (0, 5), 1)
    offsets.commit(PLACE, (1, 6), 2)
    offsets.commit(PLACE, (2, 7), 1)
    offsets.end_transaction(1, True)
    offsets.end_transaction(2, True)
    offsets.end_transaction(3, True)
    assert committed(offsets) == {PLACE: 7}
