"""The table `group_metadata`: the epochs of groups of every kind, and the other fields of the groups' own records.

A classic group has one record, with its generation. The newer kinds have two: one with the group's epoch, and one
with the epoch of the target assignment. Each is a row that fills only its own columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, final

from kcoord.core.groups.cause_header import decode_cause, encode_cause
from kcoord.core.outcome import OFFSETS_TOPIC
from kcoord.protocol.records import (
    consumer_group_metadata,
    consumer_group_target_assignment_metadata,
    group_metadata,
    share_group_metadata,
    share_group_target_assignment_metadata,
    streams_group_metadata,
    streams_group_target_assignment_metadata,
)
from kcoord.spark.tables.rows import (
    CLASSIC,
    CONSUMER,
    SHARE,
    STREAMS,
    GroupTable,
    Row,
    group_columns,
    micros,
)
from kcoord.spark.tables.table import (
    BIGINT,
    GROUP_ID,
    INT,
    IS_TOMBSTONE,
    KIND,
    PLACE,
    RECORD_NAME,
    STRING,
    TIMESTAMP,
    Column,
)
from kcoord.wire.message import Message
from kcoord.wire.record_batch import Headers, Record

KINDS: Final = {
    group_metadata.RECORD_TYPE: CLASSIC,
    consumer_group_metadata.RECORD_TYPE: CONSUMER,
    consumer_group_target_assignment_metadata.RECORD_TYPE: CONSUMER,
    share_group_metadata.RECORD_TYPE: SHARE,
    share_group_target_assignment_metadata.RECORD_TYPE: SHARE,
    streams_group_metadata.RECORD_TYPE: STREAMS,
    streams_group_target_assignment_metadata.RECORD_TYPE: STREAMS,
}
GROUP_EPOCH_VALUES: Final = (
    consumer_group_metadata.ConsumerGroupMetadataValue,
    share_group_metadata.ShareGroupMetadataValue,
    streams_group_metadata.StreamsGroupMetadataValue,
)
ASSIGNMENT_EPOCH_VALUES: Final = (
    consumer_group_target_assignment_metadata.ConsumerGroupTargetAssignmentMetadataValue,
    share_group_target_assignment_metadata.ShareGroupTargetAssignmentMetadataValue,
    streams_group_target_assignment_metadata.StreamsGroupTargetAssignmentMetadataValue,
)


@final
class GroupMetadataTable(GroupTable):
    NAME: ClassVar[str] = "group_metadata"
    ROW: ClassVar[str] = (
        "an epoch of a group: a generation of a classic group, a group epoch or an assignment epoch of the newer kinds"
    )
    TOPICS: ClassVar[tuple[str, ...]] = (OFFSETS_TOPIC,)
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        *PLACE,
        GROUP_ID,
        KIND,
        RECORD_NAME,
        Column("epoch", INT, "the generation or group epoch"),
        Column("assignment_epoch", INT, "the epoch of the target assignment"),
        Column("protocol_type", STRING, "of a classic group: `consumer` for consumers"),
        Column("protocol", STRING, "the assignor that a classic group chose"),
        Column("leader", STRING, "the member id of a classic group's leader"),
        Column("state_timestamp", TIMESTAMP, "when a classic group's state last changed"),
        Column("member_count", INT, "how many members a classic group has"),
        Column("metadata_hash", BIGINT, "the hash of the metadata of the subscribed topics"),
        Column(
            "cause", STRING, "why the epoch began, as JSON ([group-events.md](group-events.md)); only kcoord stores it"
        ),
        IS_TOMBSTONE,
    )
    KINDS: ClassVar[Mapping[int, str]] = KINDS

    def _add(self, about: str, place: Row, key: Message, value: Message | None, record: Record) -> None:
        self._put(
            place
            + group_columns(about, key)
            + _value_columns(value)
            + (_cause(record.headers) if self.makes("cause") else None, value is None)
        )


def _value_columns(value: Message | None) -> Row:
    """From `epoch` to `metadata_hash`."""
    if isinstance(value, group_metadata.GroupMetadataValue):
        changed = micros(value.current_state_timestamp)
        about = (value.protocol_type, value.protocol, value.leader, changed, len(value.members))
        return (value.generation, None, *about, None)
    nothing = (None, None, None, None, None)
    if isinstance(value, GROUP_EPOCH_VALUES):
        return (value.epoch, None, *nothing, value.metadata_hash)
    if isinstance(value, ASSIGNMENT_EPOCH_VALUES):
        return (None, value.assignment_epoch, *nothing, None)
    return (None, None, *nothing, None)


def _cause(headers: Headers) -> str | None:
    """The cause as JSON text, encoded again so that the column is valid whatever the header holds."""
    cause = decode_cause(headers)
    return None if cause is None else encode_cause(cause).decode("utf-8")
