"""Compaction under transactions: committed readers find the newest record of each key, and nothing that was aborted."""

from __future__ import annotations

import random

import pytest

from kcoord.log.cleaner import CleanConfig, clean
from kcoord.log.exchange import promote
from tests.unit.engine.test_transaction_recovery import CONFIG, NOW, Rig

KEYS = (b"a", b"b", b"c")


class Compacted(Rig):
    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[int, bytes] = {}
        self.has_gaps = True

    def step(self, rng: random.Random) -> None:
        self.key = rng.choice(KEYS)
        producer_id = rng.randint(1, 4)
        kind = rng.random()
        if kind < 0.3:
            self.plain()
        elif kind < 0.7:
            self.write(producer_id)
        else:
            self.end(producer_id, rng.random() < 0.5, rng.random() < 0.5)
        for offset in self.written:
            self.keys.setdefault(offset, self.key)

    def compact(self, late: bool) -> bool:
        """Clean the closed segments and exchange them; whether that changed anything."""
        log = self.tp.log
        bases = [segment.base_offset for segment in log.closed_segments]
        if not bases:
            return False
        config = CleanConfig(0, CONFIG.segment_bytes, CONFIG.index_interval_bytes)
        now_ms = NOW.wall_ms + (10_000 if late else 0)
        result = clean(self.storage, log.name, bases, 0, config, now_ms, frozenset(self.tp.producers.entries))
        promote(self.storage, log.name, [group.base for group in result.groups], CONFIG.index_interval_bytes)
        for group in result.groups:
            found = log.begin_replace(group.base, group.old_bases)
            assert found is not None
            new, old = found
            self.storage.sync_dir(log.name)
            new.rename("")
            self.storage.sync_dir(log.name)
            for segment in old:
                segment.remove()
        return bool(result.groups)

    def newest(self, found: dict[int, bytes]) -> dict[bytes, bytes]:
        return {self.keys[offset]: value for offset, value in sorted(found.items())}


@pytest.mark.parametrize("seed", range(8))
def test_readers_find_the_newest_committed_record_of_each_key(seed: int) -> None:
    rng = random.Random(seed)
    rig = Compacted()
    changes = 0
    for _ in range(6):
        for _ in range(25):
            rig.step(rng)
        before = rig.consume(1 << 20)
        stable = rig.tp.last_stable_offset
        changes += rig.compact(rng.random() < 0.5)
        for clean_stop in (None, True, False):
            if clean_stop is not None:
                rig.restart(clean_stop)
            assert rig.tp.last_stable_offset == stable == min(rig.firsts.values(), default=rig.tp.log.end_offset)
            for max_bytes in (1, 1 << 20):
                after = rig.consume(max_bytes)
                assert after.items() <= before.items()
                assert rig.newest(after) == rig.newest(before)
    assert changes
