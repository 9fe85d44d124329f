"""All frames: those that somebody thought of, and those that the schemas give."""

from __future__ import annotations

from functools import cache, partial

from kcoord.codegen.schema import Message
from tests.stall.frames import Frame
from tests.stall.frames_data import data_frames
from tests.stall.frames_groups import group_frames
from tests.stall.frames_topics import topic_frames
from tests.stall.shapes import Shape, ShapeEncoder, requests, shapes_of, versions_that_matter
from tests.stall.worlds import World, chooser

# The world that frames made from schemas meet: names that they use exist there.
SHAPES_WORLD = "groups"


@cache
def catalogue() -> list[Frame]:
    """The frames that somebody thought of."""
    return group_frames() + topic_frames() + data_frames()


@cache
def schema_frames() -> list[Frame]:
    """Every shape of every API."""
    return [
        Frame(key, version, shape.describe(), SHAPES_WORLD, partial(_build, message, version, shape))
        for key, message in sorted(requests().items())
        for version in versions_that_matter(message)
        for shape in shapes_of(message, version)
    ]


def _build(message: Message, version: int, shape: Shape, world: World, part: float) -> bytes:
    return ShapeEncoder(message, version, shape, chooser(world)).frame(part)
