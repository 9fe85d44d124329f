"""Fixtures `kcoord` and `kcoord_server`: a real server inside the test process.

The server has its own thread and event loop, keeps its log in memory, and uses a free port on 127.0.0.1. So tests can
use any client, blocking or asyncio. With pytest-xdist every worker has its own server. kcoord is imported only when the
first test uses a fixture. `-p no:kcoord` disables the plugin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kcoord.testing.fixture import KcoordServer


@pytest.fixture(scope="session")
def kcoord_server() -> Iterator[KcoordServer]:
    """One server for the whole session. Topics and groups persist between tests; see `kcoord` for an empty one."""
    from kcoord.testing.fixture import KcoordServer

    server = KcoordServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def kcoord(kcoord_server: KcoordServer) -> Iterator[KcoordServer]:
    """The session's server without topics, groups and offsets of earlier tests."""
    if not kcoord_server.is_running:
        # An earlier test stopped or killed it, or has reported its failure.
        kcoord_server.start()
    kcoord_server.reset()
    yield kcoord_server
    kcoord_server.check()
