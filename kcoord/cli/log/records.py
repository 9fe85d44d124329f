"""Records as typed things: with all that is known of them for JSON, and as one line of text."""

from __future__ import annotations

import base64
from typing import Any

from kcoord.core.groups.cause import NO_TIME, Cause
from kcoord.core.groups.cause_header import decode_cause
from kcoord.log.record_plain import CONSUMER, bytes_plain, consumer_plain, plain
from kcoord.log.serde import UnknownRecord
from kcoord.log.typed_records import TypedRecord
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue


def typed_plain(typed: TypedRecord) -> dict[str, Any]:
    """Type, key and value for JSON."""
    record = typed.record
    document: dict[str, Any] = {"type": typed.kind, "tombstone": typed.is_tombstone}
    if typed.key is None and typed.value is None:
        document["key"] = bytes_plain(record.key)
        document["value"] = bytes_plain(record.value)
    elif isinstance(typed.key, UnknownRecord) or isinstance(typed.value, UnknownRecord):
        document["key"] = None if record.key is None else plain(record.key)
        document["value"] = None if record.value is None else plain(record.value)
    else:
        document["key"] = plain(typed.key)
        document["value"] = plain(typed.value)
    if typed.error:
        document["error"] = typed.error
    cause = decode_cause(record.headers)
    if cause is not None:
        document["cause"] = {"kind": cause.kind, "member": cause.member_id or None, "detail": cause.detail or None}
        document["cause"]["since_ms"] = None if cause.since_ms == NO_TIME else cause.since_ms
    if record.headers:
        document["headers"] = [{"key": name, "value": bytes_plain(value)} for name, value in record.headers]
    return document


# --- text


def summary(typed: TypedRecord) -> str:
    """The record in a line for people."""
    cause = decode_cause(typed.record.headers)
    return _content(typed) if cause is None else f"{_content(typed)}; cause {cause_text(cause)}"


def cause_text(cause: Cause) -> str:
    text = cause.kind
    if cause.member_id:
        text += f" {cause.member_id}"
    return f"{text}: {cause.detail}" if cause.detail else text


def _content(typed: TypedRecord) -> str:
    key, value = typed.key, typed.value
    if isinstance(key, OffsetCommitKey):
        where = f"{typed.kind} {key.group} {key.topic}-{key.partition}"
        if not isinstance(value, OffsetCommitValue):
            return f"{where} removed"
        text = f"{where} = {value.offset}"
        if value.leader_epoch >= 0:
            text += f", leader epoch {value.leader_epoch}"
        return text + (f', "{value.metadata}"' if value.metadata else "")
    if isinstance(key, GroupMetadataKey):
        if not isinstance(value, GroupMetadataValue):
            return f"{typed.kind} {key.group} removed"
        return f"{typed.kind} {key.group} {group_text(value)}"
    document = typed_plain(typed)
    parts = [typed.kind]
    if typed.error:
        parts.append(f"({typed.error})")
    for name in ("key", "value"):
        content = document[name]
        if isinstance(content, dict) and "base64" not in content:
            parts += [f"{field}={_short(item)}" for field, item in content.items() if not _is_nothing(item)]
        elif content is not None:
            parts.append(f"{name} {_short(content)}")
    if typed.is_tombstone:
        parts.append("removed")
    return " ".join(parts)


def group_text(value: GroupMetadataValue) -> str:
    parts = [f"generation {value.generation}"]
    if value.protocol_type:
        parts.append(f"type {value.protocol_type}")
    if value.protocol:
        parts.append(f"protocol {value.protocol}")
    if not value.members:
        parts.append("no members")
    for member in value.members:
        text = f"member {member.member_id}"
        if member.group_instance_id is not None:
            text += f" ({member.group_instance_id})"
        if member.member_id == value.leader:
            text += " leads"
        if value.protocol_type == CONSUMER:
            text += f", has {assignment_text(member.assignment)}"
        parts.append(text)
    return "; ".join(parts)


def assignment_text(data: bytes) -> str:
    """`orders-0 orders-1`, or how many bytes there are where they are not understood."""
    assigned = consumer_plain(data, False)
    if assigned is None:
        return "nothing"
    if "assigned_partitions" not in assigned:
        return f"{len(data)} bytes"
    names = [f"{t['topic']}-{p}" for t in assigned["assigned_partitions"] for p in t["partitions"]]
    return " ".join(names) or "nothing"


def _short(item: Any) -> str:
    if isinstance(item, dict) and set(item) == {"base64"}:
        return f"{len(base64.b64decode(item['base64']))} bytes"
    text = str(item)
    return text if len(text) <= 200 else text[:200] + "…"


def _is_nothing(item: Any) -> bool:
    return item is None or item == [] or item == "" or item == -1
