"""Formats decoded records: with all fields for JSON, and as one line of text."""

from __future__ import annotations

import base64
from typing import Any, Final

from kcoord.cli.log.common import format_time
from kcoord.core.cause import NO_TIME, Cause
from kcoord.core.groups.cause_header import decode_cause
from kcoord.core.transactions.state import state_name
from kcoord.log.record_plain import CONSUMER, bytes_plain, consumer_plain, plain
from kcoord.log.serde import UnknownRecord
from kcoord.log.typed_records import CONTROL_TYPES, TypedRecord
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.transaction_group_assignment import (
    TransactionGroupAssignmentKey,
    TransactionGroupAssignmentValue,
)
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue

# Fields of consumer group records whose 0 says nothing.
NOTHING_IF_0: Final = ("error", "metadata_version", "metadata_bytes")
TRANSACTION_MARKERS: Final = (CONTROL_TYPES[0], CONTROL_TYPES[1])


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


def summary(typed: TypedRecord, names: dict[str, str] | None = None) -> str:
    """The record as one line of text. `names` maps topic ids, as text, to topic names."""
    cause = decode_cause(typed.record.headers)
    content = _content(typed, names or {})
    return content if cause is None else f"{content}; cause {cause_text(cause)}"


def cause_text(cause: Cause) -> str:
    text = cause.kind
    if cause.member_id:
        text += f" {cause.member_id}"
    return f"{text}: {cause.detail}" if cause.detail else text


def _content(typed: TypedRecord, names: dict[str, str]) -> str:
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
    if isinstance(key, TransactionLogKey):
        if not isinstance(value, TransactionLogValue):
            return f"{typed.kind} {key.transactional_id} removed"
        return f"{typed.kind} {key.transactional_id} {transaction_text(value)}"
    if isinstance(key, TransactionGroupAssignmentKey):
        if not isinstance(value, TransactionGroupAssignmentValue):
            return f"{typed.kind} {key.transactional_id} removed"
        return f"{typed.kind} {key.transactional_id} {group_assignment_text(value)}"
    if typed.kind in TRANSACTION_MARKERS:
        # The content is the epoch of the coordinator.
        return typed.kind
    document = typed_plain(typed)
    parts = [typed.kind]
    if typed.error:
        parts.append(f"({typed.error})")
    for name in ("key", "value"):
        content = document[name]
        if isinstance(content, dict) and "base64" not in content:
            parts += [_field(field, item, names) for field, item in content.items() if not _is_nothing(field, item)]
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
            text += f", assigned {assignment_text(member.assignment)}"
        parts.append(text)
    return "; ".join(parts)


def transaction_text(value: TransactionLogValue) -> str:
    text = f"{state_name(value.transaction_status)}, producer id {value.producer_id}, epoch {value.producer_epoch}"
    if value.next_producer_id >= 0:
        text += f", next producer id {value.next_producer_id}"
    text += f", timeout {value.transaction_timeout_ms} ms"
    schemas = value.transaction_partitions or []
    names = [f"{schema.topic}-{partition}" for schema in schemas for partition in schema.partition_ids]
    return text + (f", partitions {' '.join(names)}" if names else "")


def group_assignment_text(value: TransactionGroupAssignmentValue) -> str:
    text = f"group {value.group_id}, generation {value.generation_id}, member {value.member_id}"
    if value.group_instance_id is not None:
        text += f" ({value.group_instance_id})"
    names = [f"{topic.name}-{partition}" for topic in value.topics for partition in topic.partitions]
    return f"{text}, partitions {' '.join(names) or 'none'}"


def assignment_text(data: bytes) -> str:
    """`orders-0 orders-1`, or the number of bytes if they cannot be decoded."""
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


def _field(name: str, item: Any, names: dict[str, str]) -> str:
    """`name=text`: partitions as `topic-0 topic-1`, times in UTC, other lists with commas."""
    if isinstance(item, list) and all(isinstance(one, dict) and "partitions" in one for one in item):
        partitions = [_partition(one, number, names) for one in item for number in range(len(one["partitions"]))]
        return f"{name}={' '.join(partitions)}"
    if isinstance(item, list) and all(isinstance(one, str) for one in item):
        return f"{name}={','.join(item)}"
    if name.endswith("timestamp") and isinstance(item, int):
        return f"{name}={format_time(item)}"
    return f"{name}={_short(item)}"


def _partition(of_topic: dict[str, Any], number: int, names: dict[str, str]) -> str:
    """`topic-0`, and in the current assignment the epoch since which the member owns it."""
    topic_id = of_topic.get("topic_id", of_topic.get("topic", "?"))
    text = f"{names.get(topic_id, topic_id)}-{of_topic['partitions'][number]}"
    epochs = of_topic.get("assignment_epochs")
    return f"{text}@{epochs[number]}" if epochs and number < len(epochs) else text


def _is_nothing(name: str, item: Any) -> bool:
    return item in (None, [], "", -1, {"base64": ""}) or (item == 0 and name in NOTHING_IF_0)
