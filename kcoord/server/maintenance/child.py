"""The server's side of the protocol between a server and its child processes (`kcoord.log.parent` is the child's side).

`run_child` starts a kcoord module as a process, sends it its work and reads its answers, in a thread. A failing process
loses its work and has no other effect, whether it does not start, hangs, is stopped or killed, prints garbage, half a
line, or endless output. `ChildRun.reason` is then the reason; the caller logs it and tries again later. Every wait for
a process has a deadline.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, Final, final

# The maximum run time, because a process in an endless loop may report progress. Compacting 800 GB takes this long at
# the gentle pace.
RUN_S_MAX: Final = 24 * 3600.0
# The longest answer lists all segments of a log, 22 bytes each.
LINE_BYTES_MAX: Final = 16 << 20
# The total output of a process, garbage included. The progress reports of a whole day take 3 MB.
OUTPUT_BYTES_MAX: Final = 64 << 20
READ_BYTES: Final = 1 << 16
# How much of the other output is kept: the end of a traceback.
SAID_BYTES_MAX: Final = 4096
# How soon the thread notices that the work was cancelled, or that the process has ended without output.
POLL_MS: Final = 100
# SIGKILL ends even a stopped process at once, unless it hangs in the kernel. Then the server stops waiting for it.
REAP_S: Final = 2.0
# If more time than this passes between two polls, the server itself did not run. It does not count as silence.
LOOK_S_MAX: Final = 1.0
# A reason that is replaced by the exit status once the process was reaped.
ENDED: Final = "ended"


@final
class Leash:
    """Ends a process that a thread starts: at once, or as soon as it has started.

    `kill` is called on the loop and `started` in the thread, in any order. Without it, a process that starts after the
    work was cancelled could still run next to the following server.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._is_over = False

    @property
    def child(self) -> subprocess.Popen[bytes] | None:
        """The process; None before its start and after its end."""
        return self._child

    @property
    def is_over(self) -> bool:
        return self._is_over

    def started(self, child: subprocess.Popen[bytes] | None) -> None:
        self._child = child
        if child is not None and self._is_over:
            child.kill()

    def kill(self) -> None:
        self._is_over = True
        child = self._child
        if child is not None:
            child.kill()


class BadAnswer(Exception):
    """The answer of a process is invalid; the text is the reason."""


def int_of(answer: dict[str, Any], name: str) -> int:
    """A number in an answer, not negative except for a timestamp of -1 (none). Raises BadAnswer."""
    value = answer.get(name)
    if type(value) is not int or value < -1:
        raise BadAnswer(f"its answer has {name} = {str(value)[:100]!r}")
    return value


@final
class ChildRun:
    """The answers of a process, and the reason if some are missing; empty if all arrived."""

    def __init__(self, answers: list[dict[str, Any]], reason: str) -> None:
        self.answers = answers
        self.reason = reason


def run_child(module: str, work: dict[str, Any], leash: Leash, silence_s: float, wanted: int = 1) -> ChildRun:
    """Run a kcoord module as a process until it has sent `wanted` answers. Call it in a thread; it raises nothing.

    `work` includes the `niceness`. The process is ended after `silence_s` seconds without progress.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, bufsize=0,
        )  # fmt: skip
    except OSError as error:
        return ChildRun([], f"it cannot be started: {error}")
    leash.started(child)
    talk = _Talk(child, json.dumps(work).encode() + b"\n", leash, silence_s, wanted)
    try:
        reason = talk.run()
    except (OSError, MemoryError) as error:
        reason = repr(error)
    finally:
        child.kill()
        code = _reap(child)
        leash.started(None)
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
    if reason == ENDED:
        reason = f"it ended {_describe(code)}{talk.last_words()}"
    return ChildRun(talk.answers, reason)


def _reap(child: subprocess.Popen[bytes]) -> int | None:
    try:
        return child.wait(REAP_S)
    except subprocess.TimeoutExpired:
        return None


def _describe(code: int | None) -> str:
    if code is None:
        return "and cannot be waited for"
    if code >= 0:
        return f"with {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"


@final
class _Talk:
    """The communication with one process."""

    def __init__(
        self, child: subprocess.Popen[bytes], request: bytes, leash: Leash, silence_s: float, wanted: int
    ) -> None:
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        self.child = child
        self.leash = leash
        self.silence_s = silence_s
        self.wanted = wanted
        self.answers: list[dict[str, Any]] = []
        self._unsent = memoryview(request)
        self._line = bytearray()
        self._said = b""
        self._read_bytes = 0
        self._progress = -1
        self._silent_s = 0.0
        self._is_closed = False
        self._in = child.stdin.fileno()
        self._out = child.stdout.fileno()
        self._err = child.stderr.fileno()
        self._poller = select.poll()

    def run(self) -> str:
        """Communicate until all answers have arrived, or cannot arrive any more. Returns the reason."""
        for fd in (self._in, self._out, self._err):
            os.set_blocking(fd, False)
        self._poller.register(self._in, select.POLLOUT)
        self._poller.register(self._out, select.POLLIN)
        self._poller.register(self._err, select.POLLIN)
        last_s = time.monotonic()
        ends_s = last_s + RUN_S_MAX
        while True:
            has_ended = self.child.poll() is not None
            events = self._poller.poll(0 if has_ended else POLL_MS)
            now_s = time.monotonic()
            self._silent_s += min(now_s - last_s, LOOK_S_MAX)
            last_s = now_s
            for fd, _ in events:
                self._attend(fd)
            if len(self.answers) >= self.wanted:
                return ""
            if has_ended and not events:
                return ENDED
            reason = self._why_not(now_s >= ends_s)
            if reason:
                return reason

    def _why_not(self, is_too_late: bool) -> str:
        """The reason to stop waiting; empty to continue."""
        if self.leash.is_over:
            return "it was cancelled"
        if self._is_closed and self._silent_s >= REAP_S:
            return "it closed its output but did not end"
        if self._silent_s >= self.silence_s:
            return f"no progress for {self.silence_s:g} s"
        if is_too_late:
            return f"it ran for {RUN_S_MAX:g} s"
        if len(self._line) > LINE_BYTES_MAX:
            return f"a line of more than {LINE_BYTES_MAX} bytes"
        if self._read_bytes > OUTPUT_BYTES_MAX:
            return f"an output of more than {OUTPUT_BYTES_MAX} bytes"
        return ""

    def last_words(self) -> str:
        """The last line of other output, after a colon; empty if there is none."""
        text = (self._said + b"\n" + self._line[:SAID_BYTES_MAX]).decode("utf-8", "replace").strip()
        return ": " + text.rpartition("\n")[2] if text else ""

    def _attend(self, fd: int) -> None:
        if fd == self._in:
            self._send()
            return
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._poller.unregister(fd)
            if fd == self._out:
                self._is_closed = True
                self._silent_s = 0.0
            return
        self._read_bytes += len(data)
        if fd == self._err:
            self._said = (self._said + data)[-SAID_BYTES_MAX:]
        else:
            self._take(data)

    def _send(self) -> None:
        """Send the work. Standard input stays open afterwards: its end shows the process that the server has ended."""
        try:
            sent = os.write(self._in, self._unsent[:READ_BYTES])
            self._unsent = self._unsent[sent:]
        except BlockingIOError:
            return
        except BrokenPipeError:
            # The process has closed its input; its output contains the reason.
            self._unsent = memoryview(b"")
        if not self._unsent:
            self._poller.unregister(self._in)

    def _take(self, data: bytes) -> None:
        if b"\n" not in data:
            self._line += data
            return
        lines = (bytes(self._line) + data).split(b"\n")
        self._line = bytearray(lines.pop())
        for line in lines:
            self._take_line(line)

    def _take_line(self, line: bytes) -> None:
        document = None
        # Most garbage is recognised without parsing it.
        if line.startswith(b'{"'):
            try:
                document = json.loads(line)
            except (ValueError, RecursionError):
                document = None
        if isinstance(document, dict):
            answer, progress = document.get("answer"), document.get("progress")
            if isinstance(answer, dict):
                self.answers.append(answer)
                self._silent_s = 0.0
                return
            if type(progress) is int and progress > self._progress:
                self._progress = progress
                self._silent_s = 0.0
                return
        self._said = line[-SAID_BYTES_MAX:] + b"\n"
