"""From the names in `group.consumer.assignors` to assignors: ours, and those that other packages bring.

A package offers an assignor under an entry point of the group `kcoord.assignors`: its name is what stands in the
setting, and it points at a class (or any callable without arguments) that makes a `kcoord.core.assignors.spec.Assignor`
of that name. Only what the setting names is imported. See `docs/assignors.md`.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Final

from kcoord.core.assignors.range_assignor import RANGE, RangeAssignor
from kcoord.core.assignors.spec import Assignor
from kcoord.core.assignors.uniform import UNIFORM, UniformAssignor
from kcoord.server.settings.load import ConfigError

ENTRY_POINT_GROUP: Final = "kcoord.assignors"

# What a broker's file may call Kafka's own.
_JAVA_NAMES: Final = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": UNIFORM,
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": RANGE,
}


def load_assignors(names: str) -> dict[str, Assignor]:
    """The assignors of a comma-separated list, by name and in its order. Raises ConfigError, which says what to do."""
    loaded: dict[str, Assignor] = {}
    for part in names.split(","):
        name = _JAVA_NAMES.get(part.strip(), part.strip())
        if name in loaded:
            raise ConfigError(f"group.consumer.assignors = {names}: {name!r} twice")
        if name == UNIFORM:
            loaded[name] = UniformAssignor()
        elif name == RANGE:
            loaded[name] = RangeAssignor()
        else:
            loaded[name] = _plug_in(name)
    return loaded


def _plug_in(name: str) -> Assignor:
    offered = entry_points(group=ENTRY_POINT_GROUP)
    found = [point for point in offered if point.name == name]
    if not found:
        known = [UNIFORM, RANGE, *sorted({point.name for point in offered})]
        raise ConfigError(
            f"group.consumer.assignors: there is no assignor {name!r}; there are {', '.join(known)}. "
            f"Others come from installed packages with an entry point in the group {ENTRY_POINT_GROUP}"
        )
    if len(found) > 1:
        sources = ", ".join(sorted(_origin(point) for point in found))
        raise ConfigError(f"group.consumer.assignors: {name!r} is offered more than once, as {sources}")
    point = found[0]
    try:
        assignor = point.load()()
    except Exception as error:
        raise ConfigError(
            f"group.consumer.assignors: loading {name!r} ({_origin(point)}) failed with "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(assignor, Assignor):
        raise ConfigError(
            f"group.consumer.assignors: {name!r} ({_origin(point)}) makes {type(assignor).__name__}, "
            "which is no subclass of kcoord.core.assignors.spec.Assignor"
        )
    if assignor.name != name:
        raise ConfigError(
            f"group.consumer.assignors: {name!r} ({_origin(point)}) makes an assignor that calls itself "
            f"{assignor.name!r}; members could not ask for it"
        )
    return assignor


def _origin(point: EntryPoint) -> str:
    """The object and the package that brings it."""
    package = "" if point.dist is None else f" of {point.dist.name}"
    return f"{point.value}{package}"
