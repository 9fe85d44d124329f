"""The shared context of the maintenance tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, final

from kcoord.core.outcome import Now
from kcoord.server.assembly import Assembly
from kcoord.server.logs import ServerLog
from kcoord.server.settings.config import ServerConfig

# A failed task is retried after this time, then after twice the time, up to a maximum. So a transient failure is
# repaired soon, and a permanent one costs one log message every ten minutes.
RETRY_FIRST_MS: Final = 1000
RETRY_MS_MAX: Final = 10 * 60 * 1000


@final
class Backoff:
    """Decides when to retry. Times are from the monotonic clock, in ms."""

    def __init__(self) -> None:
        self._pause_ms = 0
        self._not_before_ms = 0

    def is_due(self, now_ms: int) -> bool:
        return not self._pause_ms or now_ms >= self._not_before_ms

    def failed(self, now_ms: int) -> None:
        self._pause_ms = min(self._pause_ms * 2, RETRY_MS_MAX) or RETRY_FIRST_MS
        self._not_before_ms = now_ms + self._pause_ms

    def succeeded(self) -> None:
        self._pause_ms = 0


@final
class Upkeep:
    """`assembly` returns the current assembly, None before the first; `wake` makes the pump end a turn.

    `now` is the time of records and of their retention. Pauses after a failed task are about the machine and use its
    own clock.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: ServerConfig,
        log: ServerLog,
        assembly: Callable[[], Assembly | None],
        wake: Callable[[], None],
        now: Callable[[], Now],
    ) -> None:
        self.loop = loop
        self.config = config
        self.log = log
        self.assembly = assembly
        self.wake = wake
        self.now = now
