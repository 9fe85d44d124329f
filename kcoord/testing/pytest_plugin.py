"""Fixtures `kcoord`, `kcoord_module` and `kcoord_server`: a real server inside the test process.

The server has its own thread and event loop, keeps its log in memory, and uses a free port on 127.0.0.1. So tests can
use any client, blocking or asyncio. With pytest-xdist every worker has its own server. kcoord is imported only when the
first test uses a fixture. `-p no:kcoord` disables the plugin.

The marker `kcoord` gives tests topics, settings or a seed: of a test for `kcoord`, of a module for `kcoord_module`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kcoord.testing.fixture import KcoordServer
    from kcoord.testing.marker import Wishes

MARKER = "kcoord"
MARKER_HELP = (
    "kcoord(topics={NAME: PARTITIONS}, settings={NAME: VALUE}, seed=FILE, clock='real', brokers=1, memory_disk=False): "
    "what the fixture `kcoord` has when the test begins; but for topics and seed it is a server for this test only"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER_HELP)


@pytest.fixture(scope="session")
def kcoord_server() -> Iterator[KcoordServer]:
    """One server for the whole session. Topics and groups persist between tests; see `kcoord` for an empty one."""
    from kcoord.testing.fixture import KcoordServer

    server = KcoordServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def kcoord_module(request: pytest.FixtureRequest) -> Iterator[KcoordServer]:
    """A server for the tests of a module, which keeps its state between them. `pytestmark` may have the marker."""
    yield from _own_server(_wishes(request))


@pytest.fixture
def kcoord(request: pytest.FixtureRequest) -> Iterator[KcoordServer]:
    """The session's server without topics, groups and offsets of earlier tests, or with those of the marker."""
    wishes = _wishes(request)
    if wishes.needs_own_server:
        yield from _own_server(wishes)
        return
    server: KcoordServer = request.getfixturevalue("kcoord_server")
    server.begin_test()
    _prepare(wishes, server)
    yield server
    server.end_phantoms()
    server.check()


def _wishes(request: pytest.FixtureRequest) -> Wishes:
    from kcoord.testing.marker import read_markers

    try:
        return read_markers(request.node.iter_markers(MARKER), request.path.parent)
    except ValueError as error:
        pytest.fail(str(error), pytrace=False)


def _own_server(wishes: Wishes) -> Iterator[KcoordServer]:
    from kcoord.server.settings.load import ConfigError

    try:
        server = wishes.new_server()
    except (ConfigError, ValueError) as error:
        pytest.fail(f"the marker kcoord: {error}", pytrace=False)
    with server:
        _prepare(wishes, server)
        yield server


def _prepare(wishes: Wishes, server: KcoordServer) -> None:
    try:
        wishes.prepare(server)
    except ValueError as error:
        pytest.fail(str(error), pytrace=False)
