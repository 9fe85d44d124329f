"""The control socket: `kcoord.sock` in the data directory, for tools of the same user on the same machine.

One request per connection: four bytes of length, then a JSON object with `command`. The answer has the same form, with
`error` and `code` (an exit code) after a failure. With `"progress": true` in the request, a frame with `done` and
`total` (bytes) and `steps` (a growing number) precedes the answer every PROGRESS_S. Commands that are not part of
Kafka's protocol use this socket, never a listener. `kcoord.server.control_client` is the other side.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final, final

from kcoord.log.errors import LogError, StorageError
from kcoord.log.steps import Steps
from kcoord.server.assembly import Assembly
from kcoord.server.failures import classify
from kcoord.server.logs import ServerLog
from kcoord.server.pump import read_clocks
from kcoord.server.sync_threads import SyncThreads, in_thread

SOCKET_NAME: Final = "kcoord.sock"
# The maximum length of a Unix socket's path on all supported systems.
PATH_BYTES_MAX: Final = 103
FRAME_BYTES_MAX: Final = 1 << 20
REQUEST_DEADLINE_S: Final = 10.0
CONNECTIONS_MAX: Final = 8
IDLE_POLL_S: Final = 0.01
PROGRESS_S: Final = 0.2
# Segments are exchanged by renames and three syncs of a directory.
EXCHANGE_S_MAX: Final = 30.0


@final
class Tally:
    """The progress of the thread that creates a snapshot."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0
        self.steps = 0

    def begin(self, label: str, total_bytes: int) -> None:
        self.total = total_bytes

    def step(self, done_bytes: int) -> None:
        self.done += done_bytes
        self.steps += 1


@final
class Control:
    """Listens on the socket and executes commands."""

    def __init__(
        self,
        data_dir: str,
        log: ServerLog,
        assembly: Callable[[], Assembly | None],
        is_exchanging: Callable[[], bool],
    ) -> None:
        self.data_dir = os.path.abspath(data_dir)
        self.path = os.path.join(self.data_dir, SOCKET_NAME)
        self.log = log
        self.assembly = assembly
        # Whether compacted segments replace others at this moment.
        self.is_exchanging = is_exchanging
        self._server: asyncio.Server | None = None
        # Separate threads, so that a snapshot does not wait for the removal of segments.
        self._threads = SyncThreads(asyncio.get_running_loop())
        self._busy = asyncio.Lock()
        self._connections = 0

    async def start(self) -> None:
        """Start to listen. If the socket cannot be created, the server runs without it."""
        if len(os.fsencode(self.path)) > PATH_BYTES_MAX:
            self.log.warning("control_socket", reason=f"{self.path} is too long for the path of a socket")
            return
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # This process holds the directory's lock, so an existing socket belongs to a dead server.
            if os.path.lexists(self.path):
                os.unlink(self.path)
            mask = os.umask(0o177)
            try:
                listening.bind(self.path)
            finally:
                os.umask(mask)
            self._server = await asyncio.start_unix_server(self._serve, sock=listening)
        except OSError as error:
            listening.close()
            self.log.warning("control_socket", reason=str(error))

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
            if os.path.lexists(self.path):
                os.unlink(self.path)
        self._threads.stop()

    async def rest(self, is_too_late: Callable[[], bool]) -> None:
        """Wait for a snapshot in progress."""
        await self._threads.rest(is_too_late)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._connections >= CONNECTIONS_MAX:
            writer.close()
            return
        self._connections += 1
        try:
            request = await asyncio.wait_for(_read_frame(reader), REQUEST_DEADLINE_S)
            tally = Tally()
            answer = asyncio.ensure_future(self._answer(request, tally))
            while not (await asyncio.wait((answer,), timeout=PROGRESS_S))[0]:
                if request.get("progress") and not writer.is_closing():
                    frame = {"done": tally.done, "total": tally.total, "steps": tally.steps}
                    writer.write(frame_of(frame))
            writer.write(frame_of(answer.result()))
            await asyncio.wait_for(writer.drain(), REQUEST_DEADLINE_S)
        except (TimeoutError, ValueError, OSError, RecursionError, asyncio.IncompleteReadError):
            pass  # not a kcoord tool, or it disconnected
        finally:
            self._connections -= 1
            writer.close()

    async def _answer(self, request: dict[str, Any], steps: Steps) -> dict[str, Any]:
        try:
            if request.get("command") != "snapshot":
                raise StorageError(f"unknown command {str(request.get('command'))[:100]!r}")
            async with self._busy:
                return await self.snapshot(str(request.get("name", "")), steps)
        except (LogError, OSError) as error:
            failure = classify(error)
            return {"error": failure.message, "code": failure.code}

    async def snapshot(self, name: str, steps: Steps) -> dict[str, Any]:
        """Create a snapshot of the current durable state. Raises LogError and OSError."""
        # Imported here, because few servers need it and the start should be quick.
        from kcoord.log.snapshot import begin_snapshot

        # Between two turns of the loop the logs do not change, except for file names while segments are exchanged. So
        # wait for the end of an exchange. Files that a cleaner writes before it are not part of any log.
        gives_up_s = asyncio.get_running_loop().time() + EXCHANGE_S_MAX
        while self.is_exchanging():
            await asyncio.sleep(IDLE_POLL_S)
            if asyncio.get_running_loop().time() >= gives_up_s:
                raise StorageError(f"compacted segments were being exchanged for more than {EXCHANGE_S_MAX:.0f} s")
        assembly = self.assembly()
        if assembly is None:
            raise StorageError("the server is still starting")
        snapshot = begin_snapshot(assembly.directory, self.data_dir, name, read_clocks().wall_ms)
        try:
            await in_thread(self._threads, partial(snapshot.finish, steps))
        except BaseException:
            snapshot.abandon()
            raise
        self.log.info("snapshot", name=name, logs=len(snapshot.ends), linked_segments=snapshot.links)
        return snapshot.describe()


def frame_of(document: dict[str, Any]) -> bytes:
    data = json.dumps(document).encode()
    return struct.pack(">I", len(data)) + data


async def _read_frame(reader: asyncio.StreamReader) -> dict[str, Any]:
    (size,) = struct.unpack(">I", await reader.readexactly(4))
    if size > FRAME_BYTES_MAX:
        raise ValueError(f"frame of {size} bytes")
    document = json.loads(await reader.readexactly(size))
    if not isinstance(document, dict):
        raise ValueError("not an object")
    return document
