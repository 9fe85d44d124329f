"""The life of a test's server: starts and stops, kills, and states to come back to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self, final

from kcoord.log.storage import MemoryStorage, Storage
from kcoord.server.logs import ServerLog
from kcoord.server.server import Server
from kcoord.server.settings.load import Config
from kcoord.server.settings.table import SYNC_MEMORY
from kcoord.testing.double.clock import VirtualClock
from kcoord.testing.state.disk import DiskFaults, ForgetfulStorage
from kcoord.testing.state.tools import StateTools
from kcoord.testing.waiting import refuse_on_event_loop


@final
class Snapshot:
    """The state of a server at one moment. It can be restored any number of times."""

    def __init__(self, files: MemoryStorage) -> None:
        self._files = files

    def copy(self) -> MemoryStorage:
        return self._files.copy()


class ServerLife(StateTools):
    """The part of the fixture that starts, stops and replaces the server. `disk` replaces the data directory."""

    def __init__(
        self,
        config: Config,
        clock: VirtualClock | None = None,
        log: ServerLog | None = None,
        brokers: int = 1,
        disk: ForgetfulStorage | None = None,
    ) -> None:
        if disk is not None and config.server.log_sync == SYNC_MEMORY:
            raise ValueError("a disk in memory needs log.sync = always or os: memory writes to no disk")
        super().__init__(config, clock, log, brokers)
        self._thread.storage = disk

    @property
    def is_running(self) -> bool:
        """False before `start`, and after `stop`, `kill` or a failure."""
        return self._thread.is_running

    def start(self) -> None:
        """Start the server. Raises kcoord.server.failures.ServerError.

        A server that was stopped or killed can be started again, at the same address. After `stop`, state in memory is
        lost (see `restart`); a data directory (`log.dirs` with `log.sync` other than `memory`) is opened again.
        """
        self._thread.start()
        self._keep(self._disk())

    def stop(self) -> None:
        """Stop the server: requests that it has read are answered. Raises ServerError if it had failed."""
        self._thread.stop()

    def restart(self) -> None:
        """Stop the server and start it again, with its state also if that is in memory. Clients have to reconnect."""
        refuse_on_event_loop()
        storage = self._thread.call(_storage)
        self.stop()
        self._keep(storage)
        self.start()

    async def restart_async(self) -> None:
        """Like restart."""
        await asyncio.to_thread(self.restart)

    def kill(self, power_cut: bool = False) -> None:
        """End the server as kill -9 would: connections are cut, and nothing more is answered or written.

        `start` continues with what a disk would have: everything that was acknowledged, also if it is in memory. With
        `power_cut` that is only what was synced: everything acknowledged with `log.sync` = `always`, less with `os`,
        nothing with `memory`. It needs a KcoordServer(memory_disk=True) unless `log.sync` is `memory`.
        """
        storage = self._thread.call(_storage)
        if power_cut and not isinstance(storage, MemoryStorage):
            raise ValueError("a real disk keeps its data: a power cut needs KcoordServer(..., memory_disk=True)")
        self._thread.kill()
        if power_cut:
            self._keep(storage.crash() if isinstance(storage, ForgetfulStorage) else None)
        else:
            self._keep(storage)

    def check(self) -> None:
        """Raise ServerError if the server has failed."""
        self._thread.check()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end_phantoms()
        self.stop()

    # --- the disk

    @contextmanager
    def slow_disk(self, sync_seconds: float) -> Iterator[None]:
        """In this block each sync of a file takes this time. Needs KcoordServer(memory_disk=True)."""
        faults = self._faults()
        faults.sync_delay_s = sync_seconds
        try:
            yield
        finally:
            faults.sync_delay_s = 0.0

    @contextmanager
    def failing_disk(self) -> Iterator[None]:
        """In this block syncs fail. The first one ends the server, as a broker whose only log directory fails.

        Nothing that it has acknowledged is lost; `start` it again after the block. Needs
        KcoordServer(memory_disk=True).
        """
        faults = self._faults()
        faults.fails = True
        try:
            yield
        finally:
            faults.fails = False

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """In this block no byte is free: writes are answered with errors that clients retry. Only in memory."""
        storage = self._thread.call(_storage)
        if not isinstance(storage, MemoryStorage):
            raise ValueError(
                "a real disk is as full as it is: use log.sync = memory, or KcoordServer(memory_disk=True)"
            )
        self._set_full(True)
        try:
            yield
        finally:
            self._set_full(False)

    def _set_full(self, is_full: bool) -> None:
        def work(server: Server) -> None:
            storage = _storage(server)
            if isinstance(storage, ForgetfulStorage):
                # The server measures it now and then.
                storage.faults.is_full = is_full
            assert server.assembly is not None
            server.assembly.engine.set_disk_full(is_full)
            server.pump.schedule_turn()

        self._thread.call(work)

    def _faults(self) -> DiskFaults:
        storage = self._thread.call(_storage)
        if not isinstance(storage, ForgetfulStorage):
            raise ValueError("this needs a disk in memory: KcoordServer(memory_disk=True)")
        return storage.faults

    # --- states

    def reset(self) -> None:
        """Delete every topic, group, offset and producer, in milliseconds. Idle clients stay connected.

        Also removes all rules, ends all phantom members, and forgets the requests and log lines of earlier tests.
        """
        self._replace(None)

    def begin_test(self) -> None:
        """`reset`, and start the server if an earlier test has stopped or killed it, or has reported its failure."""
        if not self.is_running:
            self.start()
        self.reset()

    def snapshot(self) -> Snapshot:
        """The state with everything that was acknowledged: topics, records, groups, transactions. Only in memory."""
        return Snapshot(self._thread.call(lambda server: server.copy_memory()))

    def restore(self, snapshot: Snapshot) -> None:
        """Continue with the state of a snapshot, also of another server. Everything else is as with `reset`.

        As after a restart of a broker, groups keep their members, with new session timeouts. So a snapshot should be
        taken when no group has members.
        """
        self._replace(snapshot.copy())

    def _replace(self, storage: MemoryStorage | None) -> None:
        self.end_phantoms()
        self.clear_faults()
        self._thread.call(lambda server: server.reset(storage))
        self._thread.log.recent.clear()

    def _disk(self) -> Storage | None:
        """What every start uses: a disk in memory if there is one."""
        storage = self._thread.storage
        return storage if isinstance(storage, ForgetfulStorage) else None

    def _keep(self, storage: Storage | None) -> None:
        """Have the next start use this storage, if it is one in memory."""
        self._thread.storage = storage if isinstance(storage, MemoryStorage) else None


def _storage(server: Server) -> Storage:
    assert server.assembly is not None
    return server.assembly.directory.storage
