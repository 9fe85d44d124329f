"""What must be true of every record of the coordinator, seen in the light of those before it.

Records go through the core's own replay, so that what it cannot take is found. The rules of groups are the core's
(`kcoord.history.invariants`); those of topics, and of where a group belongs, stand here. Compaction may take away any
record that a later one replaces; the rules hold for what it leaves as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from kcoord.cli.log.group_checks import GroupChecks
from kcoord.core.config import CoreConfig
from kcoord.core.coordinator import Core
from kcoord.core.hashing import coordinator_partition
from kcoord.core.outcome import METADATA_TOPIC, OFFSETS_TOPIC, LogId
from kcoord.history.invariants import GroupInvariants, ProducerEpochs
from kcoord.log.typed_records import TypedRecord
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.producer_ids_record import ProducerIdsRecord
from kcoord.protocol.records.remove_topic_record import RemoveTopicRecord
from kcoord.protocol.records.topic_record import TopicRecord

Report = Callable[[str, str], None]


@final
class Invariants:
    """`offsets_partitions` is how many partitions `__consumer_offsets` has; `is_whole` whether the metadata log
    is here from its beginning."""

    def __init__(self, offsets_partitions: int, is_whole: bool) -> None:
        self.core = Core(CoreConfig())
        self.offsets_partitions = offsets_partitions
        self.is_whole = is_whole
        self.groups = GroupInvariants(self.core)
        self.producers = ProducerEpochs()

    def check(self, log_id: LogId, typed: TypedRecord, report: Report, groups: GroupChecks | None) -> None:
        """Look at one record and replay it; `report` takes the name of the rule and what is wrong. `groups` are the
        rules for records of groups in this log, which report on their own."""
        if log_id.topic == METADATA_TOPIC:
            self._check_metadata(typed, report)
        elif log_id.topic == OFFSETS_TOPIC:
            self._check_place(log_id, typed, report)
        if groups is not None:
            groups.record(typed.record.offset, typed.key, typed.value)
            return
        try:
            self.core.replay(log_id, typed.record.offset, typed.key, typed.value)
        except Exception as error:
            # Whatever it is: a server that starts on this log would meet it.
            report("replay", f"the record cannot be replayed: {type(error).__name__}: {error}")

    def _check_place(self, log_id: LogId, typed: TypedRecord, report: Report) -> None:
        if not typed.group or self.offsets_partitions <= 0:
            return
        home = coordinator_partition(typed.group, self.offsets_partitions)
        if home != log_id.partition:
            report("placement", f"group {typed.group!r} belongs into partition {home} of {OFFSETS_TOPIC}")

    def _check_metadata(self, typed: TypedRecord, report: Report) -> None:
        value = typed.value
        topics = self.core.topics
        if isinstance(value, TopicRecord):
            if topics.get(value.name) is not None:
                report("metadata", f"topic {value.name!r} exists already")
            elif topics.by_id(value.topic_id) is not None:
                report("metadata", f"the id of topic {value.name!r} is another topic's")
        elif isinstance(value, PartitionRecord):
            if self.is_whole and topics.by_id(value.topic_id) is None:
                report("metadata", f"partition {value.partition_id} of a topic that does not exist")
        elif isinstance(value, RemoveTopicRecord):
            if self.is_whole and topics.by_id(value.topic_id) is None:
                report("metadata", "a topic is removed that does not exist")
        elif isinstance(value, ProducerIdsRecord):
            if value.next_producer_id < topics.next_producer_id:
                text = f"producer ids go back from {topics.next_producer_id} to {value.next_producer_id}"
                report("producer ids", text)
