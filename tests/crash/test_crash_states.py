"""A few of the states that `make crash-states` covers, and what keeps that from being an empty promise."""

from __future__ import annotations

import random

import pytest

from kcoord.log.directory import StartsWrite
from kcoord.log.journal import sync_one
from kcoord.log.log_write import LogWrite
from kcoord.log.storage import Syncable
from tests.crash.states import Explorer, TransactionExplorer, record, record_transactions
from tests.crash.workload import Reference
from tests.harness.faulty_storage import FaultyStorage


@pytest.mark.parametrize("busy", [False, True])
def test_some_crash_states_of_the_reference_workload(busy: bool) -> None:
    moments, events = record(1, busy)
    assert {event.kind for event in events} == {
        "create", "delete", "produce", "commit", "delete_records", "producer", "stop",
    }  # fmt: skip
    small = [moment for moment in moments if 0 < len(moment.snapshot.pieces()) <= 6]
    explorer = Explorer(events, random.Random(1), "a sample")
    for moment in random.Random(5).sample(small, 12):
        explorer.explore(moment)
    assert explorer.tally.problems == []
    assert explorer.tally.states > 40


@pytest.mark.parametrize("busy", [False, True])
def test_records_that_were_deleted_stay_deleted(busy: bool) -> None:
    """A crash at any moment from the first DeleteRecords until its files are gone, and around the last one."""
    moments, events = record(1, busy)
    asked = [number for number, event in enumerate(events) if event.is_sent and event.kind == "delete_records"]
    acknowledged = [
        number for number, event in enumerate(events) if not event.is_sent and event.kind == "delete_records"
    ]
    assert len(asked) == len(acknowledged) == 3
    assert all(events[number].answer.topics[0].partitions[0].error_code == 0 for number in acknowledged)
    assert any(moment.next_operation.startswith("unlink a-") for moment in moments)
    mine = [moment for moment in moments if asked[0] < moment.events <= acknowledged[1] + 2 or asked[2] < moment.events]
    small = [moment for moment in mine if len(moment.snapshot.pieces()) <= 6]
    explorer = Explorer(events, random.Random(1), "deleted records")
    for moment in random.Random(3).sample(small, min(len(small), 25)):
        explorer.explore(moment)
    assert explorer.tally.problems == []


def test_without_its_file_the_start_of_a_log_is_lost() -> None:
    def sync(item: Syncable) -> None:
        if not isinstance(item, StartsWrite):
            sync_one(item)

    moments, events = record(1, False, sync)
    acknowledged = next(n for n, event in enumerate(events) if not event.is_sent and event.kind == "delete_records")
    explorer = Explorer(events, random.Random(1), "no starts")
    explorer.explore(next(moment for moment in moments if moment.events > acknowledged))
    assert any("deleted before are back" in text for text in explorer.tally.problems)


def test_the_workload_rolls_segments() -> None:
    moments, _events = record(1, False)
    logs = {moment.next_operation for moment in moments if moment.next_operation.endswith(".log")}
    for log in ("a-0/", "__consumer_offsets-0/", "__cluster_metadata-0/"):
        assert sum(f" {log}" in name for name in logs) > 2, log


@pytest.mark.parametrize("busy", [False, True])
def test_the_busy_workload_preallocates(busy: bool) -> None:
    storage = FaultyStorage()
    zeros: list[int] = []

    def note(kind: str, path: str) -> None:
        if kind == "sync" and path.endswith(".log"):
            data = storage.read_bytes(path)
            zeros.append(len(data) - len(data.rstrip(b"\0")))

    workload = Reference(storage, 1, busy)
    storage.on_operation = note
    workload.run()
    assert (sum(count > 50 for count in zeros) >= 5) is busy
    assert zeros


def test_some_crash_states_of_transactions() -> None:
    moments, accounts = record_transactions(1)
    last = accounts[-1]
    assert {txn.told for txn in last.values()} == {True, False}
    assert any(txn.offsets for txn in last.values()) and any(txn.values for txn in last.values())
    names = {moment.next_operation.rpartition("/")[2].rpartition(".")[2] for moment in moments}
    assert {"log", "txnindex", "snapshot"} <= names
    small = [moment for moment in moments if 0 < len(moment.snapshot.pieces()) <= 3]
    explorer = TransactionExplorer(accounts, random.Random(1), "transactions")
    for moment in random.Random(5).sample(small, 12):
        explorer.explore(moment)
    assert explorer.tally.problems == []
    assert explorer.tally.states > 20


def only_write(item: Syncable) -> None:
    """Closing a segment writes the next one's bytes, too; anything else of a commit is a sync."""
    if isinstance(item, LogWrite):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FaultyStorage, "datasync", lambda storage, path, node: None)
            patch.setattr(FaultyStorage, "sync_dir", lambda storage, path: None)
            item.datasync()


def test_without_the_syncs_promises_are_broken() -> None:
    moments, events = record(1, False, only_write)
    explorer = Explorer(events, random.Random(1), "no syncs")
    explorer.explore(moments[-1])
    assert any("acknowledged" in text for text in explorer.tally.problems)


def test_without_the_syncs_transactions_are_lost() -> None:
    moments, accounts = record_transactions(1, only_write)
    explorer = TransactionExplorer(accounts, random.Random(1), "no syncs")
    for moment in moments[:: len(moments) // 12]:
        for found in explorer._recover(moment.snapshot.crash([]), "no syncs"):
            explorer.tally.problems += explorer.broken_by(found, moment.events)
    assert any(" lost " in text or "LogDamaged" in text for text in explorer.tally.problems)
