"""What a test does with the brokers of a cluster that one server plays; see kcoord.testing.double.cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kcoord.server.listen.limits import plain_host
from kcoord.server.server import Server
from kcoord.server.settings.listeners import Listener
from kcoord.testing.double.cluster import Cluster, Node
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

    def add_broker(self, rack: str | None = None) -> int:
        """Add a broker, on a port of its own. Returns its id. It has nothing until something moves to it.

        It stays until the end of the server, also after `reset`. `bootstrap` names it from now on.
        """
        self._with_cluster(lambda _: None)
        node_id = self._thread.call(lambda server: self._add_broker(server, rack))
        self._brokers = node_id
        return node_id

    def _add_broker(self, server: Server, rack: str | None) -> int:
        double = self._double
        listeners = server.config.listeners
        if len(listeners) != self._brokers:
            raise RuntimeError("the server has listeners that are no brokers, so it cannot add a broker")
        first = listeners[0]
        listener = Listener(first.name, first.host, 0)
        listener.advertised_host = first.advertised_host
        server.listen(listener)
        host, listener.port = server.addresses[-1]
        # A later start opens it as well.
        listeners.append(listener)
        node_id = len(listeners)
        node = Node(node_id, first.advertised_host or plain_host(host), listener.port, rack or f"rack-{node_id}")
        assert double is not None
        double.add_broker(listener, node)
        return node_id

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Let another broker lead a partition. Raises ValueError for one that is stopped or has no replica.

        A broker that was added gets a replica.
        """
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
