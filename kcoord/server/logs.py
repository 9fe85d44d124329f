"""What the server says: one line per fact, on standard error.

structlog renders the lines: for people on a terminal, as JSON elsewhere. Loading it takes longer than everything else
at start-up together, so lines are kept until `open` is called, which the server does once it takes connections.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, TextIO, final

from kcoord.core.outcome import WARNING, Fact

INFO: Final = "info"
WARN: Final = "warning"
ERROR: Final = "error"
_RANKS: Final = {INFO: 20, WARN: 30, ERROR: 40}

TEXT_MAX: Final = 1000  # characters of one field: peers choose some of them
RECENT_MAX: Final = 200  # lines that are kept for whoever asks what happened
# Lines of one kind that one turn writes, at some 20 µs each: 10,000 members may leave with one request.
LINES_PER_TURN_MAX: Final = 100


def _clean(value: object) -> object:
    """A field as it may be printed. Peers choose client ids and group ids: no control character reaches a terminal."""
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, bytes):
        return value[: TEXT_MAX // 2].hex()
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value[:100]]
    text = value if isinstance(value, str) else str(value)
    if len(text) > TEXT_MAX:
        text = text[:TEXT_MAX] + "…"
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _timestamp() -> str:
    now_ms = time.time_ns() // 1_000_000
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_ms // 1000)) + f".{now_ms % 1000:03d}Z"


@final
class ServerLog:
    """Writes events to a stream, or to nowhere; `recent` has the last ones either way."""

    def __init__(self, stream: TextIO | None, style: str = "auto", level: str = INFO) -> None:
        self.stream = stream
        self.style = style
        self.rank = _RANKS[level]
        self.recent: deque[dict[str, object]] = deque(maxlen=RECENT_MAX)
        self._waiting: list[dict[str, object]] = []
        self._renderer: Any = None
        # What is repeated too often: the event's name -> (second, how many were left out since).
        self._limited: dict[str, tuple[int, int]] = {}

    def configure(self, style: str, level: str) -> None:
        self.style = style
        self.rank = _RANKS[level]

    def info(self, event: str, **fields: object) -> None:
        self._write(INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(WARN, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._write(ERROR, event, fields)

    def warning_limited(self, event: str, **fields: object) -> None:
        """Like warning, at most one line of an event per second: peers decide how often it happens."""
        second = int(time.monotonic())
        last, left_out = self._limited.get(event, (-1, 0))
        if last == second:
            self._limited[event] = (last, left_out + 1)
            return
        self._limited[event] = (second, 0)
        if left_out:
            fields["left_out"] = left_out
        self._write(WARN, event, fields)

    def facts(self, facts: Iterable[Fact]) -> None:
        """What the core and the engine found worth a line in one turn.

        Those about single connections are limited. Of any kind there are only so many lines, and one that says how many
        more there were.
        """
        counts: dict[str, int] = {}
        for fact in facts:
            count = counts.get(fact.event, 0) + 1
            counts[fact.event] = count
            if fact.event == "connection_refused":
                self.warning_limited(fact.event, **fact.fields)
            elif count <= LINES_PER_TURN_MAX:
                self._write(WARN if fact.level >= WARNING else INFO, fact.event, fact.fields)
        for event, count in counts.items():
            if count > LINES_PER_TURN_MAX and event != "connection_refused":
                self._write(INFO, "lines_left_out", {"of": event, "lines": count - LINES_PER_TURN_MAX})

    def open(self) -> None:
        """Load the renderer and print what was kept."""
        if self._renderer is None and self.stream is not None:
            self._renderer = self._make_renderer(self.stream)
        waiting, self._waiting = self._waiting, []
        for line in waiting:
            self._print(line)

    def _make_renderer(self, stream: TextIO) -> Any:
        import structlog

        style = self.style
        if style == "auto":
            style = "console" if stream.isatty() else "json"
        if style == "console":
            return structlog.dev.ConsoleRenderer(colors=stream.isatty() and not os.environ.get("NO_COLOR"))
        return structlog.processors.JSONRenderer(ensure_ascii=False)

    def _write(self, level: str, event: str, fields: dict[str, object]) -> None:
        if _RANKS[level] < self.rank:
            return
        line: dict[str, object] = {"timestamp": _timestamp(), "level": level, "event": event}
        for name, value in fields.items():
            line[name] = _clean(value)
        self.recent.append(line)
        if self.stream is None:
            return
        if self._renderer is None:
            self._waiting.append(line)
        else:
            self._print(line)

    def _print(self, line: dict[str, object]) -> None:
        try:
            print(self._renderer(None, "", dict(line)), file=self.stream, flush=True)
        except (OSError, ValueError):
            # Whoever read the lines is gone; the server does not stop for that.
            self.stream = None


def standard_error() -> TextIO:
    return sys.stderr
