"""`kcoord log verify` and `repair` on logs with aborted and open transactions."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcoord.core.outcome import OFFSETS_TOPIC, LogId
from kcoord.core.transactions.state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
)
from kcoord.history.invariants import GroupInvariants
from kcoord.log.serde import encode_record
from kcoord.log.storage import DiskStorage
from kcoord.log.transaction_index import ENTRY
from kcoord.protocol.records.transaction_log import PartitionsSchema, TransactionLogKey, TransactionLogValue
from tests.unit.cli.rig import batches_of, run
from tests.unit.cli.test_log_repair import damage, executed, planned
from tests.unit.cli.test_log_verify import SEGMENT, append, problems
from tests.unit.engine.test_transaction_recovery import Rig
from tests.unit.engine.test_txn_offset_commit import Rig as OffsetsRig
from tests.unit.engine.transaction_logs import commit, new_core


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Several segments; some transactions begin in one of them and end in another, and one stays open."""
    rig = Rig(DiskStorage(str(tmp_path)))
    for i in range(14):
        rig.write(1 + i % 3)
        rig.plain()
        if i % 3 == 2:
            rig.end(1, False)
            rig.end(2, i == 5)
    rig.write(3)
    assert len(rig.tp.log.segments) > 3
    rig.engine.stop()
    return rig


def indexes(path: Path) -> dict[Path, list[tuple[int, ...]]]:
    found = sorted((path / "t-0").glob("*.txnindex"))
    return {file: list(ENTRY.iter_unpack(file.read_bytes())) for file in found}


class Second(Rig):
    """A rig over a directory that has the topic already."""

    def __init__(self, path: Path) -> None:
        self.storage = DiskStorage(str(path))
        self.has_gaps = False
        self.open()


def check(path: Path, before: Rig) -> None:
    """An engine that opens the directory shows readers what the first one did."""
    after = Second(path)
    after.written, after.ended = before.written, before.ended
    after.current, after.firsts = before.current, before.firsts
    after.check()
    after.engine.stop()


def test_nothing_is_wrong(rig: Rig, tmp_path: Path) -> None:
    assert len(indexes(tmp_path)) > 1
    assert problems(tmp_path) == [] and planned(tmp_path) == []
    check(tmp_path, rig)


@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("change", ["missing", "first", "torn"])
def test_an_index_that_misses_a_transaction(rig: Rig, tmp_path: Path, which: int, change: str) -> None:
    right = indexes(tmp_path)
    path = list(right)[which]
    data = path.read_bytes()
    if change == "missing":
        path.unlink()
    elif change == "first":
        path.write_bytes(data[ENTRY.size :])
    else:
        path.write_bytes(data[:-1])
    assert [one[:2] for one in problems(tmp_path)] == [("index", "t-0")]
    [repair] = planned(tmp_path)
    assert (repair["action"], repair["file"]) == ("rebuild index", str(path))
    executed(tmp_path)
    assert indexes(tmp_path) == right
    assert run("verify", tmp_path, "--strict").exit_code == 0
    check(tmp_path, rig)


def test_a_log_that_was_cut_knows_what_was_aborted_before_the_cut(rig: Rig, tmp_path: Path) -> None:
    """The cut segment is the last one then, and a clean stop would vouch for its indexes."""
    marker_offset = [entry[3] for entries in indexes(tmp_path).values() for entry in entries][-1]
    later = min(offset for offset in rig.written if offset > marker_offset + 1)
    value = rig.written[later][0]
    segment = max(file for file in (tmp_path / "t-0").glob("*.log") if int(file.stem) <= later)
    damage(segment, value)
    assert {repair["action"] for repair in planned(tmp_path)} >= {"cut"}
    executed(tmp_path)
    assert problems(tmp_path) == []
    rig.written = {offset: one for offset, one in rig.written.items() if offset < later}
    known = {one for _, one in rig.written.values()}
    rig.current = {producer: one for producer, one in rig.current.items() if one in known}
    rig.firsts = {producer: rig.firsts[producer] for producer in rig.current}
    for one in known - set(rig.ended) - {0}:
        assert one in rig.current.values()
    check(tmp_path, rig)


def state(status: int) -> tuple[bytes, bytes | None]:
    partitions = [PartitionsSchema("t", [0])]
    value = TransactionLogValue(77, 77, transaction_status=status, transaction_partitions=partitions)
    return encode_record(TransactionLogKey("other"), value)


@pytest.mark.parametrize(
    ("statuses", "bad"),
    [
        ((ONGOING, PREPARE_COMMIT, PREPARE_COMMIT, COMPLETE_COMMIT, EMPTY), None),
        ((ONGOING, PREPARE_ABORT, COMPLETE_ABORT), None),
        ((PREPARE_COMMIT, COMPLETE_ABORT), 1),
        ((PREPARE_ABORT, COMPLETE_COMMIT), 1),
        ((PREPARE_COMMIT, ONGOING), 1),
    ],
)
def test_a_transaction_ends_as_it_was_decided(
    rig: Rig, tmp_path: Path, statuses: tuple[int, ...], bad: int | None
) -> None:
    log = "__transaction_state-0"
    last = batches_of(tmp_path / log / SEGMENT)[-1]
    end = int.from_bytes(last[:8], "big") + 1
    append(tmp_path, log, *[state(status) for status in statuses])
    assert problems(tmp_path) == ([] if bad is None else [("transaction", log, end + bad)])


def test_offsets_of_transactions_are_pending_for_the_rules() -> None:
    log = LogId(OFFSETS_TOPIC, 0)
    rules = GroupInvariants(new_core())
    key, value = commit(("g", "t", 0), 7)
    assert rules.replay(log, 0, key, value, 5) == []
    assert rules.core.offsets.has_pending("g", "t", 0) and rules.core.offsets.get("g", "t", 0) is None


@pytest.mark.parametrize("version", [3, 5])
def test_nothing_is_wrong_with_offsets_of_transactions(tmp_path: Path, version: int) -> None:
    rig = OffsetsRig(DiskStorage(str(tmp_path)), version=version)
    for number in range(6):
        rig.plain(number)
        assert rig.commit(number, number % 3, number % 2) == 0
        if number % 3:
            rig.end(number % 2 == 0, number % 2)
    rig.engine.stop()
    assert problems(tmp_path) == [] and problems(tmp_path, "warning") == []
