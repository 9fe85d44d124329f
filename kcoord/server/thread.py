"""A server on its own thread and event loop, for programs that embed it.

It never ends the host process: a failure that would stop a standalone server is raised to the caller of a method.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar, final

from kcoord.core.outcome import Now
from kcoord.log.storage import Storage
from kcoord.server.event_loop import new_event_loop
from kcoord.server.failures import EXIT_INTERNAL, ServerError, classify
from kcoord.server.listen.connection import Host
from kcoord.server.logs import ServerLog
from kcoord.server.pump import read_clocks
from kcoord.server.server import Server
from kcoord.server.settings.listeners import format_address
from kcoord.server.settings.load import Config

T = TypeVar("T")

JOIN_SECONDS = 30.0


@final
class ServerThread:
    """Call `start()`, use `bootstrap`, call `stop()`. Any thread but the server's own may call all methods.

    A `storage` replaces the data directory. `interpose` and `clocks` are those of `Server`; `interpose` is called at
    each start.
    """

    def __init__(
        self,
        config: Config,
        storage: Storage | None = None,
        interpose: Callable[[Server], Host] | None = None,
        clocks: Callable[[], Now] = read_clocks,
        log: ServerLog | None = None,
    ) -> None:
        self.config = config
        # That of `Server`, for the next start.
        self.prepare: Callable[[Server], Awaitable[None]] | None = None
        self.clocks = clocks
        self.storage = storage
        self.interpose = interpose
        self.log = ServerLog(None) if log is None else log
        # Host and port of each listener, once it has started; those of the first one.
        self.addresses: list[tuple[str, int]] = []
        self.host = ""
        self.port = 0
        self.error: ServerError | None = None
        self._server: Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # The loop as long as it runs what it is given; what comes later would never begin.
        self._open_loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of the first listener."""
        return format_address(self.host, self.port)

    def start(self) -> None:
        """Start the server; returns once it accepts connections. Raises ServerError, RuntimeError if it runs already.

        It may be called again after `stop`: the server listens on the same ports.
        """
        if self.is_running:
            raise RuntimeError("the server is already running")
        self.error = None
        self._loop = self._server = None
        self._started.clear()
        self._thread = threading.Thread(target=self._run, name="kcoord", daemon=True)
        self._thread.start()
        self._started.wait()
        self.check()

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def check(self) -> None:
        """Raise the error that ended the server, if there was one."""
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Stop cleanly and wait for it. Raises ServerError if the server had failed."""
        loop, server = self._loop, self._server
        if loop is not None and server is not None and self.is_running:
            try:
                loop.call_soon_threadsafe(server.request_stop)
            except RuntimeError:
                pass  # the server has just ended by itself
        self._wait_end()

    def _wait_end(self) -> None:
        self._join()
        if self.is_running:
            raise ServerError(EXIT_INTERNAL, f"the server did not stop within {JOIN_SECONDS:.0f} s")
        self.check()

    def kill(self) -> None:
        """End the server as kill -9 would, and wait for it. Raises ServerError if it had failed."""
        self.call(lambda server: server.kill())
        self._wait_end()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)

    def call(self, function: Callable[[Server], T]) -> T:
        """Run `function(server)` on the server's thread and return its result."""
        loop, server = self._running()
        done = threading.Event()
        results: list[T] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                results.append(function(server))
            except BaseException as error:  # raised again in the caller's thread
                errors.append(error)
            done.set()

        loop.call_soon_threadsafe(work)
        while not done.wait(0.2):
            if not self.is_running:
                raise self._ended()
        if errors:
            raise errors[0]
        return results[0]

    def run(self, work: Callable[[Server], Coroutine[Any, Any, T]], timeout_s: float | None = None) -> T:
        """Await `work(server)` on the server's loop and return its result. Raises TimeoutError."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        loop, server = self._running()
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            """The coroutine is created here: one that never begins would be reported, whenever it is collected."""
            if self._open_loop is not loop:
                future.cancel()
                return
            try:
                tasks.append(loop.create_task(work(server)))
            except BaseException as error:  # raised again in the caller's thread
                future.set_exception(error)
            else:
                tasks[0].add_done_callback(lambda task: _copy(task, future))

        try:
            loop.call_soon_threadsafe(begin)
        except RuntimeError:
            raise self._ended() from None
        while True:
            try:
                return future.result(0.2)
            except concurrent.futures.CancelledError:
                # The loop has ended; the thread notes the reason as its last action.
                self._join()
                raise self._ended() from None
            except Exception:
                if future.done() and not server.pump.has_failed:
                    raise
                if future.done():
                    self._join()
                if not self.is_running:
                    raise self._ended() from None
                if end_s is not None and time.monotonic() > end_s:
                    with suppress(RuntimeError):  # the server has just ended by itself
                        loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
                    raise TimeoutError(f"{timeout_s:g} s") from None

    def _running(self) -> tuple[asyncio.AbstractEventLoop, Server]:
        self.check()
        loop, server = self._loop, self._server
        if loop is None or server is None or not self.is_running:
            raise ServerError(EXIT_INTERNAL, "the server is not running")
        return loop, server

    def _ended(self) -> ServerError:
        return self.error or ServerError(EXIT_INTERNAL, "the server stopped before the call")

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # the host process must continue after any error
            self.error = classify(error)
            # The host may not call a method for a while, and clients only see that the connection was closed.
            print(f"kcoord: the server in this process ended: {self.error}", file=sys.stderr)
            if self.error.code == EXIT_INTERNAL:
                traceback.print_exception(error, file=sys.stderr)
        finally:
            self._started.set()

    async def _serve(self) -> None:
        server = Server(self.config, self.log, self.storage, self.interpose, self.clocks, self.prepare)
        await server.start()
        self._loop, self._server = asyncio.get_running_loop(), server
        self.addresses = server.addresses
        self.host, self.port = server.addresses[0]
        for listener, (_, port) in zip(self.config.listeners, server.addresses, strict=True):
            listener.port = port
        self._open_loop = self._loop
        self._started.set()
        try:
            await server.wait()
        finally:
            self._open_loop = None


def _copy(task: asyncio.Task[T], future: concurrent.futures.Future[T]) -> None:
    """Pass on how a task has ended."""
    if task.cancelled():
        future.cancel()
        return
    error = task.exception()
    if error is None:
        future.set_result(task.result())
    else:
        future.set_exception(error)
