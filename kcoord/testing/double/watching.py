"""Waits that the server ends: a condition on its state is looked at after each turn, on the server's thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar, cast, final

from kcoord.core.dispatch import handle_request
from kcoord.core.outcome import Request
from kcoord.engine.engine import Engine
from kcoord.server.pump import read_clocks
from kcoord.server.server import Server
from kcoord.wire.message import Message

M = TypeVar("M", bound=Message)

# Requests of the view have no session.
NO_CONNECTION: Final = 0


@final
class CoreView:
    """The coordinator's own answers, without a connection. Only for requests that change nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def ask(self, api_key: int, version: int, body: Message, response: type[M], /) -> M:
        request = Request(1, NO_CONNECTION, api_key, version, "", "", body)
        outcome = handle_request(self._engine.core, request, read_clocks())
        return cast(M, outcome.replies[0].response)

    def ends(self, topic: str) -> dict[int, tuple[int, int]]:
        """The first offset and the high watermark of each partition."""
        served = self._engine.data_plane.table.by_name.get(topic)
        partitions = [] if served is None else served.partitions
        return {tp.partition: (tp.log.log_start_offset, tp.log.durable_end) for tp in partitions}


def view(server: Server) -> CoreView:
    if server.assembly is None:
        raise RuntimeError("the server is still starting")
    return CoreView(server.assembly.engine)


@final
class Watch:
    """One wait. `is_over` is set when the condition is met, or when looking at it failed."""

    def __init__(self, is_met: Callable[[CoreView], bool]) -> None:
        self._is_met = is_met
        self.is_over = threading.Event()
        self.error: Exception | None = None

    def look(self, seen: CoreView) -> None:
        try:
            if not self._is_met(seen):
                return
        except Exception as error:  # it belongs to the test, not to the server
            self.error = error
        self.is_over.set()


@final
class Watches:
    """The waits of all threads. Used on the server's thread only."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._watches: list[Watch] = []

    def add(self, watch: Watch) -> None:
        watch.look(view(self._server))
        if not watch.is_over.is_set():
            if not self._watches:
                self._server.pump.after_turn.append(self._look)
            self._watches.append(watch)

    def remove(self, watch: Watch) -> None:
        if watch in self._watches:
            self._watches.remove(watch)
            if not self._watches:
                self._server.pump.after_turn.remove(self._look)

    def _look(self) -> None:
        seen = view(self._server)
        for watch in list(self._watches):
            watch.look(seen)
            if watch.is_over.is_set():
                self.remove(watch)
