"""Answers about the cluster: topics and partitions, the broker, coordinators.

The cluster is one node: it leads every partition, coordinates every group and is its own controller. Its address is the
advertised one of the client's listener, so it comes with the request.

A topic that Metadata may create is created at once and is in the same answer (which waits until it is durable). A Kafka
broker first answers UNKNOWN_TOPIC_OR_PARTITION, because its controller works asynchronously, and clients retry. All
clients accept the direct answer, which saves a round trip and a back-off. A name that cannot be created (invalid, or
colliding with another) is INVALID_TOPIC_EXCEPTION, so that producers fail at once and not by timeout.

One request creates a limited number of partitions. Names beyond that are UNKNOWN_TOPIC_OR_PARTITION as on a broker, so
clients retry and get the next of them. Beyond `partitions.max` the same error is answered, but retries only help once
topics were deleted; the server's log reports it.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import (
    GROUP_EVENTS_TOPIC,
    LIMIT,
    METADATA_TOPIC,
    TRANSACTION_TOPIC,
    WARNING,
    Fact,
    Outcome,
    Reply,
    Request,
)
from kcoord.core.topics.registry import (
    TRANSACTION_CONFIGS,
    Topic,
    TopicRegistry,
    check_topic_name,
    is_internal_name,
)
from kcoord.protocol.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from kcoord.protocol.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    ResponseCursor,
)
from kcoord.protocol.errors import (
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    MISMATCHED_ENDPOINT_TYPE,
    NONE,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_ENDPOINT_TYPE,
)
from kcoord.protocol.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from kcoord.protocol.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kcoord.wire.primitives import ZERO_UUID

# The operations of a client when all are authorized, as a bit set of their codes (KIP-430).
CLUSTER_OPERATIONS: Final = 8096
TOPIC_OPERATIONS: Final = 3576
# The value if the request did not ask for authorized operations.
OPERATIONS_UNASKED: Final = -2147483648

NO_NODE: Final = -1

# Partitions that one Metadata request creates, or those of one topic if that has more. Clients send the next request
# within a tenth of a second, and get the rest.
AUTO_CREATED_PARTITIONS_MAX: Final = 500

ENDPOINT_BROKER: Final = 1
ENDPOINT_CONTROLLER: Final = 2

KEY_GROUP: Final = 0
KEY_TRANSACTION: Final = 1
KEY_SHARE: Final = 2

WRONG_ENDPOINT_MESSAGE: Final = (
    "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
)
INVALID_REQUEST_MESSAGE: Final = "The request is malformed or asks for something this server does not support."


@final
class AutoCreation:
    """Topics that one Metadata request creates."""

    def __init__(self, is_allowed: bool) -> None:
        self.is_allowed = is_allowed
        # The partitions of these topics.
        self.partitions = 0
        # Whether a topic was left out because of `partitions.max`.
        self.is_full = False


@final
class MetadataHandlers:
    def __init__(self, config: CoreConfig, topics: TopicRegistry) -> None:
        self.config = config
        self.topics = topics

    # --- Metadata --------------------------------------------------------------------------------------------

    def handle_metadata(self, request: Request, body: MetadataRequest) -> Outcome:
        out = Outcome()
        response = MetadataResponse(
            brokers=[MetadataResponseBroker(self.config.node_id, request.host, request.port, self.config.rack)],
            cluster_id=self.config.cluster_id,
            controller_id=self.config.node_id,
        )
        if body.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        asked = body.topics
        if asked is None or (request.version == 0 and not asked):
            for name in self.topics.sorted_names():
                response.topics.append(self._known_topic(self.topics.topics[name]))
        elif not self._is_well_formed(request, body):
            self._refuse(request, response, body)
            out.reply(request.request_id, response)
            return out
        else:
            self._add_asked_topics(request, body, response, out)
        if body.include_topic_authorized_operations:
            for topic in response.topics:
                # A topic without a name has no operations to show.
                if topic.error_code != UNKNOWN_TOPIC_ID:
                    topic.topic_authorized_operations = TOPIC_OPERATIONS
        self._answer(request, response, out)
        return out

    def _is_well_formed(self, request: Request, body: MetadataRequest) -> bool:
        """Topics have names. From version 12 on they may have an id instead (KIP-516)."""
        for asked in body.topics or []:
            if request.version < 12:
                if asked.name is None or asked.topic_id != ZERO_UUID:
                    return False
            elif asked.name is None and asked.topic_id == ZERO_UUID:
                return False
        return True

    def _refuse(self, request: Request, response: MetadataResponse, body: MetadataRequest) -> None:
        if request.version >= 13:
            response.error_code = INVALID_REQUEST
        response.brokers = []
        response.cluster_id = None
        response.controller_id = NO_NODE
        response.cluster_authorized_operations = OPERATIONS_UNASKED
        for asked in body.topics or []:
            name = "" if asked.name is None else asked.name
            response.topics.append(MetadataResponseTopic(INVALID_REQUEST, name, asked.topic_id))

    def _add_asked_topics(
        self, request: Request, body: MetadataRequest, response: MetadataResponse, out: Outcome
    ) -> None:
        creation = AutoCreation(body.allow_auto_topic_creation and self.config.auto_create_topics_enable)
        # As in Kafka: if one topic is requested by id, names are ignored.
        by_id = False
        for asked in body.topics or []:
            if asked.topic_id != ZERO_UUID:
                by_id = True
                break
        if by_id:
            self._add_topics_by_id(body, response)
            return
        seen: dict[str, bool] = {}
        for asked in body.topics or []:
            name = "" if asked.name is None else asked.name
            if name in seen:
                continue
            seen[name] = True
            topic = self.topics.get(name)
            if topic is not None:
                response.topics.append(self._known_topic(topic))
            else:
                response.topics.append(self._unknown_topic(request, name, creation, out))
        if creation.is_full:
            fields: dict[str, object] = {"partitions": self.topics.total_partitions, "limit": "partitions.max"}
            out.facts.append(Fact(WARNING, "topics_not_created", fields, LIMIT))

    def _add_topics_by_id(self, body: MetadataRequest, response: MetadataResponse) -> None:
        seen: dict[bytes, bool] = {}
        for asked in body.topics or []:
            topic_id = asked.topic_id
            if topic_id in seen or topic_id == ZERO_UUID:
                continue
            seen[topic_id] = True
            topic = self.topics.by_id(topic_id)
            if topic is not None:
                response.topics.append(self._known_topic(topic))
            else:
                response.topics.append(MetadataResponseTopic(UNKNOWN_TOPIC_ID, None, topic_id))

    def _unknown_topic(
        self, request: Request, name: str, creation: AutoCreation, out: Outcome
    ) -> MetadataResponseTopic:
        """A topic that does not exist: create it if that is allowed, otherwise answer its error."""
        if check_topic_name(name):
            return MetadataResponseTopic(INVALID_TOPIC_EXCEPTION, name, ZERO_UUID, is_internal_name(name))
        if not creation.is_allowed or name == METADATA_TOPIC or name == GROUP_EVENTS_TOPIC:
            return MetadataResponseTopic(UNKNOWN_TOPIC_OR_PARTITION, name, ZERO_UUID, is_internal_name(name))
        if self.topics.colliding_name(name):
            return MetadataResponseTopic(INVALID_TOPIC_EXCEPTION, name, ZERO_UUID, is_internal_name(name))
        if not self._takes(creation):
            return MetadataResponseTopic(UNKNOWN_TOPIC_OR_PARTITION, name, ZERO_UUID, is_internal_name(name))
        topic = Topic(name, self.topics.new_topic_id(request.entropy, len(out.records)))
        topic.partition_count = self.config.num_partitions
        self.topics.add_topic_records(out, name, topic.topic_id, topic.partition_count, {})
        return self._known_topic(topic)

    def _takes(self, creation: AutoCreation) -> bool:
        """Whether the request may create one more topic, which is then counted."""
        count = self.config.num_partitions
        if not self.topics.has_room(creation.partitions + count):
            creation.is_full = True
            return False
        if creation.partitions and creation.partitions + count > AUTO_CREATED_PARTITIONS_MAX:
            return False
        if count > self.config.request_partitions_max:
            return False
        creation.partitions += count
        return True

    def _known_topic(self, topic: Topic) -> MetadataResponseTopic:
        node_id = self.config.node_id
        partitions = [
            MetadataResponsePartition(NONE, index, node_id, topic.leader_epoch(index), [node_id], [node_id], [])
            for index in range(topic.partition_count)
        ]
        return MetadataResponseTopic(NONE, topic.name, topic.topic_id, topic.is_internal, partitions)

    def _answer(self, request: Request, response: MetadataResponse, out: Outcome) -> None:
        # With records the answer waits for those, otherwise for what it shows.
        if out.records:
            out.reply(request.request_id, response)
        else:
            out.replies.append(Reply(request.request_id, response, self.topics.log, self.topics.end_offset))

    # --- DescribeTopicPartitions -----------------------------------------------------------------------------

    def handle_describe_topic_partitions(self, request: Request, body: DescribeTopicPartitionsRequest) -> Outcome:
        """Topics sorted by name, a limited number of partitions at a time, with a cursor for the rest (KIP-966)."""
        out = Outcome()
        response = DescribeTopicPartitionsResponse()
        first = "" if body.cursor is None else body.cursor.topic_name
        fetch_all = not body.topics
        names: list[str] = []
        seen: dict[str, None] = {}
        if fetch_all:
            names = [name for name in self.topics.sorted_names() if name >= first]
        else:
            for asked in body.topics:
                if asked.name >= first:
                    seen[asked.name] = None
            names = sorted(seen)
        if body.cursor is not None and (
            body.cursor.partition_index < 0 or (not fetch_all and body.cursor.topic_name not in seen)
        ):
            for asked in body.topics:
                response.topics.append(DescribeTopicPartitionsResponseTopic(INVALID_REQUEST, asked.name))
            out.reply(request.request_id, response)
            return out
        limit = max(1, min(self.config.max_request_partition_size_limit, body.response_partition_limit))
        for name in names:
            if limit <= 0:
                response.next_cursor = ResponseCursor(name, 0)
                break
            start = 0
            if body.cursor is not None and name == first:
                start = body.cursor.partition_index
            topic = self.topics.get(name)
            if topic is None:
                # An error counts like a partition, so that a long list of names is split over several answers as well.
                response.topics.append(self._undescribable_topic(name))
                limit -= 1
                continue
            shown = self._described_topic(topic, start, limit)
            response.topics.append(shown)
            limit -= len(shown.partitions)
            if start + len(shown.partitions) < topic.partition_count:
                response.next_cursor = ResponseCursor(name, start + len(shown.partitions))
                break
        out.replies.append(Reply(request.request_id, response, self.topics.log, self.topics.end_offset))
        return out

    def _undescribable_topic(self, name: str) -> DescribeTopicPartitionsResponseTopic:
        error = INVALID_TOPIC_EXCEPTION if check_topic_name(name) else UNKNOWN_TOPIC_OR_PARTITION
        return DescribeTopicPartitionsResponseTopic(
            error, name, ZERO_UUID, is_internal_name(name), [], TOPIC_OPERATIONS
        )

    def _described_topic(self, topic: Topic, start: int, limit: int) -> DescribeTopicPartitionsResponseTopic:
        node_id = self.config.node_id
        # Empty lists and not null, which the Java client does not accept here.
        partitions = [
            DescribeTopicPartitionsResponsePartition(
                NONE, index, node_id, topic.leader_epoch(index), [node_id], [node_id], [], [], []
            )
            for index in range(start, min(start + limit, topic.partition_count))
        ]
        return DescribeTopicPartitionsResponseTopic(
            NONE, topic.name, topic.topic_id, topic.is_internal, partitions, TOPIC_OPERATIONS
        )

    # --- DescribeCluster, FindCoordinator --------------------------------------------------------------------

    def handle_describe_cluster(self, request: Request, body: DescribeClusterRequest) -> Outcome:
        out = Outcome()
        response = DescribeClusterResponse()
        if body.endpoint_type == ENDPOINT_BROKER:
            config = self.config
            response.cluster_id = config.cluster_id
            response.controller_id = config.node_id
            response.brokers = [DescribeClusterBroker(config.node_id, request.host, request.port, config.rack)]
            if body.include_cluster_authorized_operations:
                response.cluster_authorized_operations = CLUSTER_OPERATIONS
        elif body.endpoint_type == ENDPOINT_CONTROLLER:
            response.error_code = MISMATCHED_ENDPOINT_TYPE
            response.error_message = WRONG_ENDPOINT_MESSAGE
        else:
            response.error_code = UNSUPPORTED_ENDPOINT_TYPE
            response.error_message = f"Unsupported endpoint type {body.endpoint_type}"
        out.reply(request.request_id, response)
        return out

    def handle_find_coordinator(self, request: Request, body: FindCoordinatorRequest) -> Outcome:
        """This node, for every group and transactional id. Share groups have no coordinator.

        The first search for the coordinator of a transactional id creates `__transaction_state`.
        """
        out = Outcome()
        node_id = self.config.node_id
        is_served = body.key_type == KEY_GROUP or body.key_type == KEY_TRANSACTION
        if body.key_type == KEY_TRANSACTION and self.topics.get(TRANSACTION_TOPIC) is None:
            topic_id = self.topics.new_topic_id(request.entropy, 0)
            count = self.config.transaction_topic_num_partitions
            self.topics.add_topic_records(out, TRANSACTION_TOPIC, topic_id, count, dict(TRANSACTION_CONFIGS))
        response = FindCoordinatorResponse()
        error_code, problem = INVALID_REQUEST, INVALID_REQUEST_MESSAGE
        if body.key_type == KEY_SHARE and request.version >= 4:
            problem = ""
        if request.version >= 4:
            for key in body.coordinator_keys:
                if is_served:
                    response.coordinators.append(Coordinator(key, node_id, request.host, request.port, NONE, ""))
                else:
                    response.coordinators.append(Coordinator(key, NO_NODE, "", -1, error_code, problem))
        elif is_served:
            response.error_message = "NONE"
            response.node_id = node_id
            response.host = request.host
            response.port = request.port
        else:
            response.error_code = error_code
            response.error_message = problem
            response.node_id = NO_NODE
            response.port = -1
        out.reply(request.request_id, response)
        return out
