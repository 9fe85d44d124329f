"""The life of a server: open the log, listen, serve, drain, close."""

from __future__ import annotations

import asyncio
import errno
import platform
import socket
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Final, final

from kcoord import __version__
from kcoord.core.outcome import Now
from kcoord.log.storage import MemoryStorage, Storage
from kcoord.server.assembly import Assembly, open_assembly
from kcoord.server.control import Control
from kcoord.server.draining import disconnect_all, drain
from kcoord.server.failures import EXIT_DISK_FULL, EXIT_INTERNAL, EXIT_LISTEN, ServerError, classify
from kcoord.server.kernel_syncs import kernel_syncs
from kcoord.server.late_imports import import_late
from kcoord.server.listen.accept import Acceptor
from kcoord.server.listen.connection import Host
from kcoord.server.listen.descriptors import descriptors_now
from kcoord.server.listen.limits import TokenBucket
from kcoord.server.listen.sockets import open_sockets
from kcoord.server.logs import ServerLog
from kcoord.server.pump import SWEEP_MS, Pump, read_clocks
from kcoord.server.settings.listeners import Listener, format_address
from kcoord.server.settings.load import Config
from kcoord.server.settings.table import SYNC_ALWAYS, SYNC_MEMORY
from kcoord.wire.causes import caused_by
from kcoord.wire.native import is_compiled

if TYPE_CHECKING:
    from kcoord.server.maintenance.background import Background

# A second signal within this time does not count: some supervisors signal a process and then its group.
HURRY_AFTER_S: Final = 1.0
# How soon after a start there is time for what can wait.
SETTLED_S: Final = 0.1
# The share of shutdown.deadline.ms after which the last checkpoints are cancelled.
CHECKPOINTS_SHARE: Final = 0.75

_LISTEN_REASONS: Final = {
    errno.EADDRINUSE: "another process listens on it",
    errno.EADDRNOTAVAIL: "it is not an address of this machine",
    errno.EACCES: "ports below 1024 require a privilege",
}


def bind(listener: Listener, backlog: int) -> list[socket.socket]:
    """Open the listener's sockets. Raises ServerError."""
    try:
        return open_sockets(listener, backlog)
    except (OSError, OverflowError, UnicodeError) as error:
        code = getattr(error, "errno", None)
        reason = _LISTEN_REASONS.get(code or 0) or getattr(error, "strerror", None) or str(error)
        address = format_address(listener.host, listener.port)
        raise ServerError(EXIT_LISTEN, f"cannot listen on {address}: {reason}") from None


@final
class Server:
    """One server on the running loop. Call `start`, then `wait`, which returns after `request_stop` or raises."""

    def __init__(
        self,
        config: Config,
        log: ServerLog,
        storage: Storage | None = None,
        interpose: Callable[[Server], Host] | None = None,
        clocks: Callable[[], Now] = read_clocks,
        prepare: Callable[[Server], Awaitable[None]] | None = None,
    ) -> None:
        self.config = config
        # The time of groups, transactions and records.
        self.now = clocks
        # Replaces the data directory, if given.
        self.storage = storage
        # What connections get instead of the pump, if given; called when there is a pump.
        self._interpose = interpose
        # Awaited by `start` before connections are accepted, if given.
        self._prepare = prepare
        self.log = log
        self.loop = asyncio.get_running_loop()
        # Host and port of each listener, set by `start`.
        self.addresses: list[tuple[str, int]] = []
        self.assembly: Assembly | None = None
        self.pump: Pump
        self._sockets: list[socket.socket] = []
        self._acceptor: Acceptor
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._asked_at_s = 0.0
        # None until `background` is called.
        self._background: Background | None = None
        self._control: Control | None = None
        # Whether a thread is writing the recovery points.
        self._is_marking = False
        self._deadline_s = config.server.shutdown_deadline_ms / 1000
        self._error: BaseException | None = None
        self._is_killed = False

    def request_stop(self) -> None:
        """Stop cleanly. A second request, at least a second later, stops without waiting for clients."""
        now_s = self.loop.time()
        if not self._stop.is_set():
            self._stop.set()
            self._asked_at_s = now_s
        elif now_s - self._asked_at_s >= HURRY_AFTER_S:
            self._deadline_s = 0.0

    def kill(self) -> None:
        """End at once, as after kill -9: nothing more is answered or written. `wait` returns without an error."""
        self._is_killed = not self.pump.has_failed
        self.pump.fail(ServerError(EXIT_INTERNAL, "the server was killed"))

    def reset(self, storage: MemoryStorage | None = None) -> None:
        """Delete every topic, group, offset and producer, or continue with the state in `storage`.

        Connections that wait for a response are closed, the others stay open. Only for logs in memory; raises
        ValueError otherwise.
        """
        old = self._in_memory("reset")
        new = open_assembly(self.config, storage)
        new.engine.load(self.now())
        # Producers that stay connected keep their ids, so no new producer may get them.
        ids, new_ids = old.engine.core.producer_ids, new.engine.core.producer_ids
        new_ids.used_end = max(new_ids.used_end, ids.next_id, ids.used_end)
        self.assembly = new
        self.pump.replace_engine(new.engine)
        old.abandon()

    def copy_memory(self) -> MemoryStorage:
        """A copy of the files, which have everything that was answered, for `reset`. Raises ValueError as that does."""
        storage = self._in_memory("copied").directory.storage
        assert isinstance(storage, MemoryStorage)
        return storage.copy()

    def _in_memory(self, what: str) -> Assembly:
        if self.assembly is None or not self.assembly.in_memory:
            raise ValueError(f"only a server with log.sync = memory can be {what}")
        return self.assembly

    def _on_failure(self, error: BaseException) -> None:
        self._error = error
        if self.assembly is not None:
            self.assembly.journal.fail(error)
        self._stop.set()

    async def start(self) -> None:
        """Open the sockets and the log, and start to accept connections. Raises ServerError."""
        config = self.config
        self._log_start()
        bound: list[tuple[Listener, list[socket.socket]]] = []
        try:
            for listener in config.listeners:
                sockets = bind(listener, config.server.listen_backlog)
                self._sockets += sockets
                bound.append((listener, sockets))
                self.addresses.append((listener.host or "0.0.0.0", sockets[0].getsockname()[1]))
            budget = descriptors_now(config.server.max_connections, config.server.log_sync == SYNC_MEMORY)
            assembly = self.assembly = open_assembly(config, self.storage, self.log)
            self._check_space(assembly)
            assembly.engine.load(self.now())
        except Exception as error:
            self._close_sockets()
            if self.assembly is not None:
                self.assembly.abandon()
            raise caused_by(classify(error), error) from error
        self.pump = Pump(self.loop, assembly.engine, config.server, self.log, self._on_failure, self.now)
        self.pump.counts.cap = budget.connections
        if budget.connections < config.server.max_connections:
            self.log.warning(
                "connections_limited", connections=budget.connections, max_connections=config.server.max_connections,
                reason=f"the process may open {budget.limit} files (ulimit -n); the log reserves {budget.log_files}",
            )  # fmt: skip
        self.pump.schedule_turn()
        host = self.pump if self._interpose is None else self._interpose(self)
        if self._prepare is not None:
            await self._prepare_state(self._prepare)
        self._acceptor = Acceptor(self.loop, host, TokenBucket(config.server.connection_rate))
        for listener, sockets in bound:
            for sock in sockets:
                self._acceptor.add(sock, listener)
        self._acceptor.start()
        self._spawn(self._sweep())
        if not assembly.in_memory and self.storage is None:
            self._control = Control(config.server.data_dir, self.log, lambda: self.assembly, self._is_exchanging)
            await self._control.start()
        self._spawn(self._settle())

    def background(self) -> Background:
        """The work beside the requests, which `start` begins a little later, or this call."""
        if self._background is None:
            from kcoord.server.maintenance.background import Background
            from kcoord.server.maintenance.upkeep import Upkeep

            assert self.assembly is not None
            wake = self.pump.schedule_turn
            upkeep = Upkeep(self.loop, self.config.server, self.log, lambda: self.assembly, wake, self.now)
            self._background = Background(upkeep, self.assembly)
            if not self._stop.is_set():
                for work in self._background.work():
                    self._spawn(work)
        return self._background

    def _is_exchanging(self) -> bool:
        return self._background is not None and self._background.maintenance.cleaner.is_exchanging

    async def _settle(self) -> None:
        """Do what can wait until the first clients are served."""
        await asyncio.sleep(SETTLED_S)
        self.background()
        await import_late()
        if self.config.server.log_sync == SYNC_ALWAYS:
            self.pump.threads.kernel = kernel_syncs(self.loop)

    def listen(self, listener: Listener) -> None:
        """Listen on another address while the server runs; it is the last one of `addresses`. Raises ServerError."""
        sockets = bind(listener, self.config.server.listen_backlog)
        self._sockets += sockets
        self.addresses.append((listener.host or "0.0.0.0", sockets[0].getsockname()[1]))
        assert self._acceptor is not None
        for sock in sockets:
            self._acceptor.add(sock, listener)
        self._acceptor.start()

    async def _prepare_state(self, prepare: Callable[[Server], Awaitable[None]]) -> None:
        """Raises ServerError, after everything that `start` has opened was closed."""
        try:
            await prepare(self)
            if self._error is not None:
                raise self._error
        except Exception as error:
            self._close_sockets()
            await self._finish_commits()
            self.pump.fail(error)
            self.pump.threads.stop()
            self.pump.ahead_threads.stop()
            if self.assembly is not None:
                self.assembly.abandon()
            raise caused_by(classify(self._error or error), error) from error

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self.loop.create_task(work)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Handle the end of a background task: nothing awaits these tasks, and the server cannot run without them."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.pump.fail(error)

    def _log_start(self) -> None:
        config = self.config
        in_memory = config.server.log_sync == SYNC_MEMORY
        self.log.info(
            "starting",
            version=__version__,
            code="compiled" if is_compiled() else "interpreted",
            loop=type(self.loop).__module__.partition(".")[0],
            data="memory" if in_memory else config.server.data_dir,
            log_sync=config.server.log_sync,
            python=platform.python_version(),
        )
        for warning in config.warnings:
            self.log.warning("setting", message=warning)

    def _check_space(self, assembly: Assembly) -> None:
        free = assembly.free_bytes()
        reserve = self.config.server.reserve_bytes
        if 0 <= free < reserve:
            raise ServerError(
                EXIT_DISK_FULL,
                f"the disk is full: {free} bytes are free at {self.config.server.data_dir}, but {reserve} are "
                "reserved (log.reserve.bytes)",
            )

    async def _sweep(self) -> None:
        """Periodic work: overdue connections, free space, the recovery points."""
        reserve = self.config.server.reserve_bytes
        while True:
            await asyncio.sleep(SWEEP_MS / 1000)
            self.pump.sweep()
            assembly = self.assembly
            if assembly is None or assembly.in_memory:
                continue
            assembly.directory.files.ease()
            assembly.measure_volume()
            if reserve:
                assembly.engine.set_disk_full(assembly.free_bytes() < reserve)
            now_ms = read_clocks().mono_ms
            if not self._is_marking and assembly.journal.checkpoint_due(now_ms):
                self._is_marking = True
                marks = assembly.journal.begin_checkpoint(now_ms)
                write = partial(assembly.directory.write_recovery_points, marks)
                self.pump.threads.run([write], self._marked)
            if not assembly.engine.disk_full:
                self.background().sweep()

    def _marked(self, error: BaseException | None) -> None:
        self._is_marking = False
        if error is not None:
            self.pump.fail(error)

    async def wait(self) -> None:
        """Serve until the server stops. Raises ServerError unless it stopped cleanly."""
        await self._stop.wait()
        await self._acceptor.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._control is not None:
            await self._control.stop()
        if self._background is not None:
            self._background.maintenance.stop()
        self._close_sockets()
        if self._error is None:
            await self._stop_cleanly()
        if self._error is not None:
            if self._background is not None:
                self._background.kill()
            if self._is_killed:
                # In one process the files may be opened again at once: no thread may still use them.
                await self._rest(self._deadline())
            self.pump.threads.stop()
            self.pump.ahead_threads.stop()
            if self.assembly is not None:
                self.assembly.abandon()
            if not self._is_killed:
                raise caused_by(classify(self._error), self._error) from self._error

    def _deadline(self) -> Callable[[], bool]:
        """Returns whether shutdown.deadline.ms has passed since now."""
        began = self.loop.time()
        return lambda: self.loop.time() - began >= self._deadline_s

    async def _rest(self, is_too_late: Callable[[], bool]) -> None:
        """Wait until no thread uses the files of the log."""
        await self.pump.threads.rest(is_too_late)
        await self.pump.ahead_threads.rest(is_too_late)
        if self._background is not None:
            await self._background.rest(is_too_late)
        if self._control is not None:
            await self._control.rest(is_too_late)

    async def _stop_cleanly(self) -> None:
        self.log.info("stopping", connections=len(self.pump.connections))
        began = self.loop.time()
        is_too_late = self._deadline()
        drained = await drain(self.pump, is_too_late)
        if self._error is not None:
            return
        if not drained:
            self.log.warning("not_drained", reason="responses were still pending after shutdown.deadline.ms")
        await disconnect_all(self.pump)
        await self._finish_deletions(is_too_late)
        await self._finish_commits()
        if self._error is not None or self.assembly is None:
            return

        # Checkpoints save time at the next start. Their processes end early enough to leave time for closing the log.
        def is_late() -> bool:
            return self.loop.time() - began >= self._deadline_s * CHECKPOINTS_SHARE

        await self.background().finish(self.assembly, is_late)
        await self._rest(is_too_late)
        self.pump.threads.stop()
        self.pump.ahead_threads.stop()
        try:
            self.assembly.close()
        except Exception as error:
            self._error = error
            return
        for file, reason in self.assembly.directory.unwritten:
            # Only a hint is missing: the next start takes longer.
            self.log.warning("file_not_written", file=file, reason=reason)
        self.log.note_left_out(is_end=True)
        self.log.info("stopped")

    async def _finish_deletions(self, is_too_late: Callable[[], bool]) -> None:
        """Wait until the offsets of deleted topics are deleted. If that takes too long, the next start continues it.
        Then the directory is not marked as cleanly closed: tools take such a mark for the end of all deletions.
        """
        if self.assembly is None:
            return
        deletes = self.assembly.engine.core.offset_deletes
        while deletes.is_busy and not self.pump.has_failed and not is_too_late():
            await asyncio.sleep(0.002)
        self.assembly.directory.has_unfinished_work = deletes.is_busy

    async def _finish_commits(self) -> None:
        """Commit everything that was appended, without a time limit."""
        pump = self.pump
        while not pump.has_failed and (pump.in_flight or self._is_marking or pump.engine.has_unwritten()):
            pump.schedule_turn()
            await asyncio.sleep(0.002)

    def _close_sockets(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
