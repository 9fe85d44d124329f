"""Features of the cluster (KIP-584): the levels that this server supports, and those the metadata log finalizes.

Kafka enables protocols by levels in its metadata log. Here a feature is always at its newest level as soon as its APIs
are served, and cannot be disabled. The records exist for tools and clients that read features, and so that a broker
that gets the log knows what was in use.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.protocol import apis

METADATA_VERSION: Final = "metadata.version"
GROUP_VERSION: Final = "group.version"
TRANSACTION_VERSION: Final = "transaction.version"


@final
class Feature:
    """A feature and its supported levels. Level 0 means disabled."""

    def __init__(self, name: str, minimum: int, maximum: int, api_key: int) -> None:
        self.name = name
        self.minimum = minimum
        self.maximum = maximum
        # The API that the feature belongs to.
        self.api_key = api_key


# In a broker's order: the metadata version first. 7 is Kafka 3.3, 30 is Kafka 4.3.
_FEATURES: Final = (
    Feature(METADATA_VERSION, 7, 30, apis.API_VERSIONS),
    Feature(GROUP_VERSION, 0, 1, apis.CONSUMER_GROUP_HEARTBEAT),
    Feature(TRANSACTION_VERSION, 0, 2, apis.END_TXN),
)


def supported_features() -> list[Feature]:
    """The features whose APIs are served."""
    return [feature for feature in _FEATURES if apis.APIS[feature.api_key].served]


@final
class FinalizedFeatures:
    """The finalized levels by name, and the offset of the last record that set one. Hard state."""

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
        """The level in use: never above what is supported, even if a newer server wrote a higher one; 0 for none."""
        return min(self.levels.get(feature.name, 0), feature.maximum)

    def missing(self) -> list[Feature]:
        """Supported features whose newest level is not in the log yet."""
        return [feature for feature in supported_features() if self.level(feature) < feature.maximum]
