"""Runs a server as a separate process."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable
from typing import Final

import kcoord.server.native_modules  # noqa: F401  first, so that the others are found quickly
from kcoord.server.event_loop import new_event_loop
from kcoord.server.failures import EXIT_INTERNAL, EXIT_OK, ServerError
from kcoord.server.listen.descriptors import raise_descriptor_limit
from kcoord.server.logs import ServerLog
from kcoord.server.memory import keep_freed_memory
from kcoord.server.server import SETTLED_S, Server
from kcoord.server.settings.load import Config

# High thresholds for the garbage collector: requests create no reference cycles, and a full collection of a large state
# takes longer than many requests.
GC_THRESHOLDS: Final = (50_000, 20, 50)
TRACE_MAX: Final = 4000
# How often a server that ends with its parent looks for it.
PARENT_LOOK_S: Final = 0.2


Announce = Callable[[str, int], None]
Prepare = Callable[[Server], Awaitable[None]]


async def _watch_parent(server: Server, is_orphan: Callable[[], bool]) -> None:
    while not is_orphan():
        await asyncio.sleep(PARENT_LOOK_S)
    server.request_stop()


async def _serve(
    config: Config, log: ServerLog, announce: Announce, is_orphan: Callable[[], bool] | None, prepare: Prepare | None
) -> None:
    loop = asyncio.get_running_loop()
    server = Server(config, log, prepare=prepare)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, server.request_stop)
    # All objects of a large state stay alive, so a collection while loading would only double the time.
    gc.disable()
    await server.start()
    gc.freeze()
    gc.enable()
    gc.set_threshold(*GC_THRESHOLDS)
    for host, port in server.addresses:
        announce(host, port)
    loop.call_soon(log.open)
    # Not earlier: it takes a few milliseconds, and the first clients wait for a server to start.
    loop.call_later(SETTLED_S, keep_freed_memory)
    watch = None if is_orphan is None else loop.create_task(_watch_parent(server, is_orphan))
    await server.wait()
    if watch is not None:
        watch.cancel()


def run(
    config: Config,
    log: ServerLog,
    announce: Announce,
    is_orphan: Callable[[], bool] | None = None,
    prepare: Prepare | None = None,
) -> int:
    """Serve until SIGTERM, SIGINT, SIGHUP or a failure, and return the exit code.

    `announce(host, port)` is called for each listener once it accepts connections; `prepare(server)` is awaited before
    that. The server also stops when `is_orphan` returns true.
    """
    code = EXIT_OK
    raise_descriptor_limit()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(config, log, announce, is_orphan, prepare))
    except ServerError as error:
        if error.code == EXIT_INTERNAL:
            import traceback

            trace = "".join(traceback.format_exception(error.__cause__ or error))
            log.error("failed", message=error.message, exit_code=error.code, trace=trace[-TRACE_MAX:])
        else:
            log.error("failed", message=error.message, exit_code=error.code)
        code = error.code
    log.open()
    return code
