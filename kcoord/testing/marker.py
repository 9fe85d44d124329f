"""What `@pytest.mark.kcoord(topics=..., settings=..., seed=..., ...)` asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, final

from kcoord.testing.fixture import KcoordServer
from kcoord.testing.state.seed import Seed, load_seed, parse_seed

ARGUMENTS: Final = ("topics", "settings", "seed", "clock", "brokers", "memory_disk")
SOURCE: Final = "the marker kcoord"
REAL_CLOCK: Final = "real"


class Mark(Protocol):
    """A marker as pytest has it."""

    @property
    def args(self) -> tuple[Any, ...]: ...
    @property
    def kwargs(self) -> Mapping[str, Any]: ...


@final
@dataclass(slots=True)
class Wishes:
    """All markers of a test together."""

    settings: dict[str, object] = field(default_factory=dict)
    clock: str = REAL_CLOCK
    brokers: int = 1
    memory_disk: bool = False
    seeds: list[Seed] = field(default_factory=list)

    @property
    def needs_own_server(self) -> bool:
        return bool(self.settings) or self.memory_disk or self.brokers > 1 or self.clock != REAL_CLOCK

    def new_server(self) -> KcoordServer:
        return KcoordServer(self.settings, self.clock, brokers=self.brokers, memory_disk=self.memory_disk)

    def prepare(self, server: KcoordServer) -> None:
        """Raises SeedError."""
        for seed in self.seeds:
            server.seed(seed)


def read_markers(marks: Iterable[Mark], folder: Path) -> Wishes:
    """The markers, the closest to the test first; it wins. Seeds are files in `folder`. Raises ValueError."""
    wishes = Wishes()
    for mark in reversed(list(marks)):
        if mark.args:
            raise ValueError(f"{SOURCE} takes {', '.join(ARGUMENTS)} by name")
        for name in mark.kwargs:
            if name not in ARGUMENTS:
                raise ValueError(f"{SOURCE} has no argument {name!r}; there are {', '.join(ARGUMENTS)}")
        wishes.settings.update(mark.kwargs.get("settings") or {})
        wishes.clock = mark.kwargs.get("clock", wishes.clock)
        wishes.brokers = mark.kwargs.get("brokers", wishes.brokers)
        wishes.memory_disk = mark.kwargs.get("memory_disk", wishes.memory_disk)
        if mark.kwargs.get("topics"):
            wishes.seeds.append(parse_seed({"topics": mark.kwargs["topics"]}, SOURCE))
        seed = mark.kwargs.get("seed")
        if seed is not None:
            wishes.seeds.append(load_seed(seed if isinstance(seed, Mapping) else folder / seed))
    return wishes
