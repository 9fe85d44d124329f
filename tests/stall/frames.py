"""The catalogue: the worst frames that are known, for each API that is served.

Most are a shape around one array (`tests.stall.shapes`) with names that the world knows, so that a handler finds what
it is asked for. A frame may need something to be sent before it (`prepare`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kcoord.protocol import apis
from tests.harness.engine import request_frame
from tests.stall.rig import Peer
from tests.stall.shapes import Shape, ShapeEncoder, requests
from tests.stall.worlds import World, chooser

Prepare = Callable[[Peer], None]
# The frame with its size field. The second argument is how much of it is wanted, where it can be made smaller.
Build = Callable[[World, float], bytes]


class Frame:
    """One entry: what is sent, in which world, and what is sent before. `changes`: the world is not as it was after."""

    def __init__(
        self,
        api_key: int,
        version: int,
        what: str,
        world: str,
        build: Build,
        prepare: Prepare | None = None,
        changes: bool = False,
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.what = what
        self.world = world
        self.build = build
        self.prepare = prepare
        self.changes = changes or prepare is not None

    @property
    def api(self) -> str:
        return apis.APIS[self.api_key].name

    @property
    def name(self) -> str:
        return f"{self.api} v{self.version}: {self.what}"


def filled(
    api_key: int,
    version: int,
    what: str,
    world: str,
    path: str,
    *flags: str,
    share: float = 1.0,
    prepare: Prepare | None = None,
    changes: bool = False,
    **fixed: object,
) -> Frame:
    """A shape with names that the world knows. A fixed value that is a function gets the world."""
    shape = Shape(tuple(path.split(".")), share=share, **dict.fromkeys(flags, True))

    def build(of: World, part: float) -> bytes:
        values = {name: value(of) if callable(value) else value for name, value in fixed.items()}
        return ShapeEncoder(requests()[api_key], version, shape, chooser(of, **values)).frame(part)

    return Frame(api_key, version, what, world, build, prepare, changes)


def message(
    api_key: int,
    version: int,
    what: str,
    world: str,
    make: Callable[[World], Any],
    prepare: Prepare | None = None,
    changes: bool = False,
) -> Frame:
    """A request as a client would write it."""

    def build(of: World, part: float) -> bytes:
        return request_frame(api_key, version, make(of))

    return Frame(api_key, version, what, world, build, prepare, changes)
