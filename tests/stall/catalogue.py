"""All frames: those that somebody thought of, and those that the schemas give.

An API that nobody thought of yet is in the catalogue with the frames that its schema gives.
"""

from __future__ import annotations

from functools import cache, partial

from kcoord.codegen.schema import Message
from tests.stall.frames import Frame
from tests.stall.frames_data import data_frames
from tests.stall.frames_groups import group_frames
from tests.stall.frames_topics import topic_frames
from tests.stall.frames_transactions import transaction_frames
from tests.stall.shapes import Shape, ShapeEncoder, array_paths, requests, shapes_of, versions_that_matter
from tests.stall.worlds import World, chooser

# The world that frames made from schemas meet: names that they use exist there.
SHAPES_WORLD = "groups"


@cache
def catalogue() -> list[Frame]:
    """The frames that somebody thought of, and the largest arrays of all other APIs."""
    frames = group_frames() + topic_frames() + data_frames() + transaction_frames()
    thought_of = {frame.api_key for frame in frames}
    for key, message in sorted(requests().items()):
        if key not in thought_of:
            frames += largest(key, message)
    return frames


def largest(key: int, message: Message) -> list[Frame]:
    """For each array as many different elements as fit, with one in every array below; and null for all arrays."""
    version = message.valid.high
    paths = array_paths(message, version)
    shapes = [Shape((), nulls=True)] + [Shape(path, different=True, deep=True) for path in paths]
    return [
        Frame(key, version, shape.describe(), SHAPES_WORLD, partial(_build, message, version, shape), changes=True)
        for shape in shapes
    ]


@cache
def schema_frames() -> list[Frame]:
    """Every shape of every API, without those that the catalogue has."""
    known = {frame.name for frame in catalogue()}
    frames = [
        Frame(key, version, shape.describe(), SHAPES_WORLD, partial(_build, message, version, shape))
        for key, message in sorted(requests().items())
        for version in versions_that_matter(message)
        for shape in shapes_of(message, version)
    ]
    return [frame for frame in frames if frame.name not in known]


def _build(message: Message, version: int, shape: Shape, world: World, part: float) -> bytes:
    return ShapeEncoder(message, version, shape, chooser(world)).frame(part)
