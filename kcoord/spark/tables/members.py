"""The table `members`: the members of groups of every kind, as their records describe them.

A classic group has all its members in one record, which becomes a row for each, and none while the group is empty; the
record's tombstone is a row without a member. The subscription of a classic member is decoded if the group's protocol
type is `consumer`. To a coordinator these bytes are opaque, so bytes that cannot be decoded are null, not damage. The
topics that a streams member reads are in its group's topology, not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, final

from kcoord.core.groups.embedded_protocol import decode_subscription
from kcoord.core.outcome import OFFSETS_TOPIC
from kcoord.protocol.records import (
    consumer_group_member_metadata,
    group_metadata,
    share_group_member_metadata,
    streams_group_member_metadata,
)
from kcoord.protocol.records.consumer_protocol_subscription import ConsumerProtocolSubscription
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
from kcoord.spark.tables.table import GROUP_ID, INT, IS_TOMBSTONE, KIND, PLACE, RECORD_NAME, STRING, STRINGS, Column
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
class MembersTable(GroupTable):
    NAME: ClassVar[str] = "members"
    ROW: ClassVar[str] = "a member as a record describes it; the members of a classic group one by one"
    TOPICS: ClassVar[tuple[str, ...]] = (OFFSETS_TOPIC,)
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        *PLACE,
        GROUP_ID,
        KIND,
        RECORD_NAME,
        Column("member_id", STRING, "the member's id"),
        Column("instance_id", STRING, "of a static member"),
        Column("rack_id", STRING, "the client's rack"),
        Column("client_id", STRING, "the client's id"),
        Column("client_host", STRING, "the address that the client connected from"),
        Column("epoch", INT, "the generation of a classic group"),
        Column("rebalance_timeout_ms", INT, "the member's rebalance timeout"),
        Column("session_timeout_ms", INT, "the session timeout of a member with the classic protocol"),
        Column("subscribed_topics", STRINGS, "the topics that it subscribes to by name"),
        Column("subscribed_regex", STRING, "the regular expression that it subscribes to"),
        Column("assignor", STRING, "the assignor that it asks for; the protocol of a classic group"),
        IS_TOMBSTONE,
    )
    KINDS: ClassVar[Mapping[int, str]] = KINDS

    def _add(self, about: str, place: Row, key: Message, value: Message | None, record: Record) -> None:
        first = place + group_columns(about, key)
        if isinstance(value, group_metadata.GroupMetadataValue):
            is_consumers = value.protocol_type == CONSUMER and self.makes("rack_id", "subscribed_topics")
            for member in value.members:
                subscription = _subscription(member.subscription) if is_consumers else None
                self._put((*first, member.member_id, *_classic_columns(value, member, subscription), False))
            return
        member_id = getattr(key, "member_id", None)
        self._put((*first, member_id, *_value_columns(value), value is None))


def _classic_columns(
    group: group_metadata.GroupMetadataValue,
    member: group_metadata.MemberMetadata,
    subscription: ConsumerProtocolSubscription | None,
) -> Row:
    return (
        member.group_instance_id,
        None if subscription is None else subscription.rack_id,
        member.client_id,
        member.client_host,
        group.generation,
        known(member.rebalance_timeout),
        member.session_timeout,
        None if subscription is None else subscription.topics,
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
