"""The table `members`: what members of groups of every kind say of themselves.

A classic group has all its members in one record, which becomes a row for each, and none while the group is empty; the
record's tombstone is a row without a member. What a classic member subscribes to is told where the group's protocol
is that of consumers and its bytes are understood; to a coordinator they are the members' own business, so bytes that
are not are no damage. Which topics a streams member reads is in its group's topology, not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, final

from kcoord.core.groups.embedded_protocol import decode_subscription
from kcoord.protocol.records import (
    consumer_group_member_metadata,
    group_metadata,
    share_group_member_metadata,
    streams_group_member_metadata,
)
from kcoord.protocol.records.consumer_protocol_subscription import ConsumerProtocolSubscription
from kcoord.spark.options import MEMBERS
from kcoord.spark.tables.rows import (
    CLASSIC,
    CONSUMER,
    SHARE,
    STREAMS,
    GroupTableDecoder,
    Row,
    group_columns,
    known,
)
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import Record

KINDS: Final = {
    group_metadata.RECORD_TYPE: CLASSIC,
    consumer_group_member_metadata.RECORD_TYPE: CONSUMER,
    share_group_member_metadata.RECORD_TYPE: SHARE,
    streams_group_member_metadata.RECORD_TYPE: STREAMS,
}
# From `instance_id` to `assignor`.
NOTHING: Final[Row] = (None,) * 10


@final
class MembersDecoder(GroupTableDecoder):
    TABLE: ClassVar[str] = MEMBERS
    KINDS: ClassVar[Mapping[int, str]] = KINDS

    def _add(self, about: str, place: Row, key: Message, value: Message | None, record: Record) -> None:
        first = place + group_columns(about, key)
        if isinstance(value, group_metadata.GroupMetadataValue):
            is_consumers = value.protocol_type == CONSUMER and self.makes("rack_id", "subscribed_topics")
            for member in value.members:
                said = _subscription(member.subscription) if is_consumers else None
                self._put((*first, member.member_id, *_classic_columns(value, member, said), False))
            return
        member_id = getattr(key, "member_id", None)
        self._put((*first, member_id, *_value_columns(value), value is None))


def _classic_columns(
    group: group_metadata.GroupMetadataValue,
    member: group_metadata.MemberMetadata,
    said: ConsumerProtocolSubscription | None,
) -> Row:
    return (
        member.group_instance_id,
        None if said is None else said.rack_id,
        member.client_id,
        member.client_host,
        group.generation,
        known(member.rebalance_timeout),
        member.session_timeout,
        None if said is None else said.topics,
        None,
        group.protocol or None,
    )


def _subscription(data: bytes) -> ConsumerProtocolSubscription | None:
    try:
        return decode_subscription(data)
    except DecodeError:
        return None


def _value_columns(value: Message | None) -> Row:
    if isinstance(value, consumer_group_member_metadata.ConsumerGroupMemberMetadataValue):
        classic = value.classic_member_metadata
        return (
            value.instance_id or None,
            value.rack_id or None,
            value.client_id,
            value.client_host,
            None,
            known(value.rebalance_timeout_ms),
            None if classic is None else classic.session_timeout_ms,
            value.subscribed_topic_names,
            value.subscribed_topic_regex or None,
            value.server_assignor or None,
        )
    if isinstance(value, share_group_member_metadata.ShareGroupMemberMetadataValue):
        about = (value.rack_id or None, value.client_id, value.client_host)
        return (None, *about, None, None, None, value.subscribed_topic_names, None, None)
    if isinstance(value, streams_group_member_metadata.StreamsGroupMemberMetadataValue):
        about = (value.rack_id or None, value.client_id, value.client_host)
        return (
            value.instance_id or None,
            *about,
            None,
            known(value.rebalance_timeout_ms),
            None,
            None,
            None,
            None,
        )
    return NOTHING
