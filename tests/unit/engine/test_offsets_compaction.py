"""Compaction of `__consumer_offsets` under open, committed and aborted transactions, against a model of offsets."""

from __future__ import annotations

import random

import pytest

from kcoord.core.coordinator import Core
from kcoord.engine.loader import LogLoader
from kcoord.log.cleaner import CleanConfig
from kcoord.log.log_config import LogConfig
from kcoord.log.partition_log import PartitionLog
from kcoord.log.storage import MemoryStorage
from tests.harness.log import compact
from tests.unit.engine.transaction_logs import LOG, TOPIC_ID, RandomLog, Typed, commit, new_core, new_log

DELETE_RETENTION_MS = 500
SEGMENT_BYTES = 600


class NewKeys(RandomLog):
    """Without records of Kafka 0.8, whose keys differ from the newer ones: compaction cannot know them as the same."""

    def commit_record(self) -> Typed:
        return commit(self.place(), self.rng.randrange(1000))


def loaded(log: PartitionLog) -> Core:
    core = new_core()
    LogLoader(core, LOG).load_log(log, log.log_start_offset)
    return core


@pytest.mark.parametrize("seed", range(12))
def test_committed_and_pending_offsets_survive(seed: int) -> None:
    """What counts and what is pending stays, and what was aborted, deleted or replaced does not come back."""
    rng = random.Random(seed)
    storage = MemoryStorage()
    random_log = NewKeys(rng, new_log(storage, SEGMENT_BYTES))
    log = random_log.log
    first_dirty = now_ms = removed = 0
    for _ in range(20):
        for _ in range(rng.randint(1, 12)):
            random_log.grow()
        if log.closed_segments:
            config = CleanConfig(DELETE_RETENTION_MS, SEGMENT_BYTES, log.config.index_interval_bytes)
            result = compact(log, first_dirty, config, now_ms)
            removed += result.records_before - result.records_after
            # Records of an open transaction, and all after them, wait.
            firsts = [stored for _, _, (stored, _) in random_log.model.pending]
            assert result.end <= min(firsts, default=log.end_offset)
            first_dirty = result.end
        now_ms += rng.choice((0, DELETE_RETENTION_MS, 5 * DELETE_RETENTION_MS))
        random_log.model.check(random_log.core)
        random_log.model.check(loaded(log))
        # The files alone.
        again = PartitionLog(storage, log.topic, 0, TOPIC_ID, LogConfig(segment_bytes=SEGMENT_BYTES))
        again.recover(log.end_offset, 0, True, None)
        random_log.model.check(loaded(again))
    assert removed > 20
