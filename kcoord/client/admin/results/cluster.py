"""The cluster itself."""

from __future__ import annotations

from dataclasses import dataclass

from kcoord.client.metadata import Node


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """`controller` is None if the cluster has none now."""

    cluster_id: str | None
    controller: Node | None
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Features:
    """(least, newest) level of each feature: what is in force, and what the broker supports."""

    finalized: dict[str, tuple[int, int]]
    supported: dict[str, tuple[int, int]]
    epoch: int
