"""An event loop whose time jumps to the next timer when there is nothing to do, so that a day takes seconds.

    with virtual_time() as runner:
        runner.run(main())

Servers and clients must be in this loop, without other threads, and connected over the loopback interface, where what one side has sent can be
read by the other at once. Inside, both clocks of `time` jump with the loop.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import pytest


@final
class Clock:
    """How far the clocks are ahead."""

    def __init__(self) -> None:
        self._monotonic, self._time = time.monotonic, time.time
        self._ahead_s = 0.0

    def monotonic(self) -> float:
        return self._monotonic() + self._ahead_s

    def monotonic_ns(self) -> int:
        return int(self.monotonic() * 1_000_000_000)

    def time(self) -> float:
        return self._time() + self._ahead_s

    def time_ns(self) -> int:
        return int(self.time() * 1_000_000_000)

    def advance(self, seconds: float) -> None:
        self._ahead_s += seconds


@final
class JumpingSelector(selectors.BaseSelector):
    """A selector that does not wait for time to pass."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._inner = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return self._inner.select(None)
        # Twice, because the kernel may need a moment; a wait of its own would take a millisecond at least.
        found = self._inner.select(0) or self._inner.select(0)
        if not found and timeout > 0:
            self._clock.advance(timeout)
        return found

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map()

    def close(self) -> None:
        self._inner.close()


@contextmanager
def virtual_time() -> Iterator[asyncio.Runner]:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("monotonic", "monotonic_ns", "time", "time_ns"):
            patch.setattr(time, name, getattr(clock, name))
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(JumpingSelector(clock))) as runner:
            yield runner
