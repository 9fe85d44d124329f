"""The file with the traces of a failed job; the terminal shows one line.

Spark's JVM and its Python workers inherit stdout and stderr, which are redirected to the file. A job that succeeds
leaves no file.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, final

# How much of the file's end is read to find out why a JVM did not start.
TAIL_BYTES: Final = 64 << 10
MESSAGE_MAX: Final = 300
# Descriptors of stdout, where a JVM writes why it cannot start, and of stderr.
OUTPUTS: Final = (1, 2)
CAUSE: Final = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
# The last line of a Python trace or the first of a Java trace: the class and the message.
RAISED: Final = re.compile(r"^:? ?((?:\w+\.)*\w*(?:Error|Exception)\b.*)$", re.MULTILINE)
# Why a JVM ended: what follows the first kind of line, or a line of the others.
JVM_ERRORS: Final = (
    re.compile(r"^Error occurred during initialization of VM\n(.+)$", re.MULTILINE),
    re.compile(r"^(.*OutOfMemoryError.*)$", re.MULTILINE),
    re.compile(r"^(?:Error: |Exception in thread \S+ )(.+)$", re.MULTILINE),
    # What its archives of classes lack.
    re.compile(r"^\S*\[(?:warning|error) *\]\[cds[^\]]*\] *(.+)$", re.MULTILINE),
)


@final
class TraceFile:
    """`path` is empty without a file. A file that a message names is kept."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.path = ""
        self.is_named = False

    @contextmanager
    def as_output(self) -> Iterator[None]:
        """Processes that are started meanwhile write their stdout and stderr to the file, and so does this one."""
        kept: dict[int, int] = {}
        for number in OUTPUTS:
            # A closed one stays closed.
            with suppress(OSError):
                kept[number] = os.dup(number)
        file = os.open(self._made(), os.O_WRONLY | os.O_APPEND)
        _flush()
        try:
            for number in kept:
                os.dup2(file, number)
            yield
        finally:
            _flush()
            for number, copy in kept.items():
                os.dup2(copy, number)
                os.close(copy)
            os.close(file)

    def add(self, error: BaseException) -> str:
        """Append the traces of an error, Java's too; the path. Raises OSError."""
        text = "".join(traceback.format_exception(error))
        java = getattr(error, "_stackTrace", None)
        if isinstance(java, str) and java not in text:
            text += f"\nJVM stacktrace:\n{java}\n"
        with open(self._made(), "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        return self.keep()

    def keep(self) -> str:
        """Keep the file, for a message that names it; the path."""
        path = self._made()
        self.is_named = True
        return path

    def reason(self) -> str:
        """The reason that a JVM wrote before it ended; empty if there is none."""
        if not self.path:
            return ""
        with open(self.path, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
            text = file.read().decode("utf-8", "replace")
        for kind in JVM_ERRORS:
            found = kind.findall(text)
            if found:
                return short(found[-1])
        return ""

    def close(self) -> None:
        if self.path and not self.is_named:
            os.unlink(self.path)
            self.path = ""

    def _made(self) -> str:
        if not self.path:
            descriptor, self.path = tempfile.mkstemp(prefix=f"kcoord-pipeline-{self.job}-", suffix=".log")
            os.close(descriptor)
        return self.path


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def cause_of(error: BaseException) -> str:
    """One line with the reason: the innermost cause in an error's text."""
    text = str(error)
    found = RAISED.findall(text) if "Traceback (most recent call last)" in text else []
    found = found or CAUSE.findall(text) or RAISED.findall(text)
    if found:
        return short(found[-1])
    line = next((line for line in text.splitlines() if line.strip()), "")
    is_of_spark = type(error).__module__.split(".")[0] in ("pyspark", "py4j")
    return short(line if is_of_spark and line else f"{type(error).__name__}: {line}")


def short(line: str) -> str:
    line = line.strip()
    return line if len(line) <= MESSAGE_MAX else f"{line[: MESSAGE_MAX - 3]}..."
