"""The time that a call has left, and the pauses between its attempts."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final, final

from kcoord.client.errors import KafkaError, RequestTimedOut

# As `retry.backoff.ms` and `retry.backoff.max.ms` of Kafka's clients (KIP-580).
BACKOFF_S: Final = 0.1
BACKOFF_MAX_S: Final = 1.0
JITTER: Final = 0.2


@final
class Deadline:
    """The end of a call that may take `timeout_s` seconds from now on."""

    def __init__(self, timeout_s: float, what: str = "the call") -> None:
        self.timeout_s = timeout_s
        self.what = what
        self.end_s = time.monotonic() + timeout_s
        # Why the last attempt failed.
        self.cause: KafkaError | None = None

    def left_s(self) -> float:
        """Seconds that are left, 0 at the least."""
        return max(self.end_s - time.monotonic(), 0.0)

    def is_over(self) -> bool:
        return time.monotonic() >= self.end_s

    def error(self) -> RequestTimedOut:
        """The exception for a call that has come to its deadline; its cause is the last failure."""
        text = f"{self.what}: no result within {self.timeout_s:g} s"
        if self.cause is not None:
            text += f"; the last attempt: {self.cause}"
        error = RequestTimedOut(text)
        error.__cause__ = self.cause
        return error

    def check(self) -> None:
        """Raise RequestTimedOut after the deadline."""
        if self.is_over():
            raise self.error()

    async def pause(self, backoff: Backoff, cause: KafkaError | None = None) -> None:
        """Wait before the next attempt. Raises RequestTimedOut if the deadline comes first."""
        self.cause = cause or self.cause
        pause_s = backoff.next_s()
        if pause_s >= self.left_s():
            raise self.error()
        await asyncio.sleep(pause_s)


@final
class Backoff:
    """Pauses that double with each failure up to a limit, with a random part so that clients spread."""

    def __init__(self, start_s: float = BACKOFF_S, max_s: float = BACKOFF_MAX_S) -> None:
        self.start_s = start_s
        self.max_s = max_s
        self.failures = 0

    def next_s(self) -> float:
        """The next pause in seconds."""
        pause_s: float = min(self.start_s * 2.0 ** min(self.failures, 16), self.max_s)
        self.failures += 1
        return pause_s * random.uniform(1 - JITTER, 1 + JITTER)

    def reset(self) -> None:
        self.failures = 0
