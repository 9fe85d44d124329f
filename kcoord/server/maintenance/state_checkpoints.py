"""Lets a child process write state checkpoints, so that requests never wait for it.

The process reads the files of the log. If it fails, the server continues: without a new checkpoint the next start only
takes longer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final, final

from kcoord.core.outcome import Fact
from kcoord.engine.state_checkpoint import StateCheckpoints, StatePlan
from kcoord.log.errors import LogError
from kcoord.log.storage import DiskStorage
from kcoord.server.logs import ServerLog
from kcoord.server.maintenance.child import BadAnswer, ChildRun, Leash, int_of, run_child
from kcoord.server.maintenance.state_child import encode_plan
from kcoord.server.maintenance.upkeep import Backoff
from kcoord.server.pump import read_clocks

CHILD: Final = "kcoord.server.maintenance.state_child"
POLL_S: Final = 0.01
NICENESS: Final = 10
# After a successful round comes a pause of this many times its length: at the highest rates, or on a slow machine, the
# next one may be due soon, and its process takes a part of a processor that the clients could use.
PAUSES: Final = 4
PAUSE_MS_MAX: Final = 2000
# For so long after it, a round waits until a start would replay much.
WAIT_MS: Final = 10_000


@final
class StateRounds:
    """One round of checkpoints at a time, and a line in the log for each checkpoint.

    `storage` contains the logs. The child process needs them on disk.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        states: StateCheckpoints,
        storage: DiskStorage,
        log: ServerLog,
        silence_s: float,
    ) -> None:
        self._loop = loop
        self._states = states
        self._log = log
        self._root = storage.root
        self._silence_s = silence_s
        self._backoff = Backoff()
        # For the process of the current or the last round.
        self._leash = Leash()
        self._is_killed = False
        self.is_busy = False
        # By the monotonic clock.
        self._began_ms = 0
        self._not_before_ms = 0
        self._may_wait_until_ms = 0

    def sweep(self) -> None:
        """Begin a round if one is due and none is running."""
        now_ms = read_clocks().mono_ms
        if not self.is_busy and now_ms >= self._not_before_ms and self._backoff.is_due(now_ms):
            self._begin(False, now_ms < self._may_wait_until_ms)

    async def finish(self, is_too_late: Callable[[], bool]) -> None:
        """At a clean stop, after the last commit, run a last round if it pays and there is time."""
        await self._wait(is_too_late)
        if not self.is_busy and self._begin(True, False):
            await self._wait(is_too_late)
        self.kill()

    async def _wait(self, is_too_late: Callable[[], bool]) -> None:
        while self.is_busy and not is_too_late():
            await asyncio.sleep(POLL_S)

    def kill(self) -> None:
        """Cancel a running round and all later ones. The old checkpoint stays."""
        self._is_killed = True
        self._leash.kill()

    def _begin(self, at_stop: bool, may_wait: bool) -> bool:
        try:
            plans = self._states.plans(at_stop, may_wait)
        except (LogError, OSError) as error:
            # Damage in a part of the log that the server does not use now. The next start reports it.
            self._note_failure(error)
            return False
        if not plans:
            return False
        self.is_busy = True
        self._began_ms = read_clocks().mono_ms
        leash = self._leash = Leash()
        # A low priority, so that requests come first. At a stop there are none.
        niceness = 0 if at_stop else NICENESS
        threading.Thread(target=self._run, args=(plans, niceness, leash), name="kcoord-state", daemon=True).start()
        return True

    def _run(self, plans: list[StatePlan], niceness: int, leash: Leash) -> None:
        """In a thread: start the process, wait for it, and report."""
        try:
            encoded = [encode_plan(plan) for plan in plans]
            work = {"root": self._root, "niceness": niceness, "plans": encoded}
            run = run_child(CHILD, work, leash, self._silence_s, len(plans))
        except Exception as error:  # the loop must learn in any case that the round is over
            run = ChildRun([], repr(error))
        try:
            self._loop.call_soon_threadsafe(self._done, plans, run)
        except RuntimeError:
            return  # the loop is closed: the server has failed in the meantime

    def _done(self, plans: list[StatePlan], run: ChildRun) -> None:
        self.is_busy = False
        now_ms = read_clocks().mono_ms
        if self._is_killed:
            return
        facts: list[Fact] = []
        has_failed = False
        for number, plan in enumerate(plans):
            try:
                facts.append(self._states.written(plan, records_of(run, number)))
            except BadAnswer as error:
                has_failed = True
                facts.append(self._states.failed(plan, str(error)))
        self._log.facts(facts)
        if has_failed:
            self._backoff.failed(now_ms)
        else:
            self._backoff.succeeded()
            self._not_before_ms = now_ms + min((now_ms - self._began_ms) * PAUSES, PAUSE_MS_MAX)
            self._may_wait_until_ms = now_ms + WAIT_MS

    def _note_failure(self, error: Exception) -> None:
        self._backoff.failed(read_clocks().mono_ms)
        self._log.warning("state_checkpoint_not_written", reason=str(error))


def records_of(run: ChildRun, number: int) -> int:
    """The number of records in the checkpoint of answer `number`. Raises BadAnswer if it was not written."""
    if number >= len(run.answers):
        raise BadAnswer(run.reason)
    answer = run.answers[number]
    if "error" in answer:
        raise BadAnswer(str(answer["error"]))
    return int_of(answer, "records")
