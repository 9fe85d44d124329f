"""Lines of standard input and of files, read while a client works on the same event loop."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, NamedTuple

from kcoord.cli.online.run import CommandProblem

CHUNK_BYTES: Final = 256 * 1024
# A line may be longer than any record, but must not fill the memory.
LINE_BYTES_MAX: Final = 256 * 1024 * 1024
STDIN: Final = "-"


class Line(NamedTuple):
    """`where` names it in messages."""

    where: str
    content: bytes


def size_of(path: str) -> int:
    """The size of a regular file; 0 for pipes and terminals. Raises OSError."""
    status = os.fstat(sys.stdin.fileno()) if path == STDIN else os.stat(path)
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


async def lines_of(path: str, delimiter: bytes, step: Callable[[int], None]) -> AsyncGenerator[Line, None]:
    """The lines of a file, or of standard input for `-`; of none, all of it in one. `step` gets the bytes read.

    Raises OSError, and CommandProblem for a line that is too long.
    """
    name = "standard input" if path == STDIN else path
    number = 0
    rest = bytearray()
    async with aclosing(_chunks(path)) as chunks:
        async for chunk in chunks:
            step(len(chunk))
            searched = max(len(rest) - len(delimiter) + 1, 0)
            rest += chunk
            if delimiter and rest.find(delimiter, searched) >= 0:
                *whole, last = bytes(rest).split(delimiter)
                rest = bytearray(last)
                for content in whole:
                    number += 1
                    yield Line(f"{name}, line {number}", content)
            if len(rest) > LINE_BYTES_MAX:
                raise CommandProblem(f"{name}, line {number + 1}: longer than {LINE_BYTES_MAX} bytes")
    if rest or not delimiter:
        yield Line(f"{name}, line {number + 1}" if delimiter else name, bytes(rest))


async def _chunks(path: str) -> AsyncGenerator[bytes, None]:
    descriptor = sys.stdin.fileno() if path == STDIN else os.open(path, os.O_RDONLY)
    try:
        while True:
            await _readable(descriptor)
            chunk = os.read(descriptor, CHUNK_BYTES)
            if not chunk:
                return
            yield chunk
    finally:
        if path != STDIN:
            os.close(descriptor)


async def _readable(descriptor: int) -> None:
    """Wait for input, which may come from a person. A regular file always has some."""
    loop = asyncio.get_running_loop()
    has_input = asyncio.Event()
    try:
        loop.add_reader(descriptor, has_input.set)
    except PermissionError:
        await asyncio.sleep(0)
        return
    try:
        await has_input.wait()
    finally:
        loop.remove_reader(descriptor)
