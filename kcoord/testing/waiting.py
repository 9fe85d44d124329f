"""What all waits of a test have in common."""

from __future__ import annotations

import asyncio
from typing import Final

TIMEOUT_S: Final = 10.0


class WaitTimeout(AssertionError):
    """A condition was not met in time; the message shows the last state."""


def refuse_on_event_loop() -> None:
    """A wait must not block an event loop. Raises RuntimeError."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("this would block the event loop; use the form with _async, such as wait_stable_async")
