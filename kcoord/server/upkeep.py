"""What the tasks that look after a server's logs work with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import final

from kcoord.server.assembly import Assembly
from kcoord.server.config import ServerConfig
from kcoord.server.logs import ServerLog


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
