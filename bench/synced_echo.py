"""An echo that first appends every frame to a file and syncs it: what `log.sync=always` costs without a coordinator.

All frames that arrive during a sync are written and synced together, as kcoord does it, and with the same means: the
kernel's, or a thread where that is not possible.
"""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from typing import cast

from bench.servers import run_echo
from kcoord.server.kernel_syncs import kernel_syncs
from kcoord.server.sync_threads import SyncThreads


class Appended:
    """The file, and the frames that are not synced yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: str) -> None:
        self.loop = loop
        self.fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        self.threads = SyncThreads(loop)
        self.threads.kernel = kernel_syncs(loop)
        self.waiting: list[tuple[asyncio.Transport, bytes]] = []
        self.is_syncing = False
        self.is_scheduled = False

    def add(self, transport: asyncio.Transport, data: bytes) -> None:
        self.waiting.append((transport, data))
        if not self.is_scheduled:
            self.is_scheduled = True
            self.loop.call_soon(self.turn)

    def turn(self) -> None:
        self.is_scheduled = False
        if not self.is_syncing and self.waiting:
            self.commit()

    def commit(self) -> None:
        frames, self.waiting = self.waiting, []

        def done(error: BaseException | None) -> None:
            if error is not None:
                raise SystemExit(f"sync failed: {error}")
            self.is_syncing = False
            # The next sync begins before the answers are sent.
            self.turn()
            for transport, data in frames:
                transport.write(data)

        os.write(self.fd, b"".join(data for _, data in frames))
        self.is_syncing = True
        if not self.threads.sync_in_kernel(self.fd, done):
            self.threads.run([partial(os.fsync, self.fd)], done)


class SyncedEcho(asyncio.Protocol):
    def __init__(self, appended: Appended) -> None:
        self.appended = appended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.appended.add(self.transport, data)


async def serve(path: str) -> None:
    loop = asyncio.get_running_loop()
    appended = Appended(loop, path)
    server = await loop.create_server(lambda: SyncedEcho(appended), "127.0.0.1", 0)
    print(f"echo ready 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    run_echo(serve(sys.argv[1]))
