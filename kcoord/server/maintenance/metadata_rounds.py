"""Keeps the metadata log short: a child process writes snapshots, and the log below them is removed.

The order of a round, and why:

1. It waits until the offsets of deleted topics are deleted, which takes several commits if there are many. The snapshot
   no longer has these topics, so nothing else would trigger this after a restart.
2. It begins a new segment, so that everything below the snapshot lies in closed segments.
3. It waits for the commit of that moment. By then those deletions are durable, too.
4. The snapshot becomes durable before the log's start moves: it must replace the records below the start.
5. The new start becomes durable before segments are removed: a log must not start below its first record.
6. Older snapshots are removed last.

A failure before the first file is removed only costs a log message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, final

from kcoord.engine.metadata_snapshot import AT_STOP, MetadataState, remove_waste
from kcoord.engine.metadata_writer import SnapshotPlan, WrittenSnapshot
from kcoord.log.errors import LogError
from kcoord.log.journal import SYNC_OS
from kcoord.log.metadata_checkpoint import CheckpointName
from kcoord.log.partition_log import PartitionLog
from kcoord.log.storage import DiskStorage
from kcoord.server.assembly import Assembly
from kcoord.server.maintenance.child import BadAnswer, ChildRun, Leash, run_child
from kcoord.server.maintenance.metadata_child import decode_result, encode_plan
from kcoord.server.maintenance.upkeep import Backoff, Upkeep
from kcoord.server.pump import read_clocks
from kcoord.server.sync_threads import SyncThreads, in_thread

CHILD: Final = "kcoord.server.maintenance.metadata_child"
CHECK_S: Final = 1.0
POLL_S: Final = 0.01
NICENESS: Final = 10


@final
class MetadataRounds:
    """Checks periodically whether a snapshot is due. Only for logs in the file system."""

    def __init__(self, upkeep: Upkeep) -> None:
        self.config = upkeep.config
        self.log = upkeep.log
        self.assembly = upkeep.assembly
        self.wake = upkeep.wake
        self.now = upkeep.now
        # Separate threads, because a snapshot may take long.
        self.threads = SyncThreads(upkeep.loop)
        self._job: Leash | None = None
        self._is_killed = False
        self._backoff = Backoff()
        # When the last snapshot began, or this server started, on the monotonic clock.
        self._last_ms = read_clocks().mono_ms

    async def run(self) -> None:
        """Write snapshots and shorten the log as far as they allow, forever."""
        while True:
            await asyncio.sleep(CHECK_S)
            assembly = self.assembly()
            if assembly is None or not isinstance(assembly.directory.storage, DiskStorage):
                continue
            if self._is_due(assembly):
                await self.round(assembly)
            await self.shorten(assembly)

    def _is_due(self, assembly: Assembly) -> bool:
        state = assembly.engine.metadata
        if state is None or not state.has_news or assembly.engine.disk_full:
            return False
        if not self._backoff.is_due(read_clocks().mono_ms):
            return False
        if state.grown_bytes() >= self.config.metadata_snapshot_bytes:
            return True
        interval_ms = self.config.metadata_snapshot_interval_ms
        return interval_ms > 0 and read_clocks().mono_ms - self._last_ms >= interval_ms

    async def round(self, assembly: Assembly) -> bool:
        """Write a snapshot of the current state. Returns whether it succeeded."""
        self._last_ms = read_clocks().mono_ms
        engine = assembly.engine
        state = engine.metadata
        assert state is not None
        while engine.core.offset_deletes.is_busy:
            await asyncio.sleep(POLL_S)
        log = state.log
        end = log.end_offset
        assembly.journal.roll(log)
        commits = engine.commits
        commit = commits.open_seq
        self.wake()
        # Without a commit in flight or unwritten records there is nothing to wait for.
        while commits.durable_seq < commit and (commits.in_flight is not None or commits.has_unwritten()):
            await asyncio.sleep(POLL_S)
        return await self._write(assembly, state, end, NICENESS)

    async def finish(self, assembly: Assembly, is_too_late: Callable[[], bool]) -> None:
        """At a clean stop, after the last commit, write a snapshot if it pays and there is time."""
        state = assembly.engine.metadata
        if state is None or not state.has_news or not isinstance(assembly.directory.storage, DiskStorage):
            return
        if assembly.directory.has_unfinished_work:
            return
        if state.grown_bytes() < max(self.config.metadata_snapshot_bytes // AT_STOP, 1):
            return
        work = asyncio.ensure_future(self._write(assembly, state, state.log.end_offset, 0))
        while not work.done():
            if is_too_late():
                self.kill()
            await asyncio.sleep(POLL_S)
        if (fault := work.exception()) is not None:
            self.log.facts([state.failed(repr(fault))])

    async def _write(self, assembly: Assembly, state: MetadataState, end: int, niceness: int) -> bool:
        storage = assembly.directory.storage
        assert isinstance(storage, DiskStorage)
        try:
            plan = state.plan(end, assembly.engine.config.node_id, self._unsynced(assembly))
            work = {"root": storage.root, "niceness": niceness, "plan": encode_plan(plan)}
            result = await self._run_child(work)
            check_result(state, plan, result)
        except (LogError, OSError, BadAnswer) as error:
            if not self._is_killed:
                self._backoff.failed(read_clocks().mono_ms)
                self.log.facts([state.failed(str(error))])
            return False
        self._backoff.succeeded()
        self.log.facts([state.written(plan, result)])
        return True

    def _unsynced(self, assembly: Assembly) -> list[str]:
        """Unsynced files of the coordinators' logs. The child syncs them first: they have the deletions of offsets."""
        if assembly.journal.sync_mode != SYNC_OS:
            return []
        logs = [own.log for own in assembly.engine.commits.logs.values() if not own.is_metadata]
        return [log.segments[-1].log_path for log in logs if log.segments[-1].size]

    async def _run_child(self, work: dict[str, object]) -> WrittenSnapshot:
        """Run the child process. Raises BadAnswer with the reason if there is no result."""
        runs: list[ChildRun] = []
        job = Leash()
        self._job = job
        silence_s = self.config.background_silence_ms / 1000
        try:
            await in_thread(self.threads, lambda: runs.append(run_child(CHILD, work, job, silence_s)))
        finally:
            # Cancelling this task does not stop the thread, so end the process.
            job.kill()
        if not runs[0].answers:
            raise BadAnswer(runs[0].reason)
        answer = runs[0].answers[0]
        if "error" in answer:
            raise BadAnswer(str(answer["error"]))
        return decode_result(answer)

    async def shorten(self, assembly: Assembly) -> None:
        """Move the log's start as far as the snapshots and the settings allow, and remove everything below it."""
        state = assembly.engine.metadata
        if state is None:
            return
        log = state.log
        config = self.config
        before = log.log_start_offset
        try:
            start = state.new_start(self.now().wall_ms, config.metadata_retention_ms, config.metadata_retention_bytes)
            if start > before:
                # A killed process may have left the snapshot's name in the page cache only. Sync it before the start
                # moves: the next write of log starts includes this one.
                await in_thread(self.threads, partial(log.storage.sync_dir, log.name))
                log.log_start_offset = start
                await self._save_starts(assembly, log, before)
            if not state.has_waste():
                return
            segments, paths = state.take_waste()
            work = partial(remove_waste, log.storage, log.name, segments, paths)
            await in_thread(self.threads, work)
        except OSError as error:
            # The old start is still valid, so the failure has no further effect.
            self.log.warning("metadata_log_not_shortened", reason=str(error))
            return
        self.log.info(
            "metadata_log_shortened",
            log_start_offset=log.log_start_offset,
            segments=len(segments),
            snapshots=len(paths),
        )

    async def _save_starts(self, assembly: Assembly, log: PartitionLog, before: int) -> None:
        starts = assembly.directory.take_starts()
        try:
            await in_thread(self.threads, partial(assembly.directory.write_start_offsets, starts))
        except BaseException:
            # The new start is not durable, so nothing below it may be removed.
            log.log_start_offset = before
            raise

    def kill(self) -> None:
        """Cancel a running round and all later ones."""
        self._is_killed = True
        if self._job is not None:
            self._job.kill()
        self.threads.stop()

    async def rest(self, is_too_late: Callable[[], bool]) -> None:
        """Wait until the threads no longer use the files."""
        await self.threads.rest(is_too_late)


def check_result(state: MetadataState, plan: SnapshotPlan, result: WrittenSnapshot) -> None:
    """Check that the snapshot exists: the log may begin at its end later. Raises BadAnswer."""
    path = CheckpointName(result.end_offset, result.epoch).path_in(plan.log_name)
    if result.end_offset != plan.end_offset or not state.log.storage.exists(path):
        raise BadAnswer(f"its answer names {path}, which is not the requested snapshot or does not exist")
