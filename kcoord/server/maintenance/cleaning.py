"""Background compaction: a child process reads closed segments and writes cleaned ones.

The event loop decides which log is due and exchanges the segments, which are renames; a separate thread waits for the
child and for the disk. A failure before `promote` has made the cleaned segments valid only costs a log message, and the
log is retried later. A failure after that leaves the exchange half done, so it ends the server, like any failed write.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Final, final

from kcoord.core.outcome import INTERNAL_TOPICS
from kcoord.core.topics.registry import TopicRegistry
from kcoord.engine.partitions import TopicPartition
from kcoord.log.clean_worker import CleanFailed, CleanRequest, decode_result
from kcoord.log.cleaner import CleanConfig, CleanResult
from kcoord.log.cleaning_plan import CleaningPlan, CleaningPolicy, plan_cleaning
from kcoord.log.directory import CLEANER_OFFSETS, read_hint
from kcoord.log.errors import LogDamaged
from kcoord.log.exchange import demote, promote
from kcoord.log.partition_log import PartitionLog
from kcoord.log.segment import Segment
from kcoord.log.storage import DiskStorage
from kcoord.server.assembly import Assembly
from kcoord.server.maintenance.child import ChildRun, Leash, run_child
from kcoord.server.maintenance.upkeep import Backoff, Upkeep
from kcoord.server.pump import read_clocks
from kcoord.server.settings.config import ServerConfig
from kcoord.server.sync_threads import SyncThreads, in_thread

CHILD: Final = "kcoord.log.clean_worker"
# The memory for a key in the child's map of newest offsets, including the dictionary.
BYTES_PER_KEY: Final = 192
# New records may have old timestamps, so a segment is closed because of its age no sooner than this.
ROLL_INTERVAL_MS: Final = 10 * 60 * 1000
# A log is cleaned in pieces of about this size, so that little is lost if the server ends.
PIECE_BYTES: Final = 128 << 20
# After so much growth the cleaner does not wait for the end of its backoff. It looks at the size this often.
HURRY_BYTES: Final = PIECE_BYTES
LOOK_S: Final = 0.5
# The history leaves room for what is written in this time: about what passes between the closing of a segment and its
# cleaning.
ROOM_MS: Final = 2000
# The more there is to clean, the more of a processor's time the child may use even beside a busy server: this part for
# each piece that waits, up to all of one. Its priority rises, too (see clean_worker).
SHARE_PER_PIECE: Final = 0.5
SHARE_MAX: Final = 1.0
# While a file system frees the space of a large file, commits wait. A pause after each lets them proceed.
LARGE_FILE_BYTES: Final = 1 << 20
REMOVAL_PAUSE_S: Final = 0.05


@final
class Cleaner:
    """Compacts the logs of the current assembly."""

    def __init__(self, upkeep: Upkeep) -> None:
        self.config = upkeep.config
        self.log = upkeep.log
        self.assembly = upkeep.assembly
        self.wake = upkeep.wake
        self.now = upkeep.now
        self.threads = SyncThreads(upkeep.loop)
        # Where the next cleaning of each log begins, by topic id and partition.
        self.first_dirty: dict[tuple[bytes, int], int] | None = None
        self.damaged: set[tuple[bytes, int]] = set()
        # The last segment of what could not be cleaned, because a transaction is open there. If that was a piece, the
        # end of the transaction may lie behind it, so the whole log is tried next. If that was all, it is retried after
        # another segment was closed.
        self.held_back: dict[tuple[bytes, int], int] = {}
        # The base offset of each log's active segment, and since when (monotonic clock) it is the active one.
        self.active_since: dict[tuple[bytes, int], tuple[int, int]] = {}
        # Logs whose last cleaning failed.
        self.backoffs: dict[tuple[bytes, int], Backoff] = {}
        # The log that is being cleaned; retention skips it.
        self.busy = ""
        # Whether its segments are being renamed.
        self.is_exchanging = False

    async def run(self) -> None:
        """Clean the logs that are due every log.cleaner.backoff.ms, forever."""
        while self.config.cleaner_enable:
            await self._back_off()
            assembly = self.assembly()
            # The child process needs the files on disk.
            if assembly is not None and isinstance(assembly.directory.storage, DiskStorage):
                while await self.clean_all(assembly) and self.assembly() is assembly:
                    # A log may be due again: what was cleaned is a piece.
                    continue

    async def _back_off(self) -> None:
        """Wait for log.cleaner.backoff.ms, or until the logs of the coordinators have grown by much."""
        left_s = self.config.cleaner_backoff_ms / 1000
        before = self._coordinator_bytes()
        while left_s > 0:
            pause_s = min(left_s, LOOK_S)
            await asyncio.sleep(pause_s)
            left_s -= pause_s
            if self._coordinator_bytes() - before >= HURRY_BYTES:
                return

    def _coordinator_bytes(self) -> int:
        assembly = self.assembly()
        if assembly is None:
            return 0
        by_name = assembly.engine.data_plane.table.by_name
        coordinators = [by_name[topic] for topic in INTERNAL_TOPICS if topic in by_name]
        return sum(tp.log.size_bytes for served in coordinators for tp in served.partitions)

    async def clean_all(self, assembly: Assembly) -> int:
        """Clean every log that is due, once. Returns their number."""
        if self.first_dirty is None:
            self.first_dirty = await self._load_offsets(assembly)
        count = 0
        for served in list(assembly.engine.data_plane.table.by_name.values()):
            if not served.settings.is_compacted:
                continue
            for tp in list(served.partitions):
                await asyncio.sleep(0)
                self.busy = tp.log.name
                try:
                    count += await self._clean(assembly, tp)
                finally:
                    self.busy = ""
        return count

    async def _load_offsets(self, assembly: Assembly) -> dict[tuple[bytes, int], int]:
        """The offsets at which the last cleaning ended: a hint. Without it every log counts as never cleaned."""
        found: dict[tuple[bytes, int], int] = {}
        offsets, reason = read_hint(assembly.directory.storage, CLEANER_OFFSETS)
        if reason:
            self.log.warning("checkpoint_not_used", file=CLEANER_OFFSETS, reason=reason)
        for (topic, partition), offset in offsets.items():
            log = assembly.directory.get(topic, partition)
            if log is not None:
                found[(log.topic_id, partition)] = max(offset, 0)
        return found

    async def _clean(self, assembly: Assembly, tp: TopicPartition) -> bool:
        topics = assembly.engine.core.topics
        key = (tp.topic_id, tp.partition)
        if tp.is_dropped or key in self.damaged or topics.get(tp.topic) is None or self.first_dirty is None:
            return False
        backoff = self.backoffs.get(key)
        if backoff is not None and not backoff.is_due(read_clocks().mono_ms):
            return False
        now_ms = self.now().wall_ms
        try:
            policy = cleaning_policy(topics, tp.topic, self.config)
            policy.room_ms = ROOM_MS
            if key in self.held_back:
                policy.piece_bytes = 0
            plan = plan_cleaning(tp.log, policy, self.first_dirty.get(key, 0), now_ms)
            if plan.must_roll and self._may_roll(tp, min(policy.max_lag_ms, policy.segment_ms)):
                # The next round finds the segment closed.
                assembly.journal.roll(tp.log)
                self.wake()
            if not plan.bases or self.held_back.get(key) == plan.bases[-1] or not self._has_space(assembly, plan):
                return False
            result = await self._run_child(assembly, tp, plan, now_ms)
            if tp.is_dropped:
                return False
            await self._promote(tp, result)
        except LogDamaged as damage:
            self.damaged.add(key)
            table = assembly.engine.data_plane.table
            table.note_damage(tp, damage)
            self.log.facts(table.take_facts())
            return False
        except Exception as error:
            # No valid file was changed, so even a bug does not have to end the server.
            self._note_failure(tp, error)
            return False
        self.backoffs.pop(key, None)
        self.is_exchanging = True
        try:
            await self._exchange(tp, result)
        finally:
            self.is_exchanging = False
        if result.end <= plan.first_dirty:
            self.held_back[key] = plan.bases[-1]
        else:
            self.held_back.pop(key, None)
        self.first_dirty[key] = result.end
        await self._save_offsets(assembly)
        self.log.info(
            "compacted", log=tp.log.name, end=result.end, records_before=result.records_before,
            records_after=result.records_after, bytes_before=result.bytes_before, bytes_after=result.bytes_after,
        )  # fmt: skip
        return True

    def _note_failure(self, tp: TopicPartition, error: Exception) -> None:
        if tp.is_dropped:
            return
        self.backoffs.setdefault((tp.topic_id, tp.partition), Backoff()).failed(read_clocks().mono_ms)
        reason = str(error) if isinstance(error, OSError) else repr(error)
        self.log.warning("compaction_failed", log=tp.log.name, reason=reason)

    def _may_roll(self, tp: TopicPartition, age_ms: int) -> bool:
        """Whether the active segment has been active for long enough."""
        key = (tp.topic_id, tp.partition)
        now_ms = read_clocks().mono_ms
        base = tp.log.segments[-1].base_offset
        since = self.active_since.get(key)
        if since is None or since[0] != base:
            self.active_since[key] = since = (base, now_ms)
        return now_ms - since[1] >= min(age_ms, ROLL_INTERVAL_MS)

    def _has_space(self, assembly: Assembly, plan: CleaningPlan) -> bool:
        """Whether there is enough space for the cleaned segments without using the reserve."""
        free = assembly.free_bytes()
        if free - plan.size_bytes >= self.config.reserve_bytes:
            return True
        self.log.warning_limited("compaction_postponed", reason=f"{free} bytes are free, {plan.size_bytes} needed")
        return False

    async def _run_child(self, assembly: Assembly, tp: TopicPartition, plan: CleaningPlan, now_ms: int) -> CleanResult:
        storage = assembly.directory.storage
        assert isinstance(storage, DiskStorage)
        topics = assembly.engine.core.topics
        config = clean_config(topics, tp.log, self.config)
        producers = None if tp.topic in INTERNAL_TOPICS else list(tp.producers.entries)
        share_min = min(SHARE_MAX, SHARE_PER_PIECE * plan.waiting_bytes / PIECE_BYTES)
        request = CleanRequest(
            storage.root, tp.log.name, plan.bases, plan.first_dirty, config, now_ms, producers, share_min
        )
        runs: list[ChildRun] = []
        leash = Leash()
        silence_s = self.config.background_silence_ms / 1000

        def work() -> None:
            runs.append(run_child(CHILD, request.encode(), leash, silence_s))

        try:
            await in_thread(self.threads, work)
        finally:
            # Cancelling this task does not stop the thread, so end the process.
            leash.kill()
        if not runs[0].answers:
            raise CleanFailed(f"the cleaner: {runs[0].reason}")
        result = decode_result(runs[0].answers[0])
        check_result(result, plan, tp.log)
        return result

    async def _promote(self, tp: TopicPartition, result: CleanResult) -> None:
        bases = [group.base for group in result.groups]
        interval = tp.log.config.index_interval_bytes
        if bases:
            work = partial(promote, tp.log.storage, tp.log.name, bases, interval)
            await in_thread(self.threads, work)

    async def _exchange(self, tp: TopicPartition, result: CleanResult) -> None:
        """Exchange the segments. The cleaned ones are valid already, so an error ends the server."""
        log = tp.log
        replaced: list[tuple[Segment, list[Segment]]] = []
        try:
            for group in result.groups:
                if tp.is_dropped:
                    return
                found = log.begin_replace(group.base, group.old_bases)
                if found is None:
                    demote(log.storage, log.name, group.base, log.config.index_interval_bytes)
                else:
                    replaced.append(found)
                # Yield to the loop between many renames.
                await asyncio.sleep(0)
            await self._sync_directory(tp)
            for new, _ in replaced:
                if tp.is_dropped:
                    return
                new.rename("")
                await asyncio.sleep(0)
            await self._sync_directory(tp)
            old = [segment for _, segments in replaced for segment in segments]
            await in_thread(self.threads, partial(remove_all, old))
        except FileNotFoundError:
            # Deleting a topic renames its directory.
            if not tp.is_dropped:
                raise

    async def _sync_directory(self, tp: TopicPartition) -> None:
        await in_thread(self.threads, partial(tp.log.storage.sync_dir, tp.log.name))

    async def _save_offsets(self, assembly: Assembly) -> None:
        known = self.first_dirty or {}
        offsets = {
            (log.topic, log.partition): known[(log.topic_id, log.partition)]
            for log in assembly.directory
            if (log.topic_id, log.partition) in known
        }
        directory = assembly.directory
        work = partial(directory.write_cleaned_ends, directory.take_cleaned_ends(offsets))
        try:
            await in_thread(self.threads, work)
        except OSError as error:
            # Without the file the next start cleans more than necessary.
            self.log.warning("compaction_failed", file=CLEANER_OFFSETS, reason=str(error))

    def stop(self) -> None:
        self.threads.stop()


def cleaning_policy(topics: TopicRegistry, name: str, config: ServerConfig) -> CleaningPolicy:
    """The compaction policy of an existing topic, from its configuration and the broker's defaults."""
    topic = topics.topics[name]
    keeps_history = name in INTERNAL_TOPICS
    return CleaningPolicy(
        float(topics.config_value(topic, "min.cleanable.dirty.ratio")),
        int(topics.config_value(topic, "min.compaction.lag.ms")),
        int(topics.config_value(topic, "max.compaction.lag.ms")),
        int(topics.config_value(topic, "segment.ms")),
        config.history_ms if keeps_history else 0,
        config.history_bytes if keeps_history else 0,
        PIECE_BYTES,
    )


def clean_config(topics: TopicRegistry, log: PartitionLog, config: ServerConfig) -> CleanConfig:
    """The settings for cleaning a log, whose topic must exist."""
    topic = topics.topics[log.topic]
    return CleanConfig(
        delete_retention_ms=int(topics.config_value(topic, "delete.retention.ms")),
        segment_bytes=int(topics.config_value(topic, "segment.bytes")),
        index_interval_bytes=log.config.index_interval_bytes,
        keys_max=config.cleaner_buffer_bytes // BYTES_PER_KEY,
        decompressed_bytes_max=log.config.decompressed_bytes_max,
    )


def check_result(result: CleanResult, plan: CleaningPlan, log: PartitionLog) -> None:
    """Check that the result matches the plan. Raises CleanFailed."""
    bases = [base for group in result.groups for base in group.old_bases]
    firsts = [group.base == group.old_bases[0] if group.old_bases else False for group in result.groups]
    known = set(plan.bases)
    if not all(firsts) or len(set(bases)) != len(bases) or any(base not in known for base in bases):
        raise CleanFailed(f"its answer replaces segments {bases[:10]}, the request was for {plan.bases[:10]}")
    if not 0 <= result.end <= log.end_offset:
        raise CleanFailed(f"its answer ends at {result.end}, the log at {log.end_offset}")


def remove_all(segments: list[Segment]) -> None:
    """Remove the files of segments that no log uses any more. Those of a deleted topic may be removed already."""
    for segment in segments:
        is_large = segment.size >= LARGE_FILE_BYTES
        try:
            segment.remove()
        except FileNotFoundError:
            continue
        if is_large:
            time.sleep(REMOVAL_PAUSE_S)
