"""What holds for all tests."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from kcoord.server.event_loop import new_event_loop

# How long an example takes says more about the machine than about us.
settings.register_profile("kcoord", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kcoord")

# The report of a coroutine that was never awaited appears in whichever test runs when it is collected: let it say where
# the coroutine was created.
sys.set_coroutine_origin_tracking_depth(4)

# An asynchronous test that hangs fails by then, so that the others run. `faulthandler_timeout` shows its place earlier.
ASYNC_TEST_S = 600.0

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, LoopFactory]:
    """Which event loops a test runs on. asyncio's and uvloop differ in the order of timers and reads."""
    if item.get_closest_marker("both_event_loops") is None:
        return {"asyncio": asyncio.new_event_loop}
    return {"asyncio": asyncio.new_event_loop, "server": new_event_loop}


def _with_deadline(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
    @functools.wraps(test)
    async def run(*args: Any, **fixtures: Any) -> None:
        await asyncio.wait_for(test(*args, **fixtures), ASYNC_TEST_S)

    return run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = _with_deadline(item.obj)
