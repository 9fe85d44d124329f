"""What a test does with the brokers of a cluster that one server plays; see kcoord.testing.double.cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kcoord.testing.double.cluster import Cluster
from kcoord.testing.double.double import Double
from kcoord.testing.double.selector import GROUP_KEY
from kcoord.testing.epochs import EpochControls

T = TypeVar("T")


class ClusterControls(EpochControls):
    """The part of the fixture that knows brokers. Raises RuntimeError unless the server has several, LookupError for an
    unknown one.
    """

    def brokers(self) -> list[int]:
        """The ids of the brokers that are up."""
        return self._with_cluster(lambda cluster: [node.node_id for node in cluster.up()])

    def leader(self, topic: str, partition: int) -> int:
        """The broker that leads a partition; -1 while none of its replicas is up."""
        return self._with_cluster(lambda cluster: cluster.leader(topic, partition)[0])

    def coordinator(self, group: str) -> int:
        """The broker that coordinates a group; -1 while none is up."""
        return self._with_cluster(lambda cluster: cluster.coordinator(GROUP_KEY, group))

    def stop_broker(self, node_id: int) -> None:
        """Stop a broker: its connections are closed, others lead its partitions and coordinate its groups."""
        self._with_cluster(lambda cluster: cluster.node(node_id))
        self._call(lambda double: double.stop_broker(node_id))

    def start_broker(self, node_id: int) -> None:
        """Start a broker again. It leads and coordinates nothing until something moves to it."""

        def start(cluster: Cluster) -> None:
            cluster.node(node_id).is_up = True

        self._with_cluster(start)

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Let another broker lead a partition. Raises ValueError for one that is stopped or has no replica."""
        self._with_cluster(lambda cluster: cluster.move_leader(topic, partition, node_id))

    def move_coordinator(self, group: str, node_id: int) -> None:
        """Let another broker coordinate a group. Raises ValueError for one that is stopped."""
        self._with_cluster(lambda cluster: cluster.move_coordinator(GROUP_KEY, group, node_id))

    def set_rack(self, node_id: int, rack: str) -> None:
        """Put a broker into another rack. Clients learn of it with their next metadata."""

        def put(cluster: Cluster) -> None:
            cluster.node(node_id).rack = rack

        self._with_cluster(put)

    def _with_cluster(self, function: Callable[[Cluster], T]) -> T:
        if self._brokers == 1:
            raise RuntimeError("the server plays one broker; create it with brokers=3")

        def work(double: Double) -> T:
            assert double.cluster is not None
            return function(double.cluster)

        return self._call(work)
