"""Compaction beside a state checkpoint: what the checkpoint does not know about yet stays in the log.

A checkpoint at N still has an offset whose tombstone comes after N, and a transaction that is open at N. If compaction
removed that tombstone or marker, the offset would come back, or stay pending forever, at the next start.
"""

from __future__ import annotations

import random

import pytest

from kcoord.core.coordinator import Core
from kcoord.engine.loader import LogLoader
from kcoord.engine.state_checkpoint import LogState
from kcoord.log.cleaner import CleanConfig
from kcoord.log.log_config import LogConfig
from kcoord.log.partition_log import PartitionLog
from kcoord.log.state_file import FOOTER, StateFileWriter, state_path
from kcoord.log.storage import MemoryStorage
from tests.harness.log import compact, write_checkpoint
from tests.unit.engine.test_offsets_compaction import NewKeys
from tests.unit.engine.transaction_logs import LOG, NAME, NO_PRODUCER, TOPIC_ID, Typed, commit, new_core, new_log

DELETE_RETENTION_MS = 500
SEGMENT_BYTES = 600
PLACE = ("a", "t", 0)


def config_of(log: PartitionLog) -> CleanConfig:
    return CleanConfig(DELETE_RETENTION_MS, SEGMENT_BYTES, log.config.index_interval_bytes)


def restarted(storage: MemoryStorage, end_offset: int) -> Core:
    """What a start finds in the files alone."""
    log = PartitionLog(storage, "__consumer_offsets", 0, TOPIC_ID, LogConfig(segment_bytes=SEGMENT_BYTES))
    log.recover(end_offset, 0, True, None)
    core = new_core()
    assert LogState(log).load(core, LOG) == ""
    return core


def clean_all(log: PartitionLog) -> None:
    """Close what there is and clean it until nothing more can go.

    The batches of a transaction go first, then its marker gets a delete horizon, and then it goes.
    """
    log.roll()
    log.flush()
    first_dirty = 0
    for number in range(4):
        first_dirty = compact(log, first_dirty, config_of(log), 1000 + number * DELETE_RETENTION_MS).end


@pytest.mark.parametrize("seed", range(12))
def test_a_start_finds_the_same_whatever_was_cleaned_after_a_checkpoint(seed: int) -> None:
    rng = random.Random(seed)
    storage = MemoryStorage()
    random_log = NewKeys(rng, new_log(storage, SEGMENT_BYTES))
    log = random_log.log
    first_dirty = now_ms = removed = 0
    for _ in range(25):
        for _ in range(rng.randint(1, 12)):
            random_log.grow()
        if rng.random() < 0.25:
            write_checkpoint(log)
        if log.closed_segments and rng.random() < 0.8:
            result = compact(log, first_dirty, config_of(log), now_ms)
            removed += result.records_before - result.records_after
            first_dirty = result.end
        now_ms += rng.choice((0, DELETE_RETENTION_MS, 5 * DELETE_RETENTION_MS))
        random_log.model.check(restarted(storage, log.end_offset))
        # The log alone has it, too: the checkpoint can be deleted.
        core = new_core()
        LogLoader(core, LOG).load_log(log, 0)
        random_log.model.check(core)
    assert removed > 20


def log_with(storage: MemoryStorage, records: list[Typed], producer_id: int = NO_PRODUCER) -> NewKeys:
    made = NewKeys(random.Random(1), new_log(storage, SEGMENT_BYTES))
    made.append(producer_id, records)
    return made


def deleted_after_checkpoint(storage: MemoryStorage) -> NewKeys:
    """The checkpoint has an offset that is deleted after it, and everything is cleaned."""
    made = log_with(storage, [commit(PLACE, 7)])
    write_checkpoint(made.log)
    made.append(NO_PRODUCER, [commit(PLACE, None)])
    made.append(NO_PRODUCER, [commit(("b", "t", 0), 1)])
    clean_all(made.log)
    return made


def test_a_deleted_offset_does_not_come_back() -> None:
    storage = MemoryStorage()
    made = deleted_after_checkpoint(storage)
    made.model.check(restarted(storage, made.log.end_offset))


def test_the_tombstone_goes_once_a_checkpoint_knows_it() -> None:
    storage = MemoryStorage()
    made = deleted_after_checkpoint(storage)
    write_checkpoint(made.log)
    made.append(NO_PRODUCER, [commit(("b", "t", 1), 1)])
    made.log.roll()
    made.log.flush()
    result = compact(made.log, 0, config_of(made.log), 1000 + DELETE_RETENTION_MS)
    assert (result.records_before, result.records_after) == (3, 2)
    made.model.check(restarted(storage, made.log.end_offset))


def test_an_aborted_offset_is_not_committed_by_the_next_transaction() -> None:
    """Only the marker tells the two transactions of a producer apart: compaction removes aborted records at once."""
    storage = MemoryStorage()
    made = log_with(storage, [commit(PLACE, 7)], 1)
    write_checkpoint(made.log)
    made.marker(1, False)
    made.append(1, [commit(("b", "t", 0), 1)])
    made.marker(1, True)
    clean_all(made.log)
    made.model.check(restarted(storage, made.log.end_offset))


def test_a_file_of_unknown_contents_keeps_tombstones() -> None:
    storage = MemoryStorage()
    made = log_with(storage, [commit(PLACE, 7), commit(PLACE, None), commit(("b", "t", 0), 1)])
    write_checkpoint(made.log)
    path = state_path(NAME)
    data = bytearray(storage.read_bytes(path))
    # A version that does not exist yet: whoever wrote it may use it again.
    data[-FOOTER.size + 11] = 9
    storage.write_atomic(path, bytes(data))
    made.log.roll()
    made.log.flush()
    compact(made.log, 0, config_of(made.log), 1000)
    result = compact(made.log, 3, config_of(made.log), 1000 + DELETE_RETENTION_MS)
    assert result.records_after == 2
    storage.remove(path)
    result = compact(made.log, 3, config_of(made.log), 1000 + DELETE_RETENTION_MS)
    assert result.records_after == 1


def test_the_cleaner_knows_that_a_first_checkpoint_is_being_written(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    made = log_with(storage, [commit(PLACE, 7)])
    finish = StateFileWriter.finish

    def late(writer: StateFileWriter, records: int, end_offset: int, has_transactions: bool = False) -> None:
        """The log was read; before the file has its name, a client deletes the offset, and the cleaner comes."""
        made.append(NO_PRODUCER, [commit(PLACE, None)])
        made.append(NO_PRODUCER, [commit(("b", "t", 0), 1)])
        clean_all(made.log)
        finish(writer, records, end_offset, has_transactions)

    monkeypatch.setattr(StateFileWriter, "finish", late)
    write_checkpoint(made.log)
    made.model.check(restarted(storage, made.log.end_offset))
