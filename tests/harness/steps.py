"""Progress that nobody watches."""

from __future__ import annotations


class Unwatched:
    """Progress of a long operation, which goes nowhere."""

    def begin(self, label: str, total_bytes: int) -> None:
        return

    def step(self, done_bytes: int) -> None:
        return
