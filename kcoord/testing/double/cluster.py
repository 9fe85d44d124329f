"""Several brokers in front of one engine: who leads a partition, who coordinates a group, and what each broker answers.

The engine is one broker that has everything. Each listener plays a broker with an id and a rack. Answers about the
cluster name these brokers; a broker answers for its own partitions and groups only, and otherwise as Kafka does: with
NOT_LEADER_OR_FOLLOWER and the new leader (KIP-951), or with NOT_COORDINATOR. A leader's epoch grows with each change,
and requests with another epoch are fenced.

All brokers have all data, so a move loses nothing. The engine's own leader epoch stays what it is: requests reach it
without an epoch, and its batches have the epoch of the engine. Fetch sessions are not offered, because a partition may
leave a broker in the middle of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

from kcoord.core.hashing import java_string_hash
from kcoord.protocol import apis, errors, fetch, produce
from kcoord.protocol.delete_records import DeleteRecordsPartitionResult, DeleteRecordsTopicResult
from kcoord.protocol.describe_cluster import DescribeClusterBroker
from kcoord.protocol.list_offsets import ListOffsetsPartitionResponse, ListOffsetsTopicResponse
from kcoord.protocol.metadata import MetadataResponseBroker
from kcoord.protocol.offset_for_leader_epoch import EpochEndOffset, OffsetForLeaderTopicResult
from kcoord.server.exchange import Request
from kcoord.testing.double.selector import GROUP_KEY, TRANSACTION_KEY, TopicNames, subjects_of
from kcoord.wire.message import Message

NO_EPOCH: Final = -1
NO_LEADER: Final = -1
NO_ID: Final = bytes(16)
GROUP_APIS: Final = (
    apis.JOIN_GROUP, apis.SYNC_GROUP, apis.HEARTBEAT, apis.LEAVE_GROUP, apis.OFFSET_COMMIT, apis.OFFSET_FETCH,
    apis.TXN_OFFSET_COMMIT, apis.CONSUMER_GROUP_HEARTBEAT, apis.CONSUMER_GROUP_DESCRIBE, apis.DESCRIBE_GROUPS,
    apis.DELETE_GROUPS, apis.OFFSET_DELETE,
)  # fmt: skip
TRANSACTION_APIS: Final = (
    apis.INIT_PRODUCER_ID, apis.ADD_PARTITIONS_TO_TXN, apis.ADD_OFFSETS_TO_TXN, apis.END_TXN,
    apis.DESCRIBE_TRANSACTIONS,
)  # fmt: skip
# Requests that `receive` may change.
CHANGED_APIS: Final = (
    apis.PRODUCE, apis.FETCH, apis.LIST_OFFSETS, apis.DELETE_RECORDS, apis.OFFSET_FOR_LEADER_EPOCH, apis.CREATE_TOPICS,
)  # fmt: skip
# The versions from which answers have the new leader (KIP-951).
PRODUCE_HINTS: Final = 10
FETCH_HINTS: Final = 16


@final
@dataclass(slots=True)
class Node:
    """One broker."""

    node_id: int
    host: str
    port: int
    rack: str
    is_up: bool = True


@final
@dataclass(slots=True)
class Refused:
    """A partition of a request that this broker does not answer for."""

    topic: str
    topic_id: bytes
    partition: int
    error_code: int


@final
class Cluster:
    """The brokers. Used on the server's thread only."""

    def __init__(self, nodes: list[Node], topic_name: TopicNames, default_factor: int) -> None:
        self._default_factor = default_factor
        self.nodes = {node.node_id: node for node in nodes}
        self._racks = {node.node_id: node.rack for node in nodes}
        # Those that partitions and coordinators are spread over: brokers that were added have what is moved to them.
        self._first_ids = list(self.nodes)
        # Brokers that got a replica when they became the leader.
        self._added_replicas: dict[tuple[str, int], list[int]] = {}
        self._topic_name = topic_name
        # Leader and leader epoch, by topic and partition.
        self._leaders: dict[tuple[str, int], tuple[int, int]] = {}
        # Coordinators by the type of key and the key.
        self._coordinators: dict[tuple[int, str], int] = {}
        # The replication factor of topics that were created with one.
        self._factors: dict[str, int] = {}

    # --- who is responsible

    def _default(self, number: int) -> int:
        return self._first_ids[number % len(self._first_ids)]

    def _next_up(self, after: int, allowed: list[int]) -> int:
        """The first broker after this one that is up; NO_LEADER if none is."""
        ids = list(self.nodes)
        at = ids.index(after)
        for node_id in ids[at:] + ids[:at]:
            if self.nodes[node_id].is_up and node_id in allowed:
                return node_id
        return NO_LEADER

    def replicas(self, topic: str, partition: int) -> list[int]:
        ids = self._first_ids
        first = (java_string_hash(topic) + partition) % len(ids)
        spread = (ids[first:] + ids[:first])[: self._factors.get(topic, self._default_factor)]
        return spread + self._added_replicas.get((topic, partition), [])

    def leader(self, topic: str, partition: int) -> tuple[int, int]:
        """Leader and leader epoch of a partition; the leader is NO_LEADER while all its replicas are down."""
        known = self._leaders.get((topic, partition))
        replicas = self.replicas(topic, partition)
        if known is None:
            known = (replicas[0], 0)
        node_id, epoch = known
        if node_id == NO_LEADER or not self.nodes[node_id].is_up:
            elected = self._next_up(replicas[0], replicas)
            if elected != node_id:
                known = (elected, epoch + 1)
        self._leaders[topic, partition] = known
        return known

    def coordinator(self, key_type: int, key: str) -> int:
        """The coordinator of a group or of a transactional id; NO_LEADER while all brokers are down."""
        node_id = self._coordinators.get((key_type, key))
        if node_id is None:
            node_id = self._default(java_string_hash(key))
        if not self.nodes[node_id].is_up:
            node_id = self._next_up(node_id, list(self.nodes))
        if node_id != NO_LEADER:
            self._coordinators[key_type, key] = node_id
        return node_id

    # --- changes

    def node(self, node_id: int) -> Node:
        """Raises LookupError."""
        node = self.nodes.get(node_id)
        if node is None:
            raise LookupError(f"there is no broker {node_id}; there are {', '.join(map(str, self.nodes))}")
        return node

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Raises LookupError for an unknown broker, ValueError for one that is down or has no replica."""
        if not self.node(node_id).is_up:
            raise ValueError(f"broker {node_id} is stopped")
        if node_id not in self._first_ids and node_id not in self.replicas(topic, partition):
            self._added_replicas.setdefault((topic, partition), []).append(node_id)
        if node_id not in self.replicas(topic, partition):
            raise ValueError(f"broker {node_id} has no replica of {topic}-{partition}")
        present, epoch = self.leader(topic, partition)
        if present != node_id:
            self._leaders[topic, partition] = (node_id, epoch + 1)

    def add(self, node: Node) -> None:
        """Add a broker. It has nothing until something is moved to it."""
        self.nodes[node.node_id] = node
        self._racks[node.node_id] = node.rack

    def bump_leader_epoch(self, topic: str, partition: int) -> int:
        """Have the leader elected again. Returns the new epoch."""
        present, epoch = self.leader(topic, partition)
        self._leaders[topic, partition] = (present, epoch + 1)
        return epoch + 1

    def move_coordinator(self, key_type: int, key: str, node_id: int) -> None:
        """Raises LookupError for an unknown broker, ValueError for one that is down."""
        if not self.node(node_id).is_up:
            raise ValueError(f"broker {node_id} is stopped")
        self._coordinators[key_type, key] = node_id

    def forget(self) -> None:
        """As after a start: all brokers are up, and nothing has moved."""
        self._leaders.clear()
        self._coordinators.clear()
        self._factors.clear()
        self._added_replicas.clear()
        for node in self.nodes.values():
            node.is_up = True
            node.rack = self._racks[node.node_id]

    # --- requests

    def receive(self, node_id: int, request: Request) -> tuple[int, list[Refused]]:
        """Prepare a request for the engine, in place. Returns an error for all of it, and the partitions to refuse.

        Partitions that another broker leads, or whose epoch is wrong, are taken out.
        """
        body: Any = request.message
        key = request.api_key
        if key in GROUP_APIS or key in TRANSACTION_APIS:
            found = subjects_of(body, self._topic_name)
            keys = found.groups if key in GROUP_APIS else found.transactional_ids
            key_type = GROUP_KEY if key in GROUP_APIS else TRANSACTION_KEY
            is_other = any(self.coordinator(key_type, each) != node_id for each in keys)
            return (errors.NOT_COORDINATOR if is_other else 0), []
        if key == apis.PRODUCE:
            return 0, self._take_out(node_id, body.topic_data, "name", "partition_data", "index")
        if key == apis.FETCH:
            body.session_id, body.session_epoch, body.forgotten_topics_data = 0, -1, []
            refused = self._take_out(node_id, body.topics, "topic", "partitions", "partition")
            if refused:
                body.max_wait_ms = 0
            return 0, refused
        if key in (apis.LIST_OFFSETS, apis.DELETE_RECORDS):
            return 0, self._take_out(node_id, body.topics, "name", "partitions", "partition_index")
        if key == apis.OFFSET_FOR_LEADER_EPOCH:
            return 0, self._take_out(node_id, body.topics, "topic", "partitions", "partition")
        if key == apis.CREATE_TOPICS:
            self._accept_factors(body)
        return 0, []

    def _accept_factors(self, body: Any) -> None:
        for topic in body.topics:
            if 1 <= topic.replication_factor <= len(self._first_ids):
                self._factors[topic.name] = topic.replication_factor
                topic.replication_factor = 1

    def _take_out(self, node_id: int, topics: list[Any], name: str, partitions: str, index: str) -> list[Refused]:
        refused: list[Refused] = []
        for topic in topics:
            topic_id = getattr(topic, "topic_id", NO_ID)
            text = getattr(topic, name) or self._topic_name(topic_id)
            if not text:
                continue  # the engine does not know it either
            kept = []
            for part in getattr(topic, partitions):
                number = getattr(part, index)
                code = self._check(node_id, text, number, getattr(part, "current_leader_epoch", NO_EPOCH))
                if code:
                    refused.append(Refused(getattr(topic, name), topic_id, number, code))
                    continue
                if hasattr(part, "current_leader_epoch"):
                    part.current_leader_epoch = NO_EPOCH
                kept.append(part)
            setattr(topic, partitions, kept)
        if refused:
            topics[:] = [topic for topic in topics if getattr(topic, partitions)]
        return refused

    def _check(self, node_id: int, topic: str, partition: int, epoch: int) -> int:
        leader, present = self.leader(topic, partition)
        if epoch != NO_EPOCH and epoch < present:
            return errors.FENCED_LEADER_EPOCH
        if epoch > present:
            return errors.UNKNOWN_LEADER_EPOCH
        return 0 if leader == node_id else errors.NOT_LEADER_OR_FOLLOWER

    # --- answers

    def answer(self, node_id: int, request: Request, message: Any, refused: list[Refused]) -> bool:
        """Change an answer of the engine into that of this broker, in place. Returns whether it may have changed."""
        rewrite = REWRITES.get(request.api_key)
        if rewrite is None:
            return False
        rewrite(self, node_id, request, message, refused)
        return True

    def up(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_up]

    def _controller(self) -> int:
        return min((node.node_id for node in self.up()), default=NO_LEADER)

    def _metadata(self, _: int, request: Request, message: Any, refused: list[Refused]) -> None:
        message.brokers = [MetadataResponseBroker(one.node_id, one.host, one.port, one.rack) for one in self.up()]
        message.controller_id = self._controller()
        for topic in message.topics:
            self._describe_partitions(topic)

    def _topic_partitions(self, _: int, request: Request, message: Any, refused: list[Refused]) -> None:
        for topic in message.topics:
            self._describe_partitions(topic)

    def _describe_partitions(self, topic: Any) -> None:
        for part in topic.partitions:
            if part.error_code:
                continue
            part.leader_id, part.leader_epoch = self.leader(topic.name or "", part.partition_index)
            part.replica_nodes = self.replicas(topic.name or "", part.partition_index)
            part.isr_nodes = [each for each in part.replica_nodes if self.nodes[each].is_up]
            part.offline_replicas = [each for each in part.replica_nodes if not self.nodes[each].is_up]
            if part.leader_id == NO_LEADER:
                part.error_code = errors.LEADER_NOT_AVAILABLE

    def _cluster(self, _: int, request: Request, message: Any, refused: list[Refused]) -> None:
        message.controller_id = self._controller()
        message.brokers = [DescribeClusterBroker(one.node_id, one.host, one.port, one.rack) for one in self.up()]

    def _coordinators_found(self, _: int, request: Request, message: Any, refused: list[Refused]) -> None:
        body: Any = request.message
        if message.coordinators:
            for one in message.coordinators:
                self._find(body.key_type, one.key, one)
        else:
            self._find(body.key_type, body.key, message)

    def _find(self, key_type: int, key: str, place: Any) -> None:
        if place.error_code:
            return
        node_id = self.coordinator(key_type, key)
        if node_id == NO_LEADER:
            place.error_code = errors.COORDINATOR_NOT_AVAILABLE
            return
        node = self.nodes[node_id]
        place.node_id, place.host, place.port = node.node_id, node.host, node.port

    def _topics_created(self, _: int, request: Request, message: Any, refused: list[Refused]) -> None:
        for topic in message.topics:
            if not topic.error_code and topic.replication_factor > 0:
                topic.replication_factor = len(self.replicas(topic.name, 0))

    def _groups_listed(self, node_id: int, request: Request, message: Any, refused: list[Refused]) -> None:
        message.groups = [one for one in message.groups if self.coordinator(GROUP_KEY, one.group_id) == node_id]

    def _transactions_listed(self, node_id: int, request: Request, message: Any, refused: list[Refused]) -> None:
        message.transaction_states = [
            one for one in message.transaction_states
            if self.coordinator(TRANSACTION_KEY, one.transactional_id) == node_id
        ]  # fmt: skip

    def _produced(self, _: int, request: Request, message: Any, refused: list[Refused]) -> None:
        for one in refused:
            part = produce.PartitionProduceResponse(one.partition, one.error_code, -1, -1, -1)
            if request.version >= PRODUCE_HINTS:
                part.current_leader = produce.LeaderIdAndEpoch(*self._leader_of(one))
            message.responses.append(produce.TopicProduceResponse(one.topic, one.topic_id, [part]))
        if request.version >= PRODUCE_HINTS:
            message.node_endpoints = [
                produce.NodeEndpoint(node.node_id, node.host, node.port, node.rack) for node in self._hinted(refused)
            ]

    def _fetched(self, _: int, request: Request, message: Any, refused: list[Refused]) -> None:
        for one in refused:
            part = fetch.PartitionData(one.partition, one.error_code, -1, -1, -1)
            part.records = b""
            if request.version >= FETCH_HINTS:
                part.current_leader = fetch.LeaderIdAndEpoch(*self._leader_of(one))
            message.responses.append(fetch.FetchableTopicResponse(one.topic, one.topic_id, [part]))
        if request.version >= FETCH_HINTS:
            message.node_endpoints = [
                fetch.NodeEndpoint(node.node_id, node.host, node.port, node.rack) for node in self._hinted(refused)
            ]

    def _leader_of(self, one: Refused) -> tuple[int, int]:
        return self.leader(one.topic or self._topic_name(one.topic_id), one.partition)

    def _hinted(self, refused: list[Refused]) -> list[Node]:
        """The brokers that answers name as new leaders."""
        leaders = {self._leader_of(one)[0] for one in refused if one.error_code == errors.NOT_LEADER_OR_FOLLOWER}
        return [self.nodes[each] for each in sorted(leaders - {NO_LEADER})]

    def _offsets_listed(self, _: int, request: Request, message: Any, refused: list[Refused]) -> None:
        for one in refused:
            part = ListOffsetsPartitionResponse(one.partition, one.error_code)
            message.topics.append(ListOffsetsTopicResponse(one.topic, [part]))

    def _records_deleted(self, _: int, request: Request, message: Any, refused: list[Refused]) -> None:
        for one in refused:
            part = DeleteRecordsPartitionResult(one.partition, -1, one.error_code)
            message.topics.append(DeleteRecordsTopicResult(one.topic, [part]))

    def _epochs_found(self, _: int, request: Request, message: Any, refused: list[Refused]) -> None:
        for one in refused:
            message.topics.append(
                OffsetForLeaderTopicResult(one.topic, [EpochEndOffset(one.error_code, one.partition, -1, -1)])
            )


@final
class Broker:
    """The broker that a connection is with."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id


Rewrite = Callable[[Cluster, int, Request, Message, list[Refused]], None]

REWRITES: Final[dict[int, Rewrite]] = {
    apis.METADATA: Cluster._metadata,
    apis.DESCRIBE_TOPIC_PARTITIONS: Cluster._topic_partitions,
    apis.DESCRIBE_CLUSTER: Cluster._cluster,
    apis.FIND_COORDINATOR: Cluster._coordinators_found,
    apis.CREATE_TOPICS: Cluster._topics_created,
    apis.LIST_GROUPS: Cluster._groups_listed,
    apis.LIST_TRANSACTIONS: Cluster._transactions_listed,
    apis.PRODUCE: Cluster._produced,
    apis.FETCH: Cluster._fetched,
    apis.LIST_OFFSETS: Cluster._offsets_listed,
    apis.DELETE_RECORDS: Cluster._records_deleted,
    apis.OFFSET_FOR_LEADER_EPOCH: Cluster._epochs_found,
}
