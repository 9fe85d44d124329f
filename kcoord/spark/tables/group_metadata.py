"""The table `group_metadata`: the epochs of groups of every kind, and what else their own records say.

A classic group has one record, with its generation. The newer kinds have two: one with the group's epoch, and one
with the epoch of the target assignment; each is a row, and has its own columns only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, final

from kcoord.core.groups.cause_header import decode_cause, encode_cause
from kcoord.protocol.records import (
    consumer_group_metadata,
    consumer_group_target_assignment_metadata,
    group_metadata,
    share_group_metadata,
    share_group_target_assignment_metadata,
    streams_group_metadata,
    streams_group_target_assignment_metadata,
)
from kcoord.spark.options import GROUP_METADATA
from kcoord.spark.tables.rows import (
    CLASSIC,
    CONSUMER,
    SHARE,
    STREAMS,
    GroupTableDecoder,
    Row,
    group_columns,
    micros,
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
class GroupMetadataDecoder(GroupTableDecoder):
    TABLE: ClassVar[str] = GROUP_METADATA
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
    """The cause as JSON text: written anew, so that it is what its column promises whatever the header holds."""
    cause = decode_cause(headers)
    return None if cause is None else encode_cause(cause).decode("utf-8")
