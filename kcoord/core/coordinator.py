"""The core: owns the handlers, and passes every event to its handler and every record to `replay`.

Requests go to their handlers through `handle_request` (dispatch.py), which is generated from schemas/.

Single-threaded and deterministic: the same events at the same times give the same outcomes, and the same records give
the same hard state. `digest()` is a fingerprint of that state; a second core that only gets `replay` must have the same
digest after every event.
"""

from __future__ import annotations

from typing import cast, final

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
from kcoord.core.cause import NO_TIME
from kcoord.core.choices import PROTOCOL_CONSUMER
from kcoord.core.classic.join import ClassicJoin
from kcoord.core.classic.membership import ClassicMembership
from kcoord.core.classic.rebalance import ClassicRebalance
from kcoord.core.classic.sync import ClassicSync
from kcoord.core.classic_requests import ClassicRequests
from kcoord.core.client_assignors.assignments import ClientAssignments
from kcoord.core.client_assignors.install import Installation
from kcoord.core.config import CoreConfig
from kcoord.core.consumer.heartbeat import ConsumerHeartbeats
from kcoord.core.consumer.membership import ConsumerMembership
from kcoord.core.consumer.migration import ConsumerMigration
from kcoord.core.consumer.mixed_join import MixedJoin
from kcoord.core.consumer.mixed_members import MixedMembers
from kcoord.core.consumer.regex import ConsumerRegexes
from kcoord.core.consumer.steps import ConsumerSteps
from kcoord.core.consumer.targets import ConsumerTargets
from kcoord.core.groups.leave import LeaveGroups, LeaveGroupStep
from kcoord.core.groups.replay import ConsumerReplay, consumer_hard_state
from kcoord.core.groups.store import GroupStore
from kcoord.core.hashing import coordinator_partition
from kcoord.core.offsets.commit import OffsetCommits
from kcoord.core.offsets.delete import OffsetDeletes
from kcoord.core.offsets.expiry import OffsetExpiry
from kcoord.core.offsets.fences import check_assigned
from kcoord.core.offsets.fetch import OffsetFetches
from kcoord.core.offsets.state import NO_PRODUCER_ID, OffsetState
from kcoord.core.offsets.transactional import TransactionalCommits, TxnOffsetCommitStep
from kcoord.core.outcome import (
    CONSUMER_TIMERS,
    OFFSETS_TOPIC,
    TIMER_HELD_COMMIT,
    TIMER_OFFSET_EXPIRY,
    TIMER_SESSION,
    TIMER_TOPIC_OFFSETS,
    TIMER_TRANSACTION,
    TIMER_TRANSACTIONAL_IDS,
    Disconnected,
    Event,
    JobDone,
    LogId,
    MadeGroup,
    Now,
    Outcome,
    Request,
    Timer,
    TimerFired,
    TopicsChanged,
    TopicsDeleted,
)
from kcoord.core.producers import ProducerIds, ProducerIdsReserved
from kcoord.core.topics.group_topics import GroupTopics
from kcoord.core.topics.registry import TopicRegistry
from kcoord.core.transactions.claims import AssignmentClaims, FenceOwner
from kcoord.core.transactions.describe import TransactionDescribe
from kcoord.core.transactions.end import TransactionEnds
from kcoord.core.transactions.expiry import TransactionExpiry
from kcoord.core.transactions.held_commits import HeldCommits
from kcoord.core.transactions.init import TransactionInits
from kcoord.core.transactions.partitions import AddPartitionsStep, TransactionPartitions
from kcoord.core.transactions.state import CompleteStep, MarkersStep, RetryRequest, Transactions
from kcoord.core.upkeep import GroupUpkeep
from kcoord.protocol import apis
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from kcoord.protocol.records.legacy_offset_commit import LegacyOffsetCommitKey, LegacyOffsetCommitValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.transaction_group_assignment import (
    TransactionGroupAssignmentKey,
    TransactionGroupAssignmentValue,
)
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue
from kcoord.protocol.txn_offset_commit import TxnOffsetCommitRequest
from kcoord.wire.message import Message


@final
class Core:
    """`assignors` for consumer groups by name, in order of preference; None for the built-in ones."""

    def __init__(self, config: CoreConfig, assignors: dict[str, Assignor] | None = None) -> None:
        protocols = config.group_coordinator_rebalance_protocols.split(",")
        self.serves_consumer_protocol = PROTOCOL_CONSUMER in protocols
        self.topics = TopicRegistry(config)
        self.metadata_log = self.topics.log
        self._logs: list[LogId] = []
        self.groups = GroupStore(self.log_of)
        self.offsets = OffsetState(config, self.groups, self.topics, self.log_of)
        self.offset_commits = OffsetCommits(self.offsets)
        self.offset_fetches = OffsetFetches(self.offsets)
        self.offset_deletes = OffsetDeletes(self.offsets)
        self.offset_expiry = OffsetExpiry(self.offsets)
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
        self.consumers = ConsumerMembership(self.groups, self.topics, self.targets, self.migration)
        self.consumer_steps = ConsumerSteps(self.targets, self.regexes, self.consumers)
        self.consumer_heartbeats = ConsumerHeartbeats(
            config, self.groups, self.targets, self.consumers, self.migration, self.consumer_steps
        )
        self.mixed_joins = MixedJoin(
            config, self.groups, self.joins, self.consumers, self.migration, self.consumer_steps
        )
        self.mixed_members = MixedMembers(self.groups, self.group_topics, self.consumers, self.consumer_steps)
        self.leaves = LeaveGroups(
            self.groups, self.membership.leave, self.mixed_members.leave, config.coordinator_batch_bytes_max
        )
        self.classic_requests = ClassicRequests(
            self.groups, self.joins, self.syncs, self.membership, self.mixed_joins, self.mixed_members
        )
        self.client_assignments = ClientAssignments(
            self.groups, self.group_topics, self.consumer_steps.client_assignors
        )
        self.consumer_replay = ConsumerReplay(self.groups)
        self.consumer_describe = ConsumerDescribe(
            self.groups, self.topics, self.targets, GROUP_OPERATIONS, OPERATIONS_NOT_ASKED, DESCRIBED_MEMBERS_MAX
        )
        self.upkeep = GroupUpkeep(self.groups, self.membership, self.consumers, self.offsets.has_offsets)
        self.group_admin = GroupAdmin(self.groups, self.offsets.tombstones_of, config.coordinator_batch_bytes_max)
        self.topic_admin = TopicAdmin(config, self.topics)
        self.metadata = MetadataHandlers(config, self.topics)
        self.configs = ConfigHandlers(config, self.topics)
        self.producer_ids = ProducerIds(config, self.topics)
        self.transactions = Transactions(self.topics)
        self.held_commits = HeldCommits(self.transactions)
        self.transaction_ends = TransactionEnds(self.transactions, self.producer_ids, self.held_commits)
        self.transaction_expiry = TransactionExpiry(config, self.transactions)
        self.transaction_claims = AssignmentClaims(
            config, self.transactions, self.producer_ids, self.transaction_ends, self._check_assigned
        )
        self.transaction_inits = TransactionInits(
            config, self.transactions, self.producer_ids, self.transaction_expiry, self.transaction_claims
        )
        self.transaction_partitions = TransactionPartitions(
            config, self.topics, self.transactions, self.transaction_ends, self.log_of
        )
        self.transactional_commits = TransactionalCommits(
            self.offsets,
            self.held_commits.check,
            self.transaction_partitions.handle_implicit_add,
            self.held_commits.hold,
            self.transactions.assignments.permits,
        )
        self.transaction_describe = TransactionDescribe(self.transactions)

    # --- logs ------------------------------------------------------------------------------------------------

    def offsets_logs(self) -> list[LogId]:
        """The partitions of `__consumer_offsets`. Their number is fixed when the topic is created."""
        if not self._logs:
            count = self.topics.partition_count(OFFSETS_TOPIC)
            self._logs = [LogId(OFFSETS_TOPIC, partition) for partition in range(count)]
        return self._logs

    def assume_offsets_logs(self, count: int) -> None:
        """Set the number of `__consumer_offsets` partitions where there is no metadata log: for tools that only read
        logs.
        """
        if not self.offsets_logs():
            self._logs = [LogId(OFFSETS_TOPIC, partition) for partition in range(count)]

    def log_of(self, group_id: str) -> LogId:
        """The log that holds the group's records."""
        logs = self._logs
        if len(logs) == 1:
            return logs[0]
        if not logs:
            logs = self.offsets_logs()
        return logs[coordinator_partition(group_id, len(logs))]

    # --- events ----------------------------------------------------------------------------------------------

    def loaded_topics(self, entropy: bytes) -> Outcome:
        """The metadata log was replayed: create the internal topics that are missing."""
        return self.topics.loaded(entropy)

    def loaded(self, now: Now) -> Outcome:
        """Every log was replayed: build the live groups, arm their timers, and resume unfinished deletions."""
        out = Outcome()
        self.groups.timers.is_live = True
        self.membership.loaded(now, out)
        self.consumers.loaded(now, out)
        out.timers.append(self.offset_expiry.first_timer(now))
        if self.transactions.by_id:
            self.transaction_expiry.arm(now, out)
        self.producer_ids.used_end = self.transactions.producer_ids_end
        self.transaction_ends.loaded(now, out)
        out.follow_ups.append(self.topics.unfinished_deletions())
        return out

    def handle(self, event: Event, now: Now) -> Outcome:
        """Handle any event except a request."""
        if isinstance(event, TimerFired):
            return self._handle_timer(event.timer, now)
        if isinstance(event, MarkersStep):
            return self.transaction_ends.handle_markers_step(event, now)
        if isinstance(event, CompleteStep):
            return self.transaction_ends.handle_complete_step(event, now)
        if isinstance(event, ProducerIdsReserved):
            return self.producer_ids.handle_reserved(event, now)
        if isinstance(event, FenceOwner):
            return self.transaction_claims.handle_fence(event, now)
        if isinstance(event, RetryRequest):
            return self._retry(event.request, now)
        if isinstance(event, AddPartitionsStep):
            return self.transaction_partitions.handle_add_partitions_step(event, now)
        if isinstance(event, TopicsDeleted):
            return self.offset_deletes.handle_topics_deleted(event, now)
        if isinstance(event, TxnOffsetCommitStep):
            return self.transactional_commits.handle_step(event, now)
        if isinstance(event, DeleteGroupsStep):
            return self.group_admin.handle_delete_groups_step(event)
        if isinstance(event, LeaveGroupStep):
            return self.leaves.handle_leave_group_step(event, now)
        if isinstance(event, Installation):
            return self.client_assignments.handle_installation(event, now)
        if isinstance(event, JobDone):
            return self.regexes.handle_resolved(event, now)
        if isinstance(event, TopicsChanged):
            return self._topics_changed(event)
        # Members outlive their connections, and the engine discards answers to closed connections.
        if isinstance(event, Disconnected):
            self.held_commits.disconnected(event.connection_id)
            return Outcome()
        raise TypeError(f"no handler for {type(event).__name__}")

    def _handle_timer(self, timer: Timer, now: Now) -> Outcome:
        if timer.kind == TIMER_OFFSET_EXPIRY:
            return self.offset_expiry.handle_timer(timer, now)
        if timer.kind == TIMER_TOPIC_OFFSETS:
            return self.offset_deletes.handle_timer(now)
        if timer.kind == TIMER_TRANSACTION:
            return self.transaction_ends.handle_timeout(timer, now)
        if timer.kind == TIMER_TRANSACTIONAL_IDS:
            return self.transaction_expiry.handle_timer(timer, now)
        if timer.kind == TIMER_HELD_COMMIT:
            return self.held_commits.handle_timer(timer)
        if timer.kind in CONSUMER_TIMERS or timer.group_id in self.groups.consumer_groups:
            return self.consumers.handle_timer(timer, now)
        return self.membership.handle_timer(timer, now)

    def _retry(self, request: Request, now: Now) -> Outcome:
        """Handle a request again that waited for producer ids, or was held."""
        if request.api_key == apis.TXN_OFFSET_COMMIT:
            body = cast(TxnOffsetCommitRequest, request.body)
            return self.transactional_commits.handle_txn_offset_commit(request, body, now)
        if request.api_key == apis.END_TXN:
            return self.transaction_ends.handle_end_txn(request, cast(EndTxnRequest, request.body), now)
        return self.transaction_inits.handle_init_producer_id(request, cast(InitProducerIdRequest, request.body), now)

    def still_counts(self, timer: Timer) -> bool:
        """Whether the timer would have an effect if it fired."""
        if timer.kind in (TIMER_OFFSET_EXPIRY, TIMER_TOPIC_OFFSETS, TIMER_TRANSACTIONAL_IDS):
            return True
        if timer.kind == TIMER_TRANSACTION:
            return self.transactions.is_current(timer)
        if timer.kind == TIMER_HELD_COMMIT:
            return self.held_commits.is_current(timer)
        if timer.kind == TIMER_SESSION or timer.kind in CONSUMER_TIMERS:
            return self.groups.timers.is_current(timer)
        return self.membership.still_counts(timer)

    def _check_assigned(
        self,
        group_id: str,
        member_id: str,
        group_instance_id: str | None,
        epoch: int,
        partitions: list[tuple[bytes, int]],
    ) -> int:
        return check_assigned(self.groups, group_id, member_id, group_instance_id, epoch, partitions)

    def _topics_changed(self, event: TopicsChanged) -> Outcome:
        """Groups that subscribe to one of these topics check them in their next heartbeat."""
        changes = self.group_topics.forget(event.names)
        # A deleted topic is not in here, and one that is created again has another id.
        topic_ids: dict[bytes, bool] = {}
        for name in event.names:
            topic = self.topics.get(name)
            if topic is not None:
                topic_ids[topic.topic_id] = True
        for group in self.groups.consumer_groups.values():
            builder = group.builder
            if builder is not None and group.epoch != group.assignment_epoch and builder.uses(topic_ids):
                # The group may not subscribe to the topic now, but it did at the builder's last computation.
                group.forget_builder()
            for name in group.subscribed_among(changes):
                group.request_refresh()
                group.forget_builder()
                if not group.note_topic_change(self.group_topics.describe_change(name, changes[name])):
                    break
        return Outcome()

    def take_cost(self) -> int:
        """The cost of handlers since the last call that does not show in the size of their requests, in bytes."""
        cost = self.regexes.cost + self.leaves.cost + self.client_assignments.cost
        cost += self.transaction_describe.cost + self.transaction_ends.cost
        self.regexes.cost = 0
        self.client_assignments.cost = 0
        self.leaves.cost = 0
        self.transaction_describe.cost = 0
        self.transaction_ends.cost = 0
        return cost

    # --- replay ----------------------------------------------------------------------------------------------

    def replay(
        self,
        log: LogId,
        offset: int,
        key: Message | None,
        value: Message | None,
        time_ms: int = NO_TIME,
        made: MadeGroup | None = None,
        producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Apply one record with its timestamp in the log. With `replay_marker`, the only place where hard state
        changes.

        `made` is that of the record's outcome, which its handler has just returned. `producer_id` is that of a
        transactional batch. Unknown record types, and those of unsupported group types, change nothing.
        """
        if isinstance(key, OffsetCommitKey):
            commit = cast(OffsetCommitValue | None, value)
            if producer_id >= 0:
                self.offsets.replay_transactional(log.partition, producer_id, key, commit, offset)
            else:
                self.offsets.replay_offset_commit(key, commit, offset)
        elif isinstance(key, GroupMetadataKey):
            ended = self.consumer_replay.ended
            self.groups.replay_group_metadata(key, cast(GroupMetadataValue | None, value), offset, made, ended)
        elif key is None:
            if value is not None:
                self.topics.replay_metadata(value, offset)
        elif isinstance(key, TransactionLogKey):
            self.transactions.replay(log, key, cast(TransactionLogValue | None, value), offset)
        elif isinstance(key, TransactionGroupAssignmentKey):
            assignment = cast(TransactionGroupAssignmentValue | None, value)
            self.transactions.assignments.replay(key, assignment)
        elif isinstance(key, LegacyOffsetCommitKey):
            legacy = cast(LegacyOffsetCommitValue | None, value)
            self.offsets.replay_legacy_offset_commit(key, legacy, offset, log.partition, producer_id)
        else:
            self.consumer_replay.replay(offset, key, value, time_ms, made)

    def replay_marker(self, log: LogId, offset: int, producer_id: int, producer_epoch: int, is_commit: bool) -> None:
        """Apply a transaction marker at `offset` of a log. Only `__consumer_offsets` has state of transactions."""
        if log.topic == OFFSETS_TOPIC:
            self.offsets.replay_marker(log.partition, producer_id, is_commit, offset)

    def settle(self, outcome: Outcome, now: Now) -> None:
        """All records of the outcome were replayed: add the timers that follow from them to the outcome."""
        self.upkeep.settle(now, outcome)

    def refused(self, outcome: Outcome, now: Now) -> Outcome:
        """None of the outcome's records was stored, because they exceed a batch: build the soft state of their groups
        again.

        Returns the timers and answers that follow from that; there are no records.
        """
        left = Outcome()
        self.upkeep.refused(outcome, now, left)
        return left

    def digest(self) -> str:
        """A fingerprint of the hard state. The same records give the same digest on every machine."""
        lines = self.topics.digest_lines() + self.groups.hard_state() + self.offsets.digest_lines()
        lines += consumer_hard_state(self.groups)
        lines += self.transactions.digest_lines()
        # Here, so that a start does not load OpenSSL for it.
        import hashlib

        return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()
