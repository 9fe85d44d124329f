"""What a server does to its logs beside the traffic: old segments go as the topics' retention says, and compacted
topics are compacted (`cleaning`).

Decisions are taken on the event loop, one partition at a time; whatever waits for the disk happens in a thread that
commits do not use. A partition is looked at again after each wait, for its topic may have been deleted meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import final

from kcoord.core.topics import TopicRegistry
from kcoord.engine.partitions import TopicPartition
from kcoord.log.errors import LogDamaged
from kcoord.log.retention import RetentionPolicy, plan_retention
from kcoord.server.assembly import Assembly
from kcoord.server.cleaning import Cleaner, remove_all
from kcoord.server.pump import read_clocks
from kcoord.server.sync_threads import SyncThreads, in_thread
from kcoord.server.upkeep import Upkeep


@final
class Maintenance:
    """Tasks of a server."""

    def __init__(self, upkeep: Upkeep) -> None:
        self.config = upkeep.config
        self.log = upkeep.log
        self.assembly = upkeep.assembly
        self.wake = upkeep.wake
        # Not the pump's: removing a large file takes long, and commits must not wait for it.
        self.threads = SyncThreads(upkeep.loop)
        self.cleaner = Cleaner(upkeep)

    async def run_retention(self) -> None:
        """Apply retention every log.retention.check.interval.ms, for ever."""
        while True:
            await asyncio.sleep(self.config.retention_check_ms / 1000)
            assembly = self.assembly()
            if assembly is None:
                continue
            try:
                await self.apply_retention(assembly)
            except OSError as error:
                # What was written was a new file, and nobody relies on it: the next round tries another.
                self.log.warning("retention_failed", reason=str(error))

    async def apply_retention(self, assembly: Assembly) -> int:
        """Look at every partition once; the number of segments removed. Raises OSError."""
        removed = 0
        for served in list(assembly.engine.data_plane.table.by_name.values()):
            for tp in list(served.partitions):
                removed += await self._retain(assembly, tp)
        return removed

    async def _retain(self, assembly: Assembly, tp: TopicPartition) -> int:
        # Others get their turn between any two partitions.
        await asyncio.sleep(0)
        topics = assembly.engine.core.topics
        log = tp.log
        if tp.is_dropped or topics.get(tp.topic) is None or self.cleaner.busy == log.name:
            return 0
        try:
            plan = plan_retention(log, retention_policy(topics, tp.topic), read_clocks().wall_ms)
        except LogDamaged as damage:
            table = assembly.engine.data_plane.table
            table.note_damage(tp, damage)
            self.log.facts(table.take_facts())
            return 0
        if plan is None:
            return 0
        if plan.must_roll:
            assembly.journal.roll(log)
            self.wake()
        log.log_start_offset = plan.start
        starts = assembly.directory.take_starts()
        await in_thread(self.threads, partial(assembly.directory.write_start_offsets, starts))
        while not tp.is_dropped and (log.dirty or log.is_writing):
            await asyncio.sleep(0.01)  # until the turn that closes the old segment's files
        if tp.is_dropped:
            return 0
        segments = log.take_segments_below(plan.start)
        await in_thread(self.threads, partial(remove_all, segments))
        self.log.info("segments_removed", log=log.name, segments=len(segments), log_start_offset=plan.start)
        return len(segments)

    def stop(self) -> None:
        self.cleaner.stop()
        self.threads.stop()

    async def rest(self, is_too_late: Callable[[], bool]) -> None:
        """Wait for what the threads still do to the files, which are somebody else's once the server is closed."""
        await self.cleaner.threads.rest(is_too_late)
        await self.threads.rest(is_too_late)


def retention_policy(topics: TopicRegistry, name: str) -> RetentionPolicy:
    """The retention of a topic that exists, from its configuration and the broker's defaults."""
    topic = topics.topics[name]
    policies = [policy.strip() for policy in topics.config_value(topic, "cleanup.policy").split(",")]
    return RetentionPolicy(
        "delete" in policies,
        int(topics.config_value(topic, "retention.ms")),
        int(topics.config_value(topic, "retention.bytes")),
    )
