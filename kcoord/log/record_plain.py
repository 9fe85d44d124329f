"""Converts records to plain data for JSON output."""

from __future__ import annotations

import base64
from functools import cache
from typing import Any, Final

from kcoord.protocol.records.consumer_protocol_assignment import decode_consumer_protocol_assignment
from kcoord.protocol.records.consumer_protocol_subscription import decode_consumer_protocol_subscription
from kcoord.protocol.records.group_metadata import GroupMetadataValue, MemberMetadata
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError, Reader

CONSUMER: Final = "consumer"
# The newest known version of the consumers' embedded protocol; later versions begin with the same fields.
CONSUMER_PROTOCOL_MAX: Final = 3
_UUID_LISTS: Final = frozenset({"directories"})


def uuid_text(data: bytes) -> str:
    """A 16-byte id as Kafka prints it."""
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def bytes_plain(data: bytes | None) -> Any:
    """Text unchanged; other bytes as `{"base64": …}`."""
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def plain(value: Any, name: str = "") -> Any:
    """A message, or the value of its field `name`, as plain data for JSON."""
    if isinstance(value, GroupMetadataValue):
        document = {field: plain(getattr(value, field), field) for field in value.FIELDS if field != "members"}
        document["members"] = [member_plain(value.protocol_type, member) for member in value.members]
        return document
    if isinstance(value, Message):
        return {field: plain(getattr(value, field), field) for field in value.FIELDS}
    if isinstance(value, list):
        return [plain(item, name) for item in value]
    if isinstance(value, bytes):
        if len(value) == 16 and (name.endswith("_id") or name in _UUID_LISTS):
            return uuid_text(value)
        return {"base64": base64.b64encode(value).decode("ascii")}
    return value


def with_kafka_names(document: Any) -> Any:
    """The result of `plain` with field names as in Kafka's message definitions and tools: `group_id` is `groupId`."""
    if isinstance(document, dict):
        return {kafka_name(name): with_kafka_names(value) for name, value in document.items()}
    if isinstance(document, list):
        return [with_kafka_names(item) for item in document]
    return document


@cache
def kafka_name(field: str) -> str:
    first, *others = field.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in others)


def member_plain(protocol_type: str, member: MemberMetadata) -> dict[str, Any]:
    """A classic member, with the subscription and assignment of a consumer decoded."""
    document = {field: plain(getattr(member, field), field) for field in member.FIELDS}
    if protocol_type == CONSUMER:
        document["subscription"] = consumer_plain(member.subscription, True)
        document["assignment"] = consumer_plain(member.assignment, False)
    return document


def consumer_plain(data: bytes, is_subscription: bool) -> Any:
    """A consumer's subscription or assignment; the bytes if they cannot be decoded, None if there are none."""
    if not data:
        return None
    try:
        r = Reader(data)
        version = r.int16()
        if version < 0:
            raise DecodeError(f"version {version}")
        version = min(version, CONSUMER_PROTOCOL_MAX)
        if is_subscription:
            return plain(decode_consumer_protocol_subscription(r, version))
        return plain(decode_consumer_protocol_assignment(r, version))
    except DecodeError:
        return plain(data)
