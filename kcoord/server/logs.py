"""The server's log: one line per fact, on standard error.

Lines are text for people on a terminal, and JSON elsewhere. They wait until `open` is called, which the server does
once it accepts connections: clients wait for a start, and nobody for its log. A library for logs would hold up the
first clients: structlog takes 20 ms to import, and 80 where rich is installed, which it imports as well.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TextIO, final

from kcoord.core import outcome
from kcoord.core.outcome import Fact

DEBUG: Final = "debug"
INFO: Final = "info"
WARN: Final = "warning"
ERROR: Final = "error"
_LEVELS: Final = {outcome.DEBUG: DEBUG, outcome.INFO: INFO, outcome.WARNING: WARN, outcome.ERROR: ERROR}
_RANKS: Final = {DEBUG: 10, INFO: 20, WARN: 30, ERROR: 40}

TEXT_MAX: Final = 1000  # characters of one field: peers choose some of them
# Of a traceback the end is kept: it names the error. JSON has it in one line, a terminal gets its lines.
TRACEBACK: Final = "traceback"
TRACEBACK_MAX: Final = 8000
RECENT_MAX: Final = 200  # lines kept in memory, for the pytest plugin's report of a failure
# Facts of one event that become lines: of what clients do normally, of warnings and errors, and at debug. A line costs
# some 20 µs, and 10,000 groups may rebalance at once.
INFO_PER_SECOND_MAX: Final = 20
WARNINGS_PER_SECOND_MAX: Final = 100
LINES_PER_TURN_MAX: Final = 100
_COLORS: Final = {DEBUG: "2", INFO: "32", WARN: "33;1", ERROR: "31;1"}


def _clean(value: object) -> object:
    """A field, safe to print. Clients choose client ids and group ids: no control character may reach a terminal."""
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


def _clean_traceback(value: object) -> str:
    """A traceback with its lines. What clients chose is in it, too."""
    return "\n".join(str(_clean(line)) for line in str(value)[-TRACEBACK_MAX:].rstrip().splitlines())


def _fields(fact: Fact) -> dict[str, object]:
    """The fields of a fact's line: its kind first, where it has one."""
    return {"kind": fact.kind, **fact.fields} if fact.kind else fact.fields


def _timestamp() -> str:
    now_ms = time.time_ns() // 1_000_000
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_ms // 1000)) + f".{now_ms % 1000:03d}Z"


def render_text(line: dict[str, object], has_colors: bool) -> str:
    """A line for a terminal: time of day (UTC), level, event, fields. Without padding, which would only wrap it."""
    level, event = str(line["level"]), str(line["event"])
    time_of_day = str(line["timestamp"])[11:]
    if has_colors:
        level = f"\x1b[{_COLORS[level]}m{level}\x1b[0m"
        event = f"\x1b[1m{event}\x1b[0m"
        time_of_day = f"\x1b[2m{time_of_day}\x1b[0m"
    apart = ("timestamp", "level", "event", TRACEBACK)
    fields = [f"{name}={_text(line[name])}" for name in line if name not in apart]
    text = " ".join([time_of_day, level, event, *fields])
    return text + "\n    " + str(line[TRACEBACK]).replace("\n", "\n    ") if TRACEBACK in line else text


def _text(value: object) -> str:
    """A value of a field, in quotes if it would not end at the next space."""
    if isinstance(value, list):
        return ",".join(_text(item) for item in value) or "none"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    text = str(value)
    return text if text and " " not in text and '"' not in text else '"' + text.replace('"', "'") + '"'


@final
class LeftOut:
    """Facts of one event in the current second: how many there were, and of those without a line how many by cause."""

    def __init__(self, level: str) -> None:
        self.level = level
        self.count = 0
        self.left_out = 0
        self.causes: dict[str, int] = {}

    def is_over(self, cause: object) -> bool:
        """Count one more; whether it gets no line."""
        self.count += 1
        if self.count <= (INFO_PER_SECOND_MAX if self.level == INFO else WARNINGS_PER_SECOND_MAX):
            return False
        self.left_out += 1
        if isinstance(cause, str) and cause:
            self.causes[cause] = self.causes.get(cause, 0) + 1
        return True


@final
class ServerLog:
    """Writes events to a stream, or nowhere when it is None; `recent` has the last events in both cases."""

    def __init__(self, stream: TextIO | None, style: str = "auto", level: str = INFO) -> None:
        self.stream = stream
        self.style = style
        self.rank = _RANKS[level]
        # Connections ask once, and report their requests only then.
        self.has_debug = level == DEBUG
        self.recent: deque[dict[str, object]] = deque(maxlen=RECENT_MAX)
        self._waiting: list[dict[str, object]] = []
        # None until `open`.
        self._render: Callable[[dict[str, object]], str] | None = None
        # Threads log as well.
        self._lock = threading.Lock()
        # For `warning_limited`, by event: the second of the last line, and how many lines were left out since.
        self._limited: dict[str, tuple[int, int]] = {}
        # Facts of the current second, by event.
        self._second = 0
        self._counts: dict[str, LeftOut] = {}

    def info(self, event: str, **fields: object) -> None:
        self._write(INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(WARN, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._write(ERROR, event, fields)

    def warning_limited(self, event: str, **fields: object) -> None:
        """Like `warning`, but at most one line per event and second: clients decide how often the event happens."""
        self._write_limited(WARN, event, fields)

    def error_limited(self, event: str, **fields: object) -> None:
        """Like `error`, but at most one line per event and second."""
        self._write_limited(ERROR, event, fields)

    def _write_limited(self, level: str, event: str, fields: dict[str, object]) -> None:
        second = int(time.monotonic())
        last, left_out = self._limited.get(event, (-1, 0))
        if last == second:
            self._limited[event] = (last, left_out + 1)
            return
        self._limited[event] = (second, 0)
        if left_out:
            fields["left_out"] = left_out
        self._write(level, event, fields)

    def facts(self, facts: Iterable[Fact]) -> None:
        """Log the facts that the core and the engine reported in one turn.

        Refused connections have at most one line per second. Of any other event INFO_PER_SECOND_MAX or
        WARNINGS_PER_SECOND_MAX facts have lines in one second, and LINES_PER_TURN_MAX in one turn at level debug;
        one more line counts the others.
        """
        self.note_left_out()
        debugs: dict[str, int] = {}
        for fact in facts:
            level = _LEVELS[fact.level]
            if _RANKS[level] < self.rank:
                continue
            if fact.event == "connection_refused":
                self.warning_limited(fact.event, **_fields(fact))
            elif level == DEBUG:
                count = debugs[fact.event] = debugs.get(fact.event, 0) + 1
                if count <= LINES_PER_TURN_MAX:
                    self._write(level, fact.event, _fields(fact))
            else:
                counts = self._counts.get(fact.event)
                if counts is None:
                    counts = self._counts[fact.event] = LeftOut(level)
                if not counts.is_over(fact.fields.get("cause")):
                    self._write(level, fact.event, _fields(fact))
        for event, count in debugs.items():
            if count > LINES_PER_TURN_MAX:
                self._write(DEBUG, "lines_left_out", {"of": event, "lines": count - LINES_PER_TURN_MAX})

    def note_left_out(self, is_end: bool = False) -> None:
        """Once a second has passed, or at the end of the server: count the facts of that second without a line."""
        second = int(time.monotonic())
        if second == self._second and not is_end:
            return
        self._second = second
        counts, self._counts = self._counts, {}
        for event, left in counts.items():
            if left.left_out:
                self._write(left.level, "lines_left_out", {"of": event, "lines": left.left_out, **left.causes})

    def open(self) -> None:
        """Print the lines that waited, and from now on each line at once."""
        if self._render is None and self.stream is not None:
            self._render = self._make_renderer(self.stream)
        waiting, self._waiting = self._waiting, []
        for line in waiting:
            self._print(line)

    def _make_renderer(self, stream: TextIO) -> Callable[[dict[str, object]], str]:
        style = self.style
        if style == "auto":
            style = "console" if stream.isatty() else "json"
        if style == "console":
            has_colors = stream.isatty() and not os.environ.get("NO_COLOR")
            return lambda line: render_text(line, has_colors)
        return json.JSONEncoder(ensure_ascii=False, default=repr).encode

    def _write(self, level: str, event: str, fields: dict[str, object]) -> None:
        if _RANKS[level] < self.rank:
            return
        line: dict[str, object] = {"timestamp": _timestamp(), "level": level, "event": event}
        for name, value in fields.items():
            line[name] = _clean_traceback(value) if name == TRACEBACK else _clean(value)
        self.recent.append(line)
        if self.stream is None:
            return
        if self._render is None:
            self._waiting.append(line)
        else:
            self._print(line)

    def _print(self, line: dict[str, object]) -> None:
        stream, render = self.stream, self._render
        if stream is None or render is None:
            return
        try:
            text = render(line)
            with self._lock:
                stream.write(text + "\n")
                stream.flush()
        except (OSError, ValueError):
            # The reader of the stream has closed it. The server continues without a log.
            self.stream = None
