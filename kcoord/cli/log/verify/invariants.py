"""The invariants that every record of the coordinator must satisfy, given the records before it.

Records pass through the core's own replay, so records that it cannot apply are found. The rules for groups are in
`kcoord.history.invariants`; those for topics, and for the partition of a group, are here. Compaction may remove any
record that a later one replaces; the rules also hold for the records that remain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from kcoord.cli.log.verify.group_checks import GroupChecks
from kcoord.core.config import CoreConfig
from kcoord.core.coordinator import Core
from kcoord.core.hashing import coordinator_partition
from kcoord.core.outcome import METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTION_TOPIC, LogId
from kcoord.core.transactions.state import COMPLETE_ABORT, COMPLETE_COMMIT, EMPTY, PREPARE_COMMIT, state_name
from kcoord.history.invariants import GroupInvariants, ProducerEpochs
from kcoord.log.typed_records import TypedRecord
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.producer_ids_record import ProducerIdsRecord
from kcoord.protocol.records.remove_topic_record import RemoveTopicRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue

Report = Callable[[str, str], None]


@final
class Invariants:
    """`offsets_partitions` is the number of partitions of `__consumer_offsets`; `is_whole` means that the metadata log
    is complete from its beginning."""

    def __init__(self, offsets_partitions: int, is_whole: bool) -> None:
        self.core = Core(CoreConfig())
        self.offsets_partitions = offsets_partitions
        self.is_whole = is_whole
        self.groups = GroupInvariants(self.core)
        self.producers = ProducerEpochs()

    def check(self, log_id: LogId, typed: TypedRecord, report: Report, groups: GroupChecks | None) -> None:
        """Check one record and replay it; `report` receives the name of the rule and the message. `groups` are the
        rules for records of groups in this log, which report separately."""
        if log_id.topic == METADATA_TOPIC:
            self._check_metadata(typed, report)
        elif log_id.topic == OFFSETS_TOPIC:
            self._check_place(log_id, typed, report)
        elif log_id.topic == TRANSACTION_TOPIC:
            self._check_transaction(typed, report)
        if groups is not None:
            groups.record(typed.record.offset, typed.key, typed.value)
            return
        try:
            self.core.replay(log_id, typed.record.offset, typed.key, typed.value)
        except Exception as error:
            # Catch every exception: a server that starts with this log would fail with it.
            report("replay", f"the record cannot be replayed: {type(error).__name__}: {error}")

    def _check_place(self, log_id: LogId, typed: TypedRecord, report: Report) -> None:
        if not typed.group or self.offsets_partitions <= 0:
            return
        home = coordinator_partition(typed.group, self.offsets_partitions)
        if home != log_id.partition:
            report("placement", f"group {typed.group!r} belongs to partition {home} of {OFFSETS_TOPIC}")

    def _check_transaction(self, typed: TypedRecord, report: Report) -> None:
        """Compaction does not hide a violation: it removes a record only together with all older ones of its key."""
        key, value = typed.key, typed.value
        if not isinstance(key, TransactionLogKey):
            return
        before = self.core.transactions.by_id.get(key.transactional_id)
        if before is None or not before.is_ending:
            return
        status = EMPTY if not isinstance(value, TransactionLogValue) else value.transaction_status
        if status not in (before.status, COMPLETE_COMMIT if before.status == PREPARE_COMMIT else COMPLETE_ABORT):
            name = f"transactional id {key.transactional_id!r}"
            after = "none" if value is None else state_name(status)
            report("transaction", f"the state of {name} changes from {state_name(before.status)} to {after}")

    def _check_metadata(self, typed: TypedRecord, report: Report) -> None:
        value = typed.value
        topics = self.core.topics
        if isinstance(value, TopicRecord):
            if topics.get(value.name) is not None:
                report("metadata", f"topic {value.name!r} exists already")
            elif topics.by_id(value.topic_id) is not None:
                report("metadata", f"the id of topic {value.name!r} belongs to another topic")
        elif isinstance(value, PartitionRecord):
            if self.is_whole and topics.by_id(value.topic_id) is None:
                report("metadata", f"partition {value.partition_id} of a topic that does not exist")
        elif isinstance(value, RemoveTopicRecord):
            if self.is_whole and topics.by_id(value.topic_id) is None:
                report("metadata", "the removed topic does not exist")
        elif isinstance(value, ProducerIdsRecord):
            if value.next_producer_id < topics.next_producer_id:
                text = f"the next producer id decreases from {topics.next_producer_id} to {value.next_producer_id}"
                report("producer ids", text)
