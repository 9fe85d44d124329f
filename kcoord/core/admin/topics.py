"""CreateTopics, DeleteTopics and CreatePartitions.

All records of one request are one atomic batch in the metadata log: after a crash, all or none of them are there. One
difference from a Kafka broker: `__consumer_offsets` and `__transaction_state` can be neither deleted nor extended,
since groups would lose their coordinator.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import (
    INTERNAL_TOPICS,
    MESSAGE_CHARS_MAX,
    METADATA_TOPIC,
    Outcome,
    Reply,
    Request,
    TopicsDeleted,
)
from kcoord.core.topics.config_defs import SOURCE_TOPIC, TOPIC_CONFIGS, check_topic_configs
from kcoord.core.topics.registry import (
    REQUEST_RECORDS_MAX,
    TOO_MANY_RECORDS,
    Topic,
    TopicRegistry,
    check_topic_name,
)
from kcoord.protocol.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from kcoord.protocol.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kcoord.protocol.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from kcoord.protocol.errors import (
    INVALID_CONFIG,
    INVALID_PARTITIONS,
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR,
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    NONE,
    POLICY_VIOLATION,
    TOPIC_ALREADY_EXISTS,
    TOPIC_DELETION_DISABLED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kcoord.protocol.records.remove_topic_record import RemoveTopicRecord
from kcoord.wire.message import Message
from kcoord.wire.primitives import ZERO_UUID

REPLICATION_FACTOR: Final = 1
# Topics of one CreateTopics whose configurations are in the answer, more than 1 KiB each. For the others an error code
# reports that they are left out.
CONFIGS_SHOWN_TOPICS_MAX: Final = 500

TOO_MANY_PARTITIONS: Final = "Excessively large number of partitions per request."
DUPLICATE_NAME: Final = "Duplicate topic name."
NO_SUCH_TOPIC: Final = "This server does not host this topic-partition."
NO_SUCH_TOPIC_ID: Final = "This server does not host this topic ID."


@final
class Refusal:
    """Why a topic of a request is not created, deleted or extended."""

    def __init__(self, error_code: int, message: str | None) -> None:
        self.error_code = error_code
        self.message = None if message is None else message[:MESSAGE_CHARS_MAX]


@final
class TopicAdmin:
    def __init__(self, config: CoreConfig, topics: TopicRegistry) -> None:
        self.config = config
        self.topics = topics
        self.request_records_max = REQUEST_RECORDS_MAX
        # During one request: the configurations in answers of topics that set nothing.
        self._defaults_shown: list[CreatableTopicConfigs] = []

    def _finish(self, request: Request, response: Message, out: Outcome) -> None:
        # With records the answer waits for those, otherwise for what it shows.
        if out.records:
            out.reply(request.request_id, response)
        else:
            out.replies.append(Reply(request.request_id, response, self.topics.log, self.topics.end_offset))

    # --- CreateTopics ----------------------------------------------------------------------------------------

    def handle_create_topics(self, request: Request, body: CreateTopicsRequest) -> Outcome:
        """Create topics, or only validate the request. Answers are in the order of the request, duplicates last."""
        out = Outcome()
        response = CreateTopicsResponse()
        counts: dict[str, int] = {}
        for asked in body.topics:
            counts[asked.name] = counts.get(asked.name, 0) + 1
        total = 0
        records = 0
        for asked in body.topics:
            if counts[asked.name] == 1:
                partitions = self._asked_partitions(asked)
                total += partitions
                records += 1 + len(asked.configs) + partitions
        self._defaults_shown = []
        index = 0
        added = 0
        for asked in body.topics:
            if counts[asked.name] > 1 or asked.name == METADATA_TOPIC:
                continue
            if total > self.config.request_partitions_max:
                refusal: Refusal | None = Refusal(POLICY_VIOLATION, TOO_MANY_PARTITIONS)
            elif records > self.request_records_max:
                refusal = Refusal(POLICY_VIOLATION, TOO_MANY_RECORDS)
            else:
                refusal = self._refuse_creation(asked, added)
            if refusal is None:
                response.topics.append(self._create(request, body, asked, index, out))
                added += self._asked_partitions(asked)
                index += 1
            else:
                response.topics.append(CreatableTopicResult(asked.name, ZERO_UUID, refusal.error_code, refusal.message))
        for name, count in counts.items():
            if count > 1:
                response.topics.append(CreatableTopicResult(name, ZERO_UUID, INVALID_REQUEST, DUPLICATE_NAME))
            elif name == METADATA_TOPIC:
                message = f"Creation of internal topic {METADATA_TOPIC} is prohibited."
                response.topics.append(CreatableTopicResult(name, ZERO_UUID, INVALID_REQUEST, message))
        self._finish(request, response, out)
        return out

    def _asked_partitions(self, asked: CreatableTopic) -> int:
        if asked.assignments:
            return len(asked.assignments)
        return self.config.num_partitions if asked.num_partitions == -1 else max(asked.num_partitions, 0)

    def _create(
        self,
        request: Request,
        body: CreateTopicsRequest,
        asked: CreatableTopic,
        index: int,
        out: Outcome,
    ) -> CreatableTopicResult:
        configs: dict[str, str] = {}
        for config in asked.configs:
            if config.value is not None:
                configs[config.name] = config.value
        count = self._asked_partitions(asked)
        topic_id = self.topics.new_topic_id(request.entropy, index)
        if not body.validate_only:
            self.topics.add_topic_records(out, asked.name, topic_id, count, configs)
        result = CreatableTopicResult(asked.name, topic_id, NONE, None)
        result.num_partitions = count
        result.replication_factor = REPLICATION_FACTOR
        if index >= CONFIGS_SHOWN_TOPICS_MAX:
            result.topic_config_error_code = POLICY_VIOLATION
        elif configs:
            result.configs = self._shown_configs(configs)
        else:
            if not self._defaults_shown:
                self._defaults_shown = self._shown_configs(configs)
            result.configs = self._defaults_shown
        return result

    def _shown_configs(self, own: dict[str, str]) -> list[CreatableTopicConfigs]:
        shown: list[CreatableTopicConfigs] = []
        for name in TOPIC_CONFIGS:
            value = own.get(name)
            if value is None:
                source = self.topics.default_source(name)
                value = self.topics.default_value(name)
            else:
                source = SOURCE_TOPIC
            shown.append(CreatableTopicConfigs(name, value, False, source, False))
        return shown

    def _refuse_creation(self, asked: CreatableTopic, added: int) -> Refusal | None:
        """Why a topic cannot be created, checked in the order of Kafka's controller.

        `added` is the number of partitions of other topics in the request.
        """
        name = asked.name
        if self.topics.get(name) is not None:
            return Refusal(TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        colliding = self.topics.colliding_name(name)
        if colliding:
            return Refusal(INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {colliding}")
        problem = check_topic_name(name)
        if problem:
            return Refusal(INVALID_TOPIC_EXCEPTION, problem)
        nulls: list[str] = []
        configs: dict[str, str] = {}
        for config in asked.configs:
            if config.value is None:
                nulls.append(config.name)
            else:
                configs[config.name] = config.value
        if nulls:
            message = "Null value not supported for topic configs: " + ",".join(nulls)
            return Refusal(INVALID_CONFIG, message)
        if configs:
            problem = check_topic_configs(configs)
            if problem:
                return Refusal(INVALID_CONFIG, problem)
        refusal = self._refuse_assignments(asked) if asked.assignments else self._refuse_counts(asked)
        if refusal is None and not self.topics.has_room(added + self._asked_partitions(asked)):
            return Refusal(POLICY_VIOLATION, self._no_room())
        return refusal

    def _no_room(self) -> str:
        return (
            f"There are {self.topics.total_partitions} partitions, and at most {self.config.partitions_max} may be "
            "(partitions.max)."
        )

    def _refuse_counts(self, asked: CreatableTopic) -> Refusal | None:
        factor = asked.replication_factor
        if factor < -1 or factor == 0:
            message = "Replication factor must be larger than 0, or -1 to use the default value."
            return Refusal(INVALID_REPLICATION_FACTOR, message)
        if asked.num_partitions < -1 or asked.num_partitions == 0:
            message = "Number of partitions was set to an invalid non-positive value."
            return Refusal(INVALID_PARTITIONS, message)
        wanted = self.config.default_replication_factor if factor == -1 else factor
        if wanted > REPLICATION_FACTOR:
            message = (
                f"Unable to replicate the partition {wanted} time(s): The target replication factor of {wanted} "
                "cannot be reached because only 1 broker(s) are registered."
            )
            return Refusal(INVALID_REPLICATION_FACTOR, message)
        return None

    def _refuse_assignments(self, asked: CreatableTopic) -> Refusal | None:
        if asked.replication_factor != -1:
            message = "A manual partition assignment was specified, but replication factor was not set to -1."
            return Refusal(INVALID_REQUEST, message)
        if asked.num_partitions != -1:
            message = "A manual partition assignment was specified, but numPartitions was not set to -1."
            return Refusal(INVALID_REQUEST, message)
        indexes: dict[int, CreatableReplicaAssignment] = {}
        for assignment in asked.assignments:
            index = assignment.partition_index
            if index in indexes:
                message = f"Found multiple manual partition assignments for partition {index}"
                return Refusal(INVALID_REPLICA_ASSIGNMENT, message)
            problem = self._check_replicas(assignment.broker_ids)
            if problem:
                return Refusal(INVALID_REPLICA_ASSIGNMENT, problem)
            indexes[index] = assignment
        for index in range(len(indexes)):
            if index not in indexes:
                message = "partitions should be a consecutive 0-based integer sequence"
                return Refusal(INVALID_REPLICA_ASSIGNMENT, message)
        return None

    def _check_replicas(self, broker_ids: list[int]) -> str:
        """Check the replicas that a client chose for a partition: "" if it is this node alone."""
        if not broker_ids:
            return "The manual partition assignment includes an empty replica list."
        for broker_id in sorted(broker_ids):
            if broker_id != self.config.node_id:
                return f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
        if len(broker_ids) > 1:
            node_id = self.config.node_id
            return f"The manual partition assignment includes the broker {node_id} more than once."
        return ""

    # --- DeleteTopics ----------------------------------------------------------------------------------------

    def handle_delete_topics(self, request: Request, body: DeleteTopicsRequest) -> Outcome:
        """Delete topics by name or (version 6) by id. Their committed offsets follow: see TopicsDeleted."""
        out = Outcome()
        response = DeleteTopicsResponse()
        names: dict[str, int] = {}
        ids: dict[bytes, int] = {}
        for name in body.topic_names:
            names[name] = names.get(name, 0) + 1
        for state in body.topics:
            if state.name is None:
                if state.topic_id == ZERO_UUID:
                    message = "Neither topic name nor id were specified."
                    response.responses.append(DeletableTopicResult(None, ZERO_UUID, INVALID_REQUEST, message))
                else:
                    ids[state.topic_id] = ids.get(state.topic_id, 0) + 1
            elif state.topic_id == ZERO_UUID:
                names[state.name] = names.get(state.name, 0) + 1
            else:
                message = "You may not specify both topic name and topic id."
                response.responses.append(DeletableTopicResult(state.name, state.topic_id, INVALID_REQUEST, message))
        if not self.config.delete_topic_enable:
            self._refuse_all_deletions(request, names, ids, response)
        else:
            doomed = self._delete_by_id(names, ids, response)
            self._delete_by_name(names, ids, doomed, response)
            if len(doomed) > self.config.request_partitions_max:
                for topic_id, topic in doomed.items():
                    result = DeletableTopicResult(topic.name, topic_id, POLICY_VIOLATION, TOO_MANY_RECORDS)
                    response.responses.append(result)
                doomed = {}
            gone: dict[bytes, str] = {}
            for topic_id, topic in doomed.items():
                out.add(self.topics.log, None, RemoveTopicRecord(topic_id))
                gone[topic_id] = topic.name
                response.responses.append(DeletableTopicResult(topic.name, topic_id, NONE, None))
            if gone:
                out.once_durable = [TopicsDeleted(gone)]
        self._finish(request, response, out)
        return out

    def _refuse_all_deletions(
        self, request: Request, names: dict[str, int], ids: dict[bytes, int], response: DeleteTopicsResponse
    ) -> None:
        error = INVALID_REQUEST if request.version < 3 else TOPIC_DELETION_DISABLED
        response.responses = []
        for name in names:
            response.responses.append(DeletableTopicResult(name, ZERO_UUID, error, "Topic deletion is disabled."))
        for topic_id in ids:
            response.responses.append(DeletableTopicResult(None, topic_id, error, "Topic deletion is disabled."))

    def _refuse_deletion(self, topic: Topic) -> Refusal | None:
        if topic.name in INTERNAL_TOPICS:
            return Refusal(INVALID_REQUEST, f"The internal topic {topic.name} cannot be deleted.")
        return None

    def _delete_by_id(
        self, names: dict[str, int], ids: dict[bytes, int], response: DeleteTopicsResponse
    ) -> dict[bytes, Topic]:
        doomed: dict[bytes, Topic] = {}
        results = response.responses
        for topic_id, count in ids.items():
            topic = self.topics.by_id(topic_id)
            if count > 1:
                results.append(DeletableTopicResult(None, topic_id, INVALID_REQUEST, "Duplicate topic id."))
            elif topic is None:
                results.append(DeletableTopicResult(None, topic_id, UNKNOWN_TOPIC_ID, NO_SUCH_TOPIC_ID))
            elif names.get(topic.name) == 1:
                # The topic is also in the request by name, and is answered there.
                continue
            else:
                refusal = self._refuse_deletion(topic)
                if refusal is None:
                    doomed[topic_id] = topic
                else:
                    results.append(DeletableTopicResult(topic.name, topic_id, refusal.error_code, refusal.message))
        return doomed

    def _delete_by_name(
        self,
        names: dict[str, int],
        ids: dict[bytes, int],
        doomed: dict[bytes, Topic],
        response: DeleteTopicsResponse,
    ) -> None:
        results = response.responses
        for name, count in names.items():
            topic = self.topics.get(name)
            if count > 1:
                results.append(DeletableTopicResult(name, ZERO_UUID, INVALID_REQUEST, DUPLICATE_NAME))
            elif topic is None:
                results.append(DeletableTopicResult(name, ZERO_UUID, UNKNOWN_TOPIC_OR_PARTITION, NO_SUCH_TOPIC))
            elif topic.topic_id in ids:
                message = "The provided topic name maps to an ID that was already supplied."
                results.append(DeletableTopicResult(name, topic.topic_id, INVALID_REQUEST, message))
            else:
                refusal = self._refuse_deletion(topic)
                if refusal is None:
                    doomed[topic.topic_id] = topic
                else:
                    results.append(DeletableTopicResult(name, topic.topic_id, refusal.error_code, refusal.message))

    # --- CreatePartitions ------------------------------------------------------------------------------------

    def handle_create_partitions(self, request: Request, body: CreatePartitionsRequest) -> Outcome:
        """Extend topics to a new number of partitions, or only validate the request."""
        out = Outcome()
        response = CreatePartitionsResponse()
        counts: dict[str, int] = {}
        for asked in body.topics:
            counts[asked.name] = counts.get(asked.name, 0) + 1
        for name, count in counts.items():
            if count > 1:
                response.results.append(CreatePartitionsTopicResult(name, INVALID_REQUEST, DUPLICATE_NAME))
        added = 0
        for asked in body.topics:
            if counts[asked.name] > 1:
                continue
            topic = self.topics.get(asked.name)
            refusal = self._refuse_widening(topic, asked, added)
            if refusal is not None:
                response.results.append(CreatePartitionsTopicResult(asked.name, refusal.error_code, refusal.message))
            elif topic is not None:
                added += asked.count - topic.partition_count
                if not body.validate_only:
                    self.topics.add_partition_records(out, topic.topic_id, topic.partition_count, asked.count)
                response.results.append(CreatePartitionsTopicResult(asked.name, NONE, None))
        self._finish(request, response, out)
        return out

    def _refuse_widening(self, topic: Topic | None, asked: CreatePartitionsTopic, added: int) -> Refusal | None:
        if topic is None:
            return Refusal(UNKNOWN_TOPIC_OR_PARTITION, None)
        have = topic.partition_count
        if asked.count == have:
            return Refusal(INVALID_PARTITIONS, f"Topic already has {have} partition(s).")
        if asked.count < have:
            message = (
                f"The topic {topic.name} currently has {have} partition(s); {asked.count} would not be an increase."
            )
            return Refusal(INVALID_PARTITIONS, message)
        more = asked.count - have
        assignments = asked.assignments
        if assignments is not None:
            if len(assignments) != more:
                message = (
                    f"Attempted to add {more} additional partition(s), but only {len(assignments)} assignment(s) "
                    "were specified."
                )
                return Refusal(INVALID_REPLICA_ASSIGNMENT, message)
            for assignment in assignments:
                problem = self._check_replicas(assignment.broker_ids)
                if problem:
                    return Refusal(INVALID_REPLICA_ASSIGNMENT, problem)
        if added + more > self.config.request_partitions_max:
            return Refusal(POLICY_VIOLATION, TOO_MANY_PARTITIONS)
        if not self.topics.has_room(added + more):
            return Refusal(POLICY_VIOLATION, self._no_room())
        if topic.name in INTERNAL_TOPICS:
            message = f"The number of partitions of internal topic {topic.name} is fixed, as group ids map to them."
            return Refusal(INVALID_REQUEST, message)
        return None
