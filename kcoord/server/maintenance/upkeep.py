"""What the tasks that look after a server's logs work with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, final

from kcoord.server.assembly import Assembly
from kcoord.server.logs import ServerLog
from kcoord.server.settings.load import ServerConfig

# What failed is tried again after so long, then after twice as long, up to the most. What failed once for no lasting
# reason is done soon; what fails always costs a line in the log every ten minutes.
RETRY_FIRST_MS: Final = 1000
RETRY_MS_MAX: Final = 10 * 60 * 1000


@final
class Backoff:
    """When to try again. Times are of the monotonic clock, in ms."""

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
    """`assembly` gives the one that is served now, None before there is one; `wake` has the pump end a turn."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: ServerConfig,
        log: ServerLog,
        assembly: Callable[[], Assembly | None],
        wake: Callable[[], None],
    ) -> None:
        self.loop = loop
        self.config = config
        self.log = log
        self.assembly = assembly
        self.wake = wake
