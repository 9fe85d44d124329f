"""Runs syncs in separate threads and reports to the event loop.

The threads are daemons: a disk that hangs in a sync must not prevent a failing server from exiting.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from kcoord.server.kernel_syncs import KernelSyncs

# More concurrent syncs do not make a disk faster.
THREADS_MAX: Final = 8
REST_POLL_S: Final = 0.005
# A thread that was woken begins within a tenth of it.
BEGIN_DEADLINE_S: Final = 0.0005

Work = Callable[[], None]
Done = Callable[[BaseException | None], None]


async def in_thread(threads: SyncThreads, work: Work) -> None:
    """Run `work` in one of the threads and await it on the event loop. Raises the exception of `work`."""
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
    """A set of work items that run in parallel and complete together."""

    def __init__(self, count: int, done: Done) -> None:
        self.left = count
        self.done = done
        self.error: BaseException | None = None
        self.lock = threading.Lock()
        # An item for each work item that a thread has begun.
        self.begun: SimpleQueue[None] = SimpleQueue()


@final
class SyncThreads:
    """A pool with as many threads as the largest round so far has items, started on demand."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._queue: SimpleQueue[tuple[Work, Round] | None] = SimpleQueue()
        self._threads = 0
        self._under_way = 0
        # What syncs a file without a thread, if there is such a thing.
        self.kernel: KernelSyncs | None = None

    def run(self, work: Sequence[Work], done: Done, waits_for_begin: bool = False) -> None:
        """Run all of `work`, in any order; then `done(first error or None)` on the loop.

        `waits_for_begin` is for callers that have much to do. A thread needs the interpreter's lock (GIL) to begin, and
        they would keep it until they are through.
        """
        while self._threads < min(len(work), THREADS_MAX):
            self._threads += 1
            threading.Thread(target=self._run, name=f"kcoord-sync-{self._threads}", daemon=True).start()
        if not work:
            self.loop.call_soon(done, None)
            return
        over = self._begin(done)
        together = Round(len(work), over)
        for item in work:
            self._queue.put((item, together))
        if waits_for_begin:
            with suppress(Empty):
                together.begun.get(timeout=BEGIN_DEADLINE_S)

    def _begin(self, done: Done) -> Done:
        self._under_way += 1

        def over(error: BaseException | None) -> None:
            self._under_way -= 1
            done(error)

        return over

    def sync_in_kernel(self, fd: int, done: Done) -> bool:
        """Sync one file without a thread, then `done(error or None)` on the loop. False: take a thread instead."""
        if self.kernel is None:
            return False
        over = self._begin(done)
        if not self.kernel.submit(fd, over):
            self._under_way -= 1
            return False
        return True

    async def rest(self, is_too_late: Callable[[], bool]) -> None:
        """Wait until all threads are idle: a thread continues its work even if the task that awaits it is cancelled."""
        while self._under_way and not is_too_late():
            await asyncio.sleep(REST_POLL_S)

    def stop(self) -> None:
        """Let the threads end after their queued work."""
        for _ in range(self._threads):
            self._queue.put(None)
        self._threads = 0
        if self.kernel is not None:
            self.kernel.stop()
            self.kernel = None

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            work, together = item
            together.begun.put(None)
            error: BaseException | None = None
            try:
                work()
            except BaseException as failure:  # every exception is reported: the loop decides
                error = failure
            with together.lock:
                together.error = together.error or error
                together.left -= 1
                last = together.left == 0
            if last:
                try:
                    self.loop.call_soon_threadsafe(together.done, together.error)
                except RuntimeError:
                    return  # the loop is closed: the server has failed in the meantime
