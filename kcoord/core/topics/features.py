"""Features of the cluster (KIP-584): which levels this server can work at, and what the metadata log finalizes.

Kafka switches protocols on by levels in its metadata log. Here a feature is there as soon as its APIs are served, at
its newest level, and nobody switches it off. The records are written for tools and clients that look at features, and
so that a log that goes to a broker says what was in use.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.protocol import apis

METADATA_VERSION: Final = "metadata.version"
GROUP_VERSION: Final = "group.version"


@final
class Feature:
    """A feature with the levels that are supported. Level 0 means that it is off."""

    def __init__(self, name: str, minimum: int, maximum: int, api_key: int) -> None:
        self.name = name
        self.minimum = minimum
        self.maximum = maximum
        # The API that stands for it.
        self.api_key = api_key


# In the order in which a broker writes them: the metadata version first. 7 is Kafka 3.3, 30 is Kafka 4.3.
_FEATURES: Final = (
    Feature(METADATA_VERSION, 7, 30, apis.API_VERSIONS),
    Feature(GROUP_VERSION, 0, 1, apis.CONSUMER_GROUP_HEARTBEAT),
)


def supported_features() -> list[Feature]:
    """Those whose APIs are served."""
    return [feature for feature in _FEATURES if apis.APIS[feature.api_key].served]


@final
class FinalizedFeatures:
    """What the metadata log says: levels by name, and the offset of the last record that did. Hard state."""

    def __init__(self) -> None:
        self.levels: dict[str, int] = {}
        self.offset = -1

    def replay(self, name: str, level: int, offset: int) -> None:
        self.offset = offset
        if level > 0:
            self.levels[name] = level
        else:
            self.levels.pop(name, None)

    def level(self, feature: Feature) -> int:
        """The level in force: never above what is supported, whatever a newer server wrote; 0 for none."""
        return min(self.levels.get(feature.name, 0), feature.maximum)

    def missing(self) -> list[Feature]:
        """Supported features that the log does not have at their newest level yet."""
        return [feature for feature in supported_features() if self.level(feature) < feature.maximum]
