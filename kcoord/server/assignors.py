"""Loads the assignors named in `group.consumer.assignors`: kcoord's own, and plug-ins from other packages.

A package provides an assignor as an entry point in the group `kcoord.assignors`. The name of the entry point is the
name in the setting. It refers to a class (or another callable without arguments) that returns a
`kcoord.core.assignors.spec.Assignor` of this name. Only assignors in the setting are imported. See `docs/assignors.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kcoord.core.assignors.range_assignor import RANGE, RangeAssignor
from kcoord.core.assignors.spec import Assignor
from kcoord.core.assignors.uniform import UNIFORM, UniformAssignor
from kcoord.server.settings.load import ConfigError
from kcoord.wire.causes import caused_by

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP: Final = "kcoord.assignors"

# The names of Kafka's own assignors in a broker's configuration file.
_JAVA_NAMES: Final = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": UNIFORM,
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": RANGE,
}


def load_assignors(names: str) -> dict[str, Assignor]:
    """The assignors of a comma-separated list, by name and in order. Raises ConfigError."""
    loaded: dict[str, Assignor] = {}
    for part in names.split(","):
        name = _JAVA_NAMES.get(part.strip(), part.strip())
        if name in loaded:
            raise ConfigError(f"group.consumer.assignors = {names}: {name!r} is listed twice")
        if name == UNIFORM:
            loaded[name] = UniformAssignor()
        elif name == RANGE:
            loaded[name] = RangeAssignor()
        else:
            loaded[name] = _plug_in(name)
    return loaded


def _plug_in(name: str) -> Assignor:
    # Not at the top: it takes long, and most servers have no plug-ins.
    from importlib.metadata import entry_points

    offered = entry_points(group=ENTRY_POINT_GROUP)
    found = [point for point in offered if point.name == name]
    if not found:
        known = [UNIFORM, RANGE, *sorted({point.name for point in offered})]
        raise ConfigError(
            f"group.consumer.assignors: unknown assignor {name!r}; available are {', '.join(known)}. "
            f"Other packages provide assignors as entry points in the group {ENTRY_POINT_GROUP}"
        )
    if len(found) > 1:
        sources = ", ".join(sorted(_origin(point) for point in found))
        raise ConfigError(f"group.consumer.assignors: {name!r} is provided more than once, as {sources}")
    point = found[0]
    try:
        assignor = point.load()()
    except Exception as error:
        text = f"loading {name!r} ({_origin(point)}) failed with {type(error).__name__}: {error}"
        raise caused_by(ConfigError(f"group.consumer.assignors: {text}"), error) from error
    if not isinstance(assignor, Assignor):
        raise ConfigError(
            f"group.consumer.assignors: {name!r} ({_origin(point)}) returns {type(assignor).__name__}, "
            "which is not a subclass of kcoord.core.assignors.spec.Assignor"
        )
    if assignor.name != name:
        raise ConfigError(
            f"group.consumer.assignors: {name!r} ({_origin(point)}) returns an assignor with the name "
            f"{assignor.name!r}, so members could not select it"
        )
    return assignor


def _origin(point: EntryPoint) -> str:
    """The object and its package."""
    package = "" if point.dist is None else f" of {point.dist.name}"
    return f"{point.value}{package}"
