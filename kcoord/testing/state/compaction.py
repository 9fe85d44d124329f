"""Compaction of topics in memory, which a server otherwise does only with a data directory, in a process of its own."""

from __future__ import annotations

from kcoord.core.outcome import INTERNAL_TOPICS
from kcoord.engine.partitions import TopicPartition
from kcoord.log.cleaner import clean
from kcoord.log.cleaning_plan import CleaningPolicy, plan_cleaning
from kcoord.log.exchange import promote
from kcoord.log.pace import Pace
from kcoord.log.storage import MemoryStorage
from kcoord.server.assembly import Assembly
from kcoord.server.maintenance.cleaning import clean_config, cleaning_policy
from kcoord.server.server import Server
from kcoord.testing.epochs import after_turns


async def compact(server: Server) -> int:
    """Compact every topic with that cleanup policy. Returns how many records were removed. Raises ValueError."""
    assembly = server.assembly
    assert assembly is not None
    if not isinstance(assembly.directory.storage, MemoryStorage):
        raise ValueError("a server with a data directory compacts by itself, see log.cleaner.backoff.ms")
    removed = 0
    for served in list(assembly.engine.data_plane.table.by_name.values()):
        if served.settings.is_compacted and served.name not in INTERNAL_TOPICS:
            for partition in served.partitions:
                removed += await _compact(server, assembly, partition)
    return removed


async def _compact(server: Server, assembly: Assembly, tp: TopicPartition) -> int:
    log = tp.log
    # The active segment is never cleaned.
    assembly.journal.roll(log)
    await after_turns(server, lambda: tp.is_dropped or not (log.dirty or log.is_writing))
    if tp.is_dropped:
        return 0
    topics = assembly.engine.core.topics
    given = cleaning_policy(topics, tp.topic, server.config.server)
    now_ms = server.now().wall_ms
    plan = plan_cleaning(log, CleaningPolicy(0.0, given.min_lag_ms, given.max_lag_ms, given.segment_ms), 0, now_ms)
    if not plan.bases:
        return 0
    config = clean_config(topics, log, server.config.server)
    producers = frozenset(tp.producers.entries)
    result = clean(log.storage, log.name, plan.bases, 0, config, now_ms, producers, Pace())
    promote(log.storage, log.name, [group.base for group in result.groups], config.index_interval_bytes)
    for group in result.groups:
        replaced = log.begin_replace(group.base, group.old_bases)
        assert replaced is not None
        new, old = replaced
        new.rename("")
        for segment in old:
            segment.remove()
    return result.records_before - result.records_after
