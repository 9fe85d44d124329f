"""Work in the threads for syncs, and a caller that waits until it has begun."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial

import pytest

from kcoord.server import sync_threads
from kcoord.server.sync_threads import SyncThreads


async def test_a_caller_may_wait_until_the_work_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that computes for long would keep the interpreter's lock, and nobody else would begin anything meanwhile."""
    monkeypatch.setattr(sync_threads, "BEGIN_DEADLINE_S", 60.0)
    threads = SyncThreads(asyncio.get_running_loop())
    over: list[BaseException | None] = []
    for number in range(100):
        may_end = threading.Event()
        threads.run([partial(wait_for, may_end)], over.append, True)
        assert threads._queue.empty() and len(over) == number
        may_end.set()
        while len(over) == number:
            await asyncio.sleep(0)
    threads.stop()


def wait_for(event: threading.Event) -> None:
    event.wait()


async def test_nobody_waits_long_for_a_thread_that_does_not_begin() -> None:
    threads = SyncThreads(asyncio.get_running_loop())
    over: list[BaseException | None] = []
    may_end = threading.Event()
    threads.run([partial(wait_for, may_end)], over.append)
    started = time.monotonic()
    # The only thread is busy with another round.
    threads.run([lambda: None], over.append, True)
    assert time.monotonic() - started >= sync_threads.BEGIN_DEADLINE_S
    assert over == []
    may_end.set()
    while len(over) < 2:
        await asyncio.sleep(0.001)
    assert over == [None, None]
    threads.stop()


async def test_waiting_does_not_hide_what_went_wrong() -> None:
    threads = SyncThreads(asyncio.get_running_loop())
    over: list[BaseException | None] = []
    failure = OSError("the disk is gone")

    def fail() -> None:
        raise failure

    threads.run([fail, lambda: None], over.append, True)
    threads.run([], over.append, True)
    while len(over) < 2:
        await asyncio.sleep(0.001)
    assert failure in over and None in over
    threads.stop()
