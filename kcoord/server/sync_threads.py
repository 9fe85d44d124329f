"""Runs syncs in threads of their own and reports back to the event loop.

The threads are daemons: a disk that hangs in a sync must not keep a failing server from ending.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Final, final

# A disk gains nothing from more syncs at once.
THREADS_MAX: Final = 8
REST_POLL_S: Final = 0.005

Work = Callable[[], None]
Done = Callable[[BaseException | None], None]


async def in_thread(threads: SyncThreads, work: Work) -> None:
    """Run `work` in one of the threads and wait for it, on the loop that they report to. Raises what it raises."""
    future: asyncio.Future[None] = threads.loop.create_future()

    def done(error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(None)

    threads.run([work], done)
    await future


@final
class Round:
    """Work that runs in parallel and is done together."""

    def __init__(self, count: int, done: Done) -> None:
        self.left = count
        self.done = done
        self.error: BaseException | None = None
        self.lock = threading.Lock()


@final
class SyncThreads:
    """As many threads as the widest round so far has work, started when they are needed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._queue: SimpleQueue[tuple[Work, Round] | None] = SimpleQueue()
        self._threads = 0
        self._under_way = 0

    def run(self, work: Sequence[Work], done: Done) -> None:
        """Run all of `work`, in any order; then `done(first error or None)` on the loop."""
        while self._threads < min(len(work), THREADS_MAX):
            self._threads += 1
            threading.Thread(target=self._run, name=f"kcoord-sync-{self._threads}", daemon=True).start()
        if not work:
            self.loop.call_soon(done, None)
            return
        self._under_way += 1

        def over(error: BaseException | None) -> None:
            self._under_way -= 1
            done(error)

        together = Round(len(work), over)
        for item in work:
            self._queue.put((item, together))

    async def rest(self, is_too_late: Callable[[], bool]) -> None:
        """Wait until nothing is under way: a thread goes on with its work where a cancelled task no longer waits."""
        while self._under_way and not is_too_late():
            await asyncio.sleep(REST_POLL_S)

    def stop(self) -> None:
        """The threads end when what they were given is done."""
        for _ in range(self._threads):
            self._queue.put(None)
        self._threads = 0

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            work, together = item
            error: BaseException | None = None
            try:
                work()
            except BaseException as failure:  # reported, whatever it is: the loop decides
                error = failure
            with together.lock:
                together.error = together.error or error
                together.left -= 1
                last = together.left == 0
            if last:
                try:
                    self.loop.call_soon_threadsafe(together.done, together.error)
                except RuntimeError:
                    return  # the loop is closed: the server failed meanwhile
