"""Background maintenance of logs: removes segments by retention and after DeleteRecords, and compacts (`cleaning`).

The event loop decides, one partition at a time. Threads that commits do not use wait for the disk. After each wait the
partition is checked again, because its topic may have been deleted in the meantime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, final

from kcoord.core.topics.registry import TopicRegistry
from kcoord.engine.partitions import TopicPartition
from kcoord.log.errors import LogDamaged
from kcoord.log.retention import RetentionPolicy, plan_retention
from kcoord.log.segment import Segment
from kcoord.server.assembly import Assembly
from kcoord.server.maintenance.cleaning import Cleaner, remove_all
from kcoord.server.maintenance.upkeep import Upkeep
from kcoord.server.sync_threads import SyncThreads, in_thread

# How soon after DeleteRecords the files are removed.
TRIM_S: Final = 0.5
# How many segments are removed at once. A stop waits for them; a later start removes the others.
REMOVED_AT_ONCE: Final = 20


@final
class Maintenance:
    """The maintenance tasks of a server."""

    def __init__(self, upkeep: Upkeep) -> None:
        self.config = upkeep.config
        self.log = upkeep.log
        self.assembly = upkeep.assembly
        self.wake = upkeep.wake
        self.now = upkeep.now
        # Separate from the pump's threads: removing a large file takes long, and commits must not wait for it.
        self.threads = SyncThreads(upkeep.loop)
        self.cleaner = Cleaner(upkeep)

    async def run_retention(self) -> None:
        """Apply retention every log.retention.check.interval.ms, forever."""
        while True:
            await asyncio.sleep(self.config.retention_check_ms / 1000)
            assembly = self.assembly()
            if assembly is None:
                continue
            await self.apply_retention(assembly)

    async def apply_retention(self, assembly: Assembly) -> int:
        """Apply retention to every partition once. Returns the number of removed segments."""
        removed = 0
        for served in list(assembly.engine.data_plane.table.by_name.values()):
            for tp in list(served.partitions):
                try:
                    removed += await self._retain(assembly, tp)
                except OSError as error:
                    # Only a new checkpoint file was being written, and the next round retries. The failure of one
                    # partition does not affect the others.
                    if not tp.is_dropped:
                        self.log.warning_limited("retention_failed", log=tp.log.name, reason=str(error))
        return removed

    async def run_trims(self) -> None:
        """Remove segments below the starts that DeleteRecords has moved, forever."""
        while True:
            await asyncio.sleep(TRIM_S)
            assembly = self.assembly()
            if assembly is not None and assembly.engine.data_plane.delete_records.moved:
                await self.trim(assembly)

    async def trim(self, assembly: Assembly) -> None:
        """Remove segments below log starts that are durable."""
        segments = assembly.engine.data_plane.delete_records.take_waste(self.cleaner.busy)
        if not segments:
            return
        try:
            await self._remove(segments)
        except OSError as error:
            # The logs have dropped these segments. The next start finds the files, and retention removes them.
            self.log.warning("retention_failed", reason=str(error))
            return
        self.log.info("segments_removed", segments=len(segments), reason="DeleteRecords")

    async def _remove(self, segments: list[Segment]) -> None:
        for first in range(0, len(segments), REMOVED_AT_ONCE):
            work = partial(remove_all, segments[first : first + REMOVED_AT_ONCE])
            await in_thread(self.threads, work)

    async def _retain(self, assembly: Assembly, tp: TopicPartition) -> int:
        # Yield to the loop between partitions.
        await asyncio.sleep(0)
        topics = assembly.engine.core.topics
        log = tp.log
        if tp.is_dropped or topics.get(tp.topic) is None or self.cleaner.busy == log.name:
            return 0
        try:
            plan = plan_retention(log, retention_policy(topics, tp.topic), self.now().wall_ms)
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
            await asyncio.sleep(0.01)  # until the commit that closes the old segment
        if tp.is_dropped:
            return 0
        segments = log.take_segments_below(plan.start)
        await self._remove(segments)
        self.log.info("segments_removed", log=log.name, segments=len(segments), log_start_offset=plan.start)
        return len(segments)

    def stop(self) -> None:
        self.cleaner.stop()
        self.threads.stop()

    async def rest(self, is_too_late: Callable[[], bool]) -> None:
        """Wait until the threads no longer use the files: after the close another process may own the directory."""
        await self.cleaner.threads.rest(is_too_late)
        await self.threads.rest(is_too_late)


def retention_policy(topics: TopicRegistry, name: str) -> RetentionPolicy:
    """The retention policy of an existing topic, from its configuration and the broker's defaults."""
    topic = topics.topics[name]
    policies = [policy.strip() for policy in topics.config_value(topic, "cleanup.policy").split(",")]
    return RetentionPolicy(
        "delete" in policies,
        int(topics.config_value(topic, "retention.ms")),
        int(topics.config_value(topic, "retention.bytes")),
    )
