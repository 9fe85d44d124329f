"""Has state checkpoints written by a process of its own, so that answers never wait for that.

The process works from the files of the log. Whatever becomes of it, the server goes on: a checkpoint that was not
written costs time at the next start.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Final, final

from kcoord.engine.state_checkpoint import StateCheckpoints, StatePlan
from kcoord.log.errors import LogError
from kcoord.log.storage import DiskStorage
from kcoord.server.child import Leash, run_child
from kcoord.server.logs import ServerLog
from kcoord.server.state_child import encode_plan

POLL_S: Final = 0.01
NICENESS: Final = 10


@final
class StateRounds:
    """One round of checkpoints at a time, and a line in the log for each checkpoint.

    `storage` is the one that the logs lie in. Another process must find it, so it is one of the file system.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, states: StateCheckpoints, storage: DiskStorage, log: ServerLog
    ) -> None:
        self._loop = loop
        self._states = states
        self._log = log
        self._root = storage.root
        # Of the round that is under way, or the last one.
        self._leash = Leash()
        self._is_killed = False
        self.is_busy = False

    def sweep(self) -> None:
        """Begin a round if one is due and none is under way."""
        if not self.is_busy:
            self._begin(False)

    async def finish(self, is_too_late: Callable[[], bool]) -> None:
        """At a clean stop, when everything is committed: a last round if it is worth it and there is time."""
        await self._wait(is_too_late)
        if not self.is_busy and self._begin(True):
            await self._wait(is_too_late)
        self.kill()

    async def _wait(self, is_too_late: Callable[[], bool]) -> None:
        while self.is_busy and not is_too_late():
            await asyncio.sleep(POLL_S)

    def kill(self) -> None:
        """End a round that is under way, for good; the old checkpoint stays."""
        self._is_killed = True
        self._leash.kill()

    def _begin(self, at_stop: bool) -> bool:
        try:
            plans = self._states.plans(at_stop)
        except (LogError, OSError) as error:
            # Damage far from where anybody reads or writes now: the next start will say more.
            self._log.warning("state_checkpoint_not_written", reason=str(error))
            return False
        if not plans:
            return False
        self.is_busy = True
        leash = self._leash = Leash()
        # Answers come first where the processors are busy; at a stop there are none any more.
        niceness = 0 if at_stop else NICENESS
        threading.Thread(target=self._run, args=(plans, niceness, leash), name="kcoord-state", daemon=True).start()
        return True

    def _run(self, plans: list[StatePlan], niceness: int, leash: Leash) -> None:
        """In a thread: start the process, wait for it, and report."""
        lines: list[str] = []
        try:
            lines = self._run_child(plans, niceness, leash)
        except OSError as error:
            lines = [str(error)]
        try:
            self._loop.call_soon_threadsafe(self._done, plans, lines)
        except RuntimeError:
            return  # the loop is closed: the server failed meanwhile

    def _run_child(self, plans: list[StatePlan], niceness: int, leash: Leash) -> list[str]:
        encoded = [encode_plan(plan) for plan in plans]
        work = {"root": self._root, "niceness": niceness, "plans": encoded}
        return run_child("kcoord.server.state_child", work, leash.started)

    def _done(self, plans: list[StatePlan], lines: list[str]) -> None:
        self.is_busy = False
        if self._is_killed:
            return
        answers = [json.loads(line) for line in lines if line.startswith("{")]
        facts = []
        for number, plan in enumerate(plans):
            if number >= len(answers):
                reason = lines[-1] if lines else "the process that writes it was ended"
                facts.append(self._states.failed(plan, reason))
            elif "records" in answers[number]:
                facts.append(self._states.written(plan, answers[number]["records"]))
            else:
                facts.append(self._states.failed(plan, answers[number]["error"]))
        self._log.facts(facts)
