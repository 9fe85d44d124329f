"""Fixtures `kcoord` and `kcoord_server`: a real server inside the test process.

The server has a thread and an event loop of its own, its log in memory, and a free port of 127.0.0.1, so clients of
any kind can be used, blocking and asyncio ones. Under pytest-xdist every worker has its own. Nothing of kcoord is
imported before the first test that asks for one. `-p no:kcoord` switches the plugin off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kcoord.testing.fixture import KcoordServer


@pytest.fixture(scope="session")
def kcoord_server() -> Iterator[KcoordServer]:
    """One server for the whole session. Topics and groups stay from test to test; see `kcoord` for a fresh one."""
    from kcoord.testing.fixture import KcoordServer

    server = KcoordServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def kcoord(kcoord_server: KcoordServer) -> Iterator[KcoordServer]:
    """The session's server without topics, groups and offsets of earlier tests."""
    kcoord_server.reset()
    yield kcoord_server
    kcoord_server.check()
