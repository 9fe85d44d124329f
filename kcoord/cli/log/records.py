"""Records as typed things: what each is about, as plain data for JSON, and as one line of text."""

from __future__ import annotations

import base64
import re
from typing import Any, Final, final

from kcoord.core.cause_header import decode_cause
from kcoord.core.group_cause import NO_TIME, Cause
from kcoord.core.outcome import METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTION_TOPIC
from kcoord.log.serde import UnknownRecord, decode_metadata_record, decode_record, decode_transaction_record
from kcoord.protocol.records.config_record import ConfigRecord
from kcoord.protocol.records.consumer_protocol_assignment import decode_consumer_protocol_assignment
from kcoord.protocol.records.consumer_protocol_subscription import decode_consumer_protocol_subscription
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.remove_topic_record import RemoveTopicRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError, Reader
from kcoord.wire.record_batch import BatchHeader, Record

COORDINATOR_TOPICS: Final = (METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTION_TOPIC)
DECOMPRESSED_BYTES_MAX: Final = 256 << 20
CONSUMER: Final = "consumer"
RESOURCE_TOPIC: Final = 2
# Schemas of what consumers say about themselves; newer ones begin with the fields of this.
CONSUMER_PROTOCOL_MAX: Final = 3
CONTROL_TYPES: Final = {
    0: "abort_marker",
    1: "commit_marker",
    2: "leader_change",
    3: "snapshot_header",
    4: "snapshot_footer",
    5: "kraft_version",
    6: "kraft_voters",
}
_UUID_LISTS: Final = frozenset({"directories"})


@final
class TypedRecord:
    """A record as it is understood. What cannot be decoded has `error` and its raw key and value."""

    def __init__(self, record: Record, kind: str) -> None:
        self.record = record
        self.kind = kind
        self.key: Message | None = None
        self.value: Message | None = None
        self.error = ""
        # What it is about, for filters; partition -1 is none.
        self.group = ""
        self.topic = ""
        self.partition = -1
        self.members: list[str] = []

    @property
    def is_tombstone(self) -> bool:
        return self.key is not None and self.record.value is None


@final
class RecordReader:
    """Types the records of one log after the other; remembers topic ids from the metadata log."""

    def __init__(self) -> None:
        self.names: dict[bytes, str] = {}

    def know(self, values: list[bytes]) -> None:
        """Remember topic ids from records of the metadata log that are not to be read."""
        for value in values:
            try:
                record = decode_metadata_record(value)
            except DecodeError:
                continue
            if isinstance(record, TopicRecord):
                self.names[record.topic_id] = record.name

    def read(self, topic: str, header: BatchHeader, record: Record) -> TypedRecord:
        if header.is_control:
            return self._control(record)
        typed = TypedRecord(record, "record")
        if topic not in COORDINATOR_TOPICS:
            return typed
        try:
            self._decode(topic, typed)
        except DecodeError as error:
            typed.kind = "undecodable"
            typed.error = str(error)
            return typed
        self._note_subject(typed)
        return typed

    def _control(self, record: Record) -> TypedRecord:
        kind = "control"
        if record.key is not None and len(record.key) >= 4:
            kind = CONTROL_TYPES.get(int.from_bytes(record.key[2:4], "big"), kind)
        return TypedRecord(record, kind)

    def _decode(self, topic: str, typed: TypedRecord) -> None:
        record = typed.record
        if topic == METADATA_TOPIC:
            if record.value is None:
                raise DecodeError("a metadata record without a value")
            typed.value = decode_metadata_record(record.value)
            unknown = typed.value
            typed.kind = snake(type(typed.value).__name__)
        else:
            if record.key is None:
                raise DecodeError("a record without a key")
            decode = decode_record if topic == OFFSETS_TOPIC else decode_transaction_record
            typed.key, typed.value = decode(record.key, record.value)
            unknown = typed.key
            typed.kind = snake(type(typed.key).__name__.removesuffix("Key"))
        if isinstance(unknown, UnknownRecord):
            typed.kind = f"unknown_{unknown.record_type}"

    def _note_subject(self, typed: TypedRecord) -> None:
        key, value = typed.key, typed.value
        for message in (key, value):
            if message is None:
                continue
            for name in ("group", "group_id", "transactional_id"):
                typed.group = typed.group or getattr(message, name, "") or ""
            member_id = getattr(message, "member_id", None)
            if isinstance(member_id, str):
                typed.members.append(member_id)
        if isinstance(key, OffsetCommitKey):
            typed.topic, typed.partition = key.topic, key.partition
        elif isinstance(value, GroupMetadataValue):
            for member in value.members:
                typed.members.append(member.member_id)
                if member.group_instance_id is not None:
                    typed.members.append(member.group_instance_id)
        elif isinstance(value, TopicRecord):
            typed.topic = self.names[value.topic_id] = value.name
        elif isinstance(value, PartitionRecord):
            typed.topic, typed.partition = self.names.get(value.topic_id, ""), value.partition_id
        elif isinstance(value, RemoveTopicRecord):
            typed.topic = self.names.get(value.topic_id, "")
        elif isinstance(value, ConfigRecord) and value.resource_type == RESOURCE_TOPIC:
            typed.topic = value.resource_name


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


# --- plain data


def uuid_text(data: bytes) -> str:
    """A 16-byte id as Kafka spells it."""
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def bytes_plain(data: bytes | None) -> Any:
    """Text as it is; anything else as `{"base64": …}`."""
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def plain(value: Any, name: str = "") -> Any:
    """A message, or a field of one called `name`, as JSON can hold it."""
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


def member_plain(protocol_type: str, member: MemberMetadata) -> dict[str, Any]:
    """A classic member; what a consumer says of itself is decoded."""
    document = {field: plain(getattr(member, field), field) for field in member.FIELDS}
    if protocol_type == CONSUMER:
        document["subscription"] = consumer_plain(member.subscription, True)
        document["assignment"] = consumer_plain(member.assignment, False)
    return document


def consumer_plain(data: bytes, is_subscription: bool) -> Any:
    """A consumer's subscription or assignment; its bytes where it is neither, None where there is none."""
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
