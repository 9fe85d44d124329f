"""Configs and log directories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kcoord.client.metadata import TopicPartition

TOPIC_RESOURCE: Final = "topic"
BROKER_RESOURCE: Final = "broker"
GROUP_RESOURCE: Final = "group"
RESOURCE_CODES: Final = {
    TOPIC_RESOURCE: 2,
    BROKER_RESOURCE: 4,
    "broker-logger": 8,
    "client-metrics": 16,
    GROUP_RESOURCE: 32,
}


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """`kind` is one of RESOURCE_CODES. The name of a broker is its id; empty: the default of all brokers."""

    kind: str
    name: str


CONFIG_SOURCES: Final = {
    0: "unknown",
    1: "topic",
    2: "broker",
    3: "default broker",
    4: "static broker",
    5: "default",
    6: "broker logger",
    7: "client metrics",
    8: "group",
}


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """`value` is None if it is sensitive. `source` is one of CONFIG_SOURCES."""

    name: str
    value: str | None
    source: str
    is_read_only: bool = False
    is_sensitive: bool = False

    @property
    def is_default(self) -> bool:
        return self.source in ("default", "static broker", "default broker")


SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """`operation` is SET, DELETE (back to the default), APPEND or SUBTRACT (of lists)."""

    name: str
    value: str | None = None
    operation: int = SET


@dataclass(frozen=True, slots=True)
class LogReplica:
    """A partition in a log directory."""

    partition: TopicPartition
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    """Sizes of the volume are -1 from brokers before 3.3. `error_code` is not 0 if the directory has failed."""

    path: str
    error_code: int
    replicas: tuple[LogReplica, ...]
    total_bytes: int = -1
    usable_bytes: int = -1
