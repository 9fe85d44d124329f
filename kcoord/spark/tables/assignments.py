"""The table `assignments`: which partitions members are to have (`target`) and have (`current`), a row for each topic.

`partitions` is empty in the one row of a member that has nothing, and null if the record has no partitions of topics:
for the tasks of streams groups, and for classic members whose assignment is not that of a consumer or cannot be decoded
(to a coordinator these bytes are opaque, so that is not damage). Such members have one row, too. A classic group's
record holds the current assignment of all its members; its tombstone is a row without a member.

Records of the newer kinds have only the ids of topics. The names come from the metadata log, if it was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, final

from kcoord.core.groups.embedded_protocol import decode_assignment
from kcoord.core.outcome import OFFSETS_TOPIC
from kcoord.log.record_plain import uuid_text
from kcoord.protocol.records import (
    consumer_group_current_member_assignment,
    consumer_group_target_assignment_member,
    group_metadata,
    share_group_current_member_assignment,
    share_group_target_assignment_member,
    streams_group_current_member_assignment,
    streams_group_target_assignment_member,
)
from kcoord.spark.tables.rows import (
    CLASSIC,
    CONSUMER,
    SHARE,
    STREAMS,
    GroupTable,
    Row,
    group_columns,
    known,
)
from kcoord.spark.tables.table import GROUP_ID, INT, INTS, IS_TOMBSTONE, KIND, PLACE, RECORD_NAME, STRING, Column
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import Record

TARGET: Final = "target"
CURRENT: Final = "current"
# By record type: kind of group and role.
KINDS: Final = {
    group_metadata.RECORD_TYPE: (CLASSIC, CURRENT),
    consumer_group_target_assignment_member.RECORD_TYPE: (CONSUMER, TARGET),
    consumer_group_current_member_assignment.RECORD_TYPE: (CONSUMER, CURRENT),
    share_group_target_assignment_member.RECORD_TYPE: (SHARE, TARGET),
    share_group_current_member_assignment.RECORD_TYPE: (SHARE, CURRENT),
    streams_group_target_assignment_member.RECORD_TYPE: (STREAMS, TARGET),
    streams_group_current_member_assignment.RECORD_TYPE: (STREAMS, CURRENT),
}
STATES: Final = {0: "stable", 1: "unrevoked_partitions", 2: "unreleased_partitions"}
STREAMS_STATES: Final = {1: "stable", 2: "unrevoked_tasks", 3: "unreleased_tasks"}
# `topic_id`, `topic`, `partitions` and `pending_partitions` if the record has no partitions.
UNTOLD: Final[Row] = (None, None, None, None)

Partitions = dict[bytes, list[int]]


@final
class AssignmentsTable(GroupTable):
    NAME: ClassVar[str] = "assignments"
    ROW: ClassVar[str] = "what one member has, or is to have, of one topic"
    TOPICS: ClassVar[tuple[str, ...]] = (OFFSETS_TOPIC,)
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        *PLACE,
        GROUP_ID,
        KIND,
        RECORD_NAME,
        Column("member_id", STRING, "the member's id"),
        Column("role", STRING, "`current`: the member has it; `target`: it is to have it", "roles"),
        Column("epoch", INT, "the member epoch; the generation of a classic group"),
        Column("previous_epoch", INT, "the member epoch before"),
        Column("state", STRING, "where the member is on its way to the target assignment"),
        Column("topic_id", STRING, "the topic's id; classic groups have none"),
        Column("topic", STRING, "the topic's name, if the metadata log has it"),
        Column(
            "partitions", INTS, "the partitions; empty if the member has none, null if the record does not list them"
        ),
        Column("pending_partitions", INTS, "partitions that the member is to give up"),
        IS_TOMBSTONE,
    )
    NEEDS_TOPIC_NAMES: ClassVar[bool] = True
    KINDS: ClassVar[Mapping[int, tuple[str, str]]] = KINDS

    def _is_wanted(self, about: tuple[str, str]) -> bool:
        kind, role = about
        return super()._is_wanted(kind) and (self.wanted.roles is None or role in self.wanted.roles)

    def _add(self, about: tuple[str, str], place: Row, key: Message, value: Message | None, record: Record) -> None:
        kind, role = about
        first = place + group_columns(kind, key)
        if isinstance(value, group_metadata.GroupMetadataValue):
            for member in value.members:
                epochs = (value.generation, None, None)
                for topic in _classic_topics(value.protocol_type, member.assignment):
                    self._put((*first, member.member_id, role, *epochs, *topic, False))
            return
        epochs = _epochs(value)
        for topic in self._topics(value):
            self._put((*first, getattr(key, "member_id", None), role, *epochs, *topic, value is None))

    def _topics(self, value: Message | None) -> list[Row]:
        if isinstance(
            value,
            (
                consumer_group_target_assignment_member.ConsumerGroupTargetAssignmentMemberValue,
                share_group_target_assignment_member.ShareGroupTargetAssignmentMemberValue,
            ),
        ):
            return self._topic_columns(_by_topic(value.topic_partitions), None)
        if isinstance(value, consumer_group_current_member_assignment.ConsumerGroupCurrentMemberAssignmentValue):
            return self._topic_columns(
                _by_topic(value.assigned_partitions), _by_topic(value.partitions_pending_revocation)
            )
        if isinstance(value, share_group_current_member_assignment.ShareGroupCurrentMemberAssignmentValue):
            return self._topic_columns(_by_topic(value.assigned_partitions), None)
        return [UNTOLD]

    def _topic_columns(self, assigned: Partitions, pending: Partitions | None) -> list[Row]:
        """Columns for each topic. `pending` is to be revoked; None if the record has no such field."""
        topic_ids = list(assigned)
        if pending is not None:
            topic_ids += [topic_id for topic_id in pending if topic_id not in assigned]
        rows: list[Row] = []
        for topic_id in topic_ids:
            given_up = None if pending is None else pending.get(topic_id, [])
            name = self.topic_names.get(topic_id)
            rows.append((uuid_text(topic_id), name, assigned.get(topic_id, []), given_up))
        return rows or [(None, None, [], None if pending is None else [])]


def _by_topic(parts: list[Any]) -> Partitions:
    """Partitions by topic id. `parts` are the structures of any of the record types."""
    found: Partitions = {}
    for part in parts:
        found.setdefault(part.topic_id, []).extend(part.partitions)
    return found


def _classic_topics(protocol_type: str, data: bytes) -> list[Row]:
    if protocol_type != CONSUMER:
        return [UNTOLD]
    # A member without partitions may also get no bytes at all.
    nothing: Row = (None, None, [], None)
    if not data:
        return [nothing]
    try:
        assignment = decode_assignment(data)
    except DecodeError:
        return [UNTOLD]
    found: dict[str, list[int]] = {}
    for part in assignment.assigned_partitions:
        found.setdefault(part.topic, []).extend(part.partitions)
    return [(None, topic, partitions, None) for topic, partitions in found.items()] or [nothing]


def _epochs(value: Message | None) -> Row:
    """`epoch`, `previous_epoch` and `state`."""
    if isinstance(
        value,
        (
            consumer_group_current_member_assignment.ConsumerGroupCurrentMemberAssignmentValue,
            share_group_current_member_assignment.ShareGroupCurrentMemberAssignmentValue,
        ),
    ):
        return (
            value.member_epoch,
            known(value.previous_member_epoch),
            STATES.get(value.state, f"state {value.state}"),
        )
    if isinstance(value, streams_group_current_member_assignment.StreamsGroupCurrentMemberAssignmentValue):
        state = STREAMS_STATES.get(value.state, f"state {value.state}")
        return value.member_epoch, known(value.previous_member_epoch), state
    return None, None, None
