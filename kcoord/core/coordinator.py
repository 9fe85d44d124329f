"""The core: owns the rooms, sends every event to its handler and every record to its `replay`.

Single-threaded and deterministic: the same events at the same times give the same outcomes, and the same records give
the same hard state. `digest()` is a fingerprint of that state; a second core fed by `replay` alone must agree with it
after every event.
"""

from __future__ import annotations

import hashlib
from typing import Final, cast, final

from kcoord.core.admin.configs import ConfigHandlers
from kcoord.core.admin.consumer_groups import ConsumerDescribe
from kcoord.core.admin.groups import (
    DESCRIBED_MEMBERS_MAX,
    GROUP_OPERATIONS,
    OPERATIONS_NOT_ASKED,
    DeleteGroupsStep,
    GroupAdmin,
)
from kcoord.core.admin.metadata import MetadataHandlers
from kcoord.core.admin.topics import TopicAdmin
from kcoord.core.assignors.range_assignor import RangeAssignor
from kcoord.core.assignors.spec import Assignor
from kcoord.core.assignors.uniform import UniformAssignor
from kcoord.core.classic.join import ClassicJoin
from kcoord.core.classic.membership import ClassicMembership
from kcoord.core.classic.rebalance import ClassicRebalance
from kcoord.core.classic.sync import ClassicSync
from kcoord.core.client_assignors.assignments import ClientAssignments
from kcoord.core.client_assignors.install import Installation
from kcoord.core.config import PROTOCOL_CONSUMER, CoreConfig
from kcoord.core.consumer.heartbeat import ConsumerHeartbeats
from kcoord.core.consumer.membership import ConsumerMembership
from kcoord.core.consumer.migration import ConsumerMigration
from kcoord.core.consumer.mixed_join import MixedJoin
from kcoord.core.consumer.mixed_members import MixedMembers
from kcoord.core.consumer.regex import ConsumerRegexes
from kcoord.core.consumer.steps import ConsumerSteps
from kcoord.core.consumer.targets import ConsumerTargets
from kcoord.core.consumer.topics import GroupTopics
from kcoord.core.groups.cause import NO_TIME
from kcoord.core.groups.leave import LeaveGroups, LeaveGroupStep
from kcoord.core.groups.replay import ConsumerReplay, consumer_hard_state
from kcoord.core.groups.store import GroupStore
from kcoord.core.groups.upkeep import GroupUpkeep
from kcoord.core.hashing import coordinator_partition
from kcoord.core.offsets.store import OffsetStore
from kcoord.core.outcome import (
    CONSUMER_TIMERS,
    OFFSETS_TOPIC,
    TIMER_OFFSET_EXPIRY,
    TIMER_SESSION,
    TIMER_TOPIC_OFFSETS,
    Disconnected,
    Event,
    JobDone,
    LogId,
    Now,
    Outcome,
    Request,
    Timer,
    TimerFired,
    TopicsChanged,
    TopicsDeleted,
)
from kcoord.core.producers import ProducerIds
from kcoord.core.refusals import error_response
from kcoord.core.topics.registry import TopicRegistry
from kcoord.protocol import apis, errors
from kcoord.protocol.consumer_group_describe import ConsumerGroupDescribeRequest
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kcoord.protocol.consumer_group_install_assignment import ConsumerGroupInstallAssignmentRequest
from kcoord.protocol.consumer_group_prepare_assignment import ConsumerGroupPrepareAssignmentRequest
from kcoord.protocol.create_partitions import CreatePartitionsRequest
from kcoord.protocol.create_topics import CreateTopicsRequest
from kcoord.protocol.delete_groups import DeleteGroupsRequest
from kcoord.protocol.delete_topics import DeleteTopicsRequest
from kcoord.protocol.describe_cluster import DescribeClusterRequest
from kcoord.protocol.describe_configs import DescribeConfigsRequest
from kcoord.protocol.describe_groups import DescribeGroupsRequest
from kcoord.protocol.describe_topic_partitions import DescribeTopicPartitionsRequest
from kcoord.protocol.find_coordinator import FindCoordinatorRequest
from kcoord.protocol.heartbeat import HeartbeatRequest
from kcoord.protocol.incremental_alter_configs import IncrementalAlterConfigsRequest
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.join_group import JoinGroupRequest
from kcoord.protocol.leave_group import LeaveGroupRequest
from kcoord.protocol.list_config_resources import ListConfigResourcesRequest
from kcoord.protocol.list_groups import ListGroupsRequest
from kcoord.protocol.metadata import MetadataRequest
from kcoord.protocol.offset_commit import OffsetCommitRequest
from kcoord.protocol.offset_delete import OffsetDeleteRequest
from kcoord.protocol.offset_fetch import OffsetFetchRequest
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from kcoord.protocol.records.legacy_offset_commit import LegacyOffsetCommitKey, LegacyOffsetCommitValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.sync_group import SyncGroupRequest
from kcoord.wire.message import Message

# Served only where `group.coordinator.rebalance.protocols` has `consumer`, besides its heartbeat.
CONSUMER_PROTOCOL_APIS: Final = (
    apis.CONSUMER_GROUP_DESCRIBE,
    apis.CONSUMER_GROUP_PREPARE_ASSIGNMENT,
    apis.CONSUMER_GROUP_INSTALL_ASSIGNMENT,
)


@final
class Core:
    """`assignors` by name, in order of preference, for groups of the new protocol; None for the built-in ones."""

    def __init__(self, config: CoreConfig, assignors: dict[str, Assignor] | None = None) -> None:
        self.config = config
        protocols = config.group_coordinator_rebalance_protocols.split(",")
        self._serves_consumer_protocol = PROTOCOL_CONSUMER in protocols
        self.topics = TopicRegistry(config)
        self.metadata_log = self.topics.log
        self._logs: list[LogId] = []
        self.groups = GroupStore(config, self.log_of)
        self.offsets = OffsetStore(config, self.groups, self.topics, self.log_of)
        self.rebalance = ClassicRebalance(config, self.groups)
        self.joins = ClassicJoin(config, self.groups, self.rebalance)
        self.syncs = ClassicSync(config, self.groups, self.rebalance)
        self.membership = ClassicMembership(config, self.groups, self.rebalance)
        self.group_topics = GroupTopics(config, self.topics)
        if not assignors:
            assignors = {"uniform": UniformAssignor(), "range": RangeAssignor()}
        self.targets = ConsumerTargets(self.group_topics, assignors)
        self.regexes = ConsumerRegexes(config, self.groups, self.topics, self.targets)
        self.migration = ConsumerMigration(config, self.groups, self.group_topics, self.rebalance)
        self.consumers = ConsumerMembership(config, self.groups, self.topics, self.targets, self.migration)
        self.consumer_steps = ConsumerSteps(self.targets, self.regexes, self.consumers)
        self.consumer_heartbeats = ConsumerHeartbeats(
            config, self.groups, self.targets, self.consumers, self.migration, self.consumer_steps
        )
        self.mixed_joins = MixedJoin(
            config, self.groups, self.joins, self.consumers, self.migration, self.consumer_steps
        )
        self.mixed_members = MixedMembers(self.groups, self.group_topics, self.consumers, self.consumer_steps)
        self.leaves = LeaveGroups(self.groups, self.membership.leave, self.mixed_members.leave)
        self.client_assignments = ClientAssignments(
            self.groups, self.group_topics, self.consumer_steps.client_assignors
        )
        self.consumer_replay = ConsumerReplay(self.groups)
        self.consumer_describe = ConsumerDescribe(
            self.groups,
            self.topics,
            self.targets,
            GROUP_OPERATIONS,
            OPERATIONS_NOT_ASKED,
            DESCRIBED_MEMBERS_MAX,
        )
        self.upkeep = GroupUpkeep(self.groups, self.membership, self.consumers, self.offsets.has_offsets)
        self.group_admin = GroupAdmin(config, self.groups, self.offsets.tombstones_of)
        self.topic_admin = TopicAdmin(config, self.topics)
        self.metadata = MetadataHandlers(config, self.topics)
        self.configs = ConfigHandlers(config, self.topics)
        self.producer_ids = ProducerIds(config, self.topics)

    # --- logs ------------------------------------------------------------------------------------------------

    def offsets_logs(self) -> list[LogId]:
        """The partitions of `__consumer_offsets`. Their number is fixed when the topic is made."""
        if not self._logs:
            count = self.topics.partition_count(OFFSETS_TOPIC)
            self._logs = [LogId(OFFSETS_TOPIC, partition) for partition in range(count)]
        return self._logs

    def assume_offsets_logs(self, count: int) -> None:
        """How many partitions `__consumer_offsets` has, where no metadata log says it: logs that are only looked at."""
        if not self.offsets_logs():
            self._logs = [LogId(OFFSETS_TOPIC, partition) for partition in range(count)]

    def log_of(self, group_id: str) -> LogId:
        """The log that holds a group."""
        logs = self._logs
        if len(logs) == 1:
            return logs[0]
        if not logs:
            logs = self.offsets_logs()
        return logs[coordinator_partition(group_id, len(logs))]

    # --- events ----------------------------------------------------------------------------------------------

    def loaded_topics(self, now: Now, entropy: bytes) -> Outcome:
        """The metadata log was replayed: makes the internal topics where they are missing."""
        return self.topics.loaded(now, entropy)

    def loaded(self, now: Now) -> Outcome:
        """Every log was replayed: groups come to life and unfinished chains go on."""
        out = Outcome()
        self.groups.timers.is_live = True
        self.membership.loaded(now, out)
        self.consumers.loaded(now, out)
        out.timers.append(self.offsets.first_expiry_timer(now))
        out.follow_ups.append(self.topics.unfinished_deletions())
        return out

    def handle(self, event: Event, now: Now) -> Outcome:
        """Handle anything but a request."""
        if isinstance(event, TimerFired):
            timer = event.timer
            if timer.kind == TIMER_OFFSET_EXPIRY:
                return self.offsets.handle_expiry_timer(timer, now)
            if timer.kind == TIMER_TOPIC_OFFSETS:
                return self.offsets.handle_topic_timer(now)
            if timer.kind in CONSUMER_TIMERS or timer.group_id in self.groups.consumer_groups:
                return self.consumers.handle_timer(timer, now)
            return self.membership.handle_timer(timer, now)
        if isinstance(event, TopicsDeleted):
            return self.offsets.handle_topics_deleted(event, now)
        if isinstance(event, DeleteGroupsStep):
            return self.group_admin.handle_delete_groups_step(event, now)
        if isinstance(event, LeaveGroupStep):
            return self.leaves.handle_leave_group_step(event, now)
        if isinstance(event, Installation):
            return self.client_assignments.handle_installation(event, now)
        if isinstance(event, JobDone):
            return self.regexes.handle_resolved(event, now)
        if isinstance(event, TopicsChanged):
            return self._topics_changed(event)
        # Members outlive their connections, and the engine drops answers to nobody: nothing to do yet.
        if isinstance(event, Disconnected):
            return Outcome()
        raise TypeError(f"no handler for {type(event).__name__}")

    def still_counts(self, timer: Timer) -> bool:
        """Whether the timer would do anything if it fired."""
        if timer.kind == TIMER_OFFSET_EXPIRY or timer.kind == TIMER_TOPIC_OFFSETS:
            return True
        if timer.kind == TIMER_SESSION or timer.kind in CONSUMER_TIMERS:
            return self.groups.timers.is_current(timer)
        return self.membership.still_counts(timer)

    def _topics_changed(self, event: TopicsChanged) -> Outcome:
        """Groups that subscribe to one of the topics look at them again with their next heartbeat."""
        changes = self.group_topics.forget(event.names)
        for group in self.groups.consumer_groups.values():
            if group.epoch != group.assignment_epoch:
                # What it computed last was for other subscriptions, which may have had one of the topics.
                group.forget_builder()
            for name in group.subscribed_among(changes):
                group.request_refresh()
                group.forget_builder()
                if not group.note_topic_change(self.group_topics.describe_change(name, changes[name])):
                    break
        return Outcome()

    def handle_request(self, request: Request, now: Now) -> Outcome:
        """Handle a request of any API but those of the data plane."""
        key = request.api_key
        body = request.body
        if key == apis.OFFSET_COMMIT:
            return self.offsets.handle_offset_commit(request, cast(OffsetCommitRequest, body), now)
        if key == apis.HEARTBEAT:
            heartbeat = cast(HeartbeatRequest, body)
            if heartbeat.group_id in self.groups.consumer_groups:
                return self.mixed_members.handle_heartbeat(request, heartbeat, now)
            return self.membership.handle_heartbeat(request, heartbeat, now)
        if key == apis.CONSUMER_GROUP_HEARTBEAT:
            if not self._serves_consumer_protocol:
                return self._unsupported(request)
            beat = cast(ConsumerGroupHeartbeatRequest, body)
            return self.consumer_heartbeats.handle_heartbeat(request, beat, now)
        if key == apis.OFFSET_FETCH:
            return self.offsets.handle_offset_fetch(request, cast(OffsetFetchRequest, body), now)
        if key == apis.JOIN_GROUP:
            join = cast(JoinGroupRequest, body)
            if join.group_id in self.groups.consumer_groups:
                return self.mixed_joins.handle_join_group(request, join, now)
            return self.joins.handle_join_group(request, join, now)
        if key == apis.SYNC_GROUP:
            sync = cast(SyncGroupRequest, body)
            if sync.group_id in self.groups.consumer_groups:
                return self.mixed_members.handle_sync_group(request, sync, now)
            return self.syncs.handle_sync_group(request, sync, now)
        if key == apis.LEAVE_GROUP:
            return self.leaves.handle_leave_group(request, cast(LeaveGroupRequest, body), now)
        if key == apis.METADATA:
            return self.metadata.handle_metadata(request, cast(MetadataRequest, body), now)
        if key == apis.FIND_COORDINATOR:
            return self.metadata.handle_find_coordinator(request, cast(FindCoordinatorRequest, body), now)
        if key == apis.INIT_PRODUCER_ID:
            return self.producer_ids.handle_init_producer_id(request, cast(InitProducerIdRequest, body), now)
        return self._handle_admin(request, now)

    def take_cost(self) -> int:
        """What handlers took since this was last asked that the bytes of their requests do not show, in such bytes."""
        cost = self.regexes.cost + self.leaves.cost + self.client_assignments.cost
        self.regexes.cost = 0
        self.client_assignments.cost = 0
        self.leaves.cost = 0
        return cost

    def _handle_admin(self, request: Request, now: Now) -> Outcome:
        key = request.api_key
        body = request.body
        if key == apis.DESCRIBE_GROUPS:
            return self.group_admin.handle_describe_groups(request, cast(DescribeGroupsRequest, body), now)
        if key in CONSUMER_PROTOCOL_APIS and not self._serves_consumer_protocol:
            return self._unsupported(request)
        if key == apis.CONSUMER_GROUP_DESCRIBE:
            return self.consumer_describe.handle_describe(request, cast(ConsumerGroupDescribeRequest, body))
        if key == apis.CONSUMER_GROUP_PREPARE_ASSIGNMENT:
            prepared = cast(ConsumerGroupPrepareAssignmentRequest, body)
            return self.client_assignments.handle_prepare(request, prepared, now)
        if key == apis.CONSUMER_GROUP_INSTALL_ASSIGNMENT:
            installed = cast(ConsumerGroupInstallAssignmentRequest, body)
            return self.client_assignments.handle_install(request, installed, now)
        if key == apis.LIST_GROUPS:
            return self.group_admin.handle_list_groups(request, cast(ListGroupsRequest, body), now)
        if key == apis.DELETE_GROUPS:
            return self.group_admin.handle_delete_groups(request, cast(DeleteGroupsRequest, body), now)
        if key == apis.OFFSET_DELETE:
            return self.offsets.handle_offset_delete(request, cast(OffsetDeleteRequest, body), now)
        if key == apis.CREATE_TOPICS:
            return self.topic_admin.handle_create_topics(request, cast(CreateTopicsRequest, body), now)
        if key == apis.DELETE_TOPICS:
            return self.topic_admin.handle_delete_topics(request, cast(DeleteTopicsRequest, body), now)
        if key == apis.CREATE_PARTITIONS:
            return self.topic_admin.handle_create_partitions(
                request, cast(CreatePartitionsRequest, body), now
            )
        if key == apis.DESCRIBE_CLUSTER:
            return self.metadata.handle_describe_cluster(request, cast(DescribeClusterRequest, body), now)
        if key == apis.DESCRIBE_TOPIC_PARTITIONS:
            described = cast(DescribeTopicPartitionsRequest, body)
            return self.metadata.handle_describe_topic_partitions(request, described, now)
        if key == apis.DESCRIBE_CONFIGS:
            return self.configs.handle_describe_configs(request, cast(DescribeConfigsRequest, body), now)
        if key == apis.INCREMENTAL_ALTER_CONFIGS:
            altered = cast(IncrementalAlterConfigsRequest, body)
            return self.configs.handle_incremental_alter_configs(request, altered, now)
        if key == apis.LIST_CONFIG_RESOURCES:
            listed = cast(ListConfigResourcesRequest, body)
            return self.configs.handle_list_config_resources(request, listed, now)
        raise KeyError(f"no handler for api key {key}")

    def _unsupported(self, request: Request) -> Outcome:
        """The API is listed, and its protocol is switched off: so a broker answers."""
        out = Outcome()
        response = error_response(request.api_key, request.version, request.body, errors.UNSUPPORTED_VERSION)
        out.reply(request.request_id, response)
        return out

    # --- replay ----------------------------------------------------------------------------------------------

    def replay(
        self, log: LogId, offset: int, key: Message | None, value: Message | None, time_ms: int = NO_TIME
    ) -> None:
        """Apply one record, with its timestamp in the log. The only place where hard state changes.

        Unknown record types, and those of groups we do not run yet, leave the state as it is.
        """
        if isinstance(key, OffsetCommitKey):
            self.offsets.replay_offset_commit(key, cast(OffsetCommitValue | None, value), offset)
        elif isinstance(key, GroupMetadataKey):
            self.groups.replay_group_metadata(key, cast(GroupMetadataValue | None, value), offset)
        elif key is None:
            if value is not None:
                self.topics.replay_metadata(value, offset)
        elif isinstance(key, LegacyOffsetCommitKey):
            self.offsets.replay_legacy_offset_commit(key, cast(LegacyOffsetCommitValue | None, value), offset)
        else:
            self.consumer_replay.replay(offset, key, value, time_ms)

    def settle(self, outcome: Outcome, now: Now) -> None:
        """All records of an outcome were replayed: timers that it has to arm besides its own are added to it."""
        self.upkeep.settle(now, outcome)

    def refused(self, outcome: Outcome, now: Now) -> Outcome:
        """The records of an outcome are too many to be stored, and none was: soft state goes back to what the log says.

        What this arms and answers; it has no records.
        """
        left = Outcome()
        self.upkeep.refused(outcome, now, left)
        return left

    def digest(self) -> str:
        """A fingerprint of the hard state, the same for the same records on every machine."""
        lines = self.topics.digest_lines() + self.groups.hard_state() + self.offsets.digest_lines()
        lines += consumer_hard_state(self.groups)
        return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()
