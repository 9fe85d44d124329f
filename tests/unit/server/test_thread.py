"""Calls from other threads to a server on a thread of its own: what happens to those that come while it stops."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings

import pytest

from kcoord.server.failures import ServerError
from kcoord.server.server import Server
from kcoord.server.settings.load import load
from kcoord.server.thread import ServerThread

ROUNDS = 20


async def nothing(_: Server) -> int:
    return 1


def started() -> ServerThread:
    thread = ServerThread(load(profile="test"))
    thread.start()
    return thread


def call_until_it_ends(thread: ServerThread, ends: list[ServerError]) -> None:
    while True:
        try:
            assert thread.run(nothing) == 1
        except ServerError as error:
            ends.append(error)
            return


def test_no_coroutine_is_left_of_calls_to_a_server_that_stops() -> None:
    """Python reports one that never began when it is collected, and the report fails whichever test runs then."""
    ends: list[ServerError] = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(ROUNDS):
            thread = started()
            callers = [threading.Thread(target=call_until_it_ends, args=(thread, ends)) for _ in range(3)]
            for caller in callers:
                caller.start()
            thread.stop()
            for caller in callers:
                caller.join()
        gc.collect()
    assert [str(one.message) for one in seen if "never awaited" in str(one.message)] == []
    assert len(ends) == 3 * ROUNDS


def test_how_a_call_ends() -> None:
    async def fails(_: Server) -> None:
        raise LookupError("ours")

    async def hangs(_: Server) -> None:
        await asyncio.sleep(60)

    def is_none(_: Server) -> None:
        raise LookupError("before there is a coroutine")

    thread = started()
    with pytest.raises(LookupError, match="ours"):
        thread.run(fails)
    with pytest.raises(LookupError, match="before there is"):
        thread.run(is_none)  # type: ignore[arg-type]
    with pytest.raises(TimeoutError, match="0.1 s"):
        thread.run(hangs, 0.1)
    assert thread.run(nothing) == 1
    thread.stop()
    with pytest.raises(ServerError, match="not running"):
        thread.run(nothing)
