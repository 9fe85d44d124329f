"""The work of a server beside its requests: retention, compaction, and the snapshots of the metadata log and the state.

It begins when a start is over: nobody waits for it, and its modules take a start several milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import final

from kcoord.log.storage import DiskStorage
from kcoord.server.assembly import Assembly
from kcoord.server.maintenance.metadata_rounds import MetadataRounds
from kcoord.server.maintenance.rounds import Maintenance
from kcoord.server.maintenance.state_checkpoints import StateRounds
from kcoord.server.maintenance.upkeep import Upkeep


@final
class Background:
    def __init__(self, upkeep: Upkeep, assembly: Assembly) -> None:
        self.maintenance = Maintenance(upkeep)
        self.metadata = MetadataRounds(upkeep)
        self.states: StateRounds | None = None
        storage = assembly.directory.storage
        if isinstance(storage, DiskStorage):
            silence_s = upkeep.config.background_silence_ms / 1000
            self.states = StateRounds(upkeep.loop, assembly.engine.states, storage, upkeep.log, silence_s)

    def work(self) -> list[Coroutine[None, None, None]]:
        """What runs until the server stops."""
        maintenance = self.maintenance
        return [
            maintenance.run_retention(),
            maintenance.run_trims(),
            self.metadata.run(),
            maintenance.cleaner.run(),
        ]

    def sweep(self) -> None:
        """Begin the checkpoints of the state that are due. Called every SWEEP_MS while the disk is not full."""
        if self.states is not None:
            self.states.sweep()

    async def finish(self, assembly: Assembly, is_late: Callable[[], bool]) -> None:
        """Write the last checkpoints, which save time at the next start."""
        if self.states is not None:
            await self.states.finish(is_late)
        await self.metadata.finish(assembly, is_late)
        self.metadata.kill()

    def kill(self) -> None:
        """End the child processes at once."""
        if self.states is not None:
            self.states.kill()
        self.metadata.kill()

    async def rest(self, is_too_late: Callable[[], bool]) -> None:
        """Wait until no thread uses the files of the log."""
        await self.metadata.rest(is_too_late)
        await self.maintenance.rest(is_too_late)
