"""What the tests of the client talk to."""

from __future__ import annotations

import pytest

from kcoord.testing.fixture import KcoordServer


@pytest.fixture
def bootstrap(kcoord: KcoordServer) -> str:
    """The address of a server without topics and groups."""
    return kcoord.bootstrap
