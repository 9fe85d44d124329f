"""Decodes the records of any log into typed records, each with its subject (group, topic, partition)."""

from __future__ import annotations

import functools
import re
from typing import Final, final

from kcoord.log.serde import UnknownRecord, decode_metadata_record, decode_record, decode_transaction_record
from kcoord.protocol.records.config_record import ConfigRecord
from kcoord.protocol.records.group_metadata import GroupMetadataValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.remove_topic_record import RemoveTopicRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import BatchHeader, Record

METADATA_TOPIC: Final = "__cluster_metadata"
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_TOPIC: Final = "__transaction_state"
COORDINATOR_TOPICS: Final = (METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTION_TOPIC)
# The largest decompressed size of one batch.
DECOMPRESSED_BYTES_MAX: Final = 256 << 20
RESOURCE_TOPIC: Final = 2
CONTROL_TYPES: Final = {
    0: "abort_marker",
    1: "commit_marker",
    2: "leader_change",
    3: "snapshot_header",
    4: "snapshot_footer",
    5: "kraft_version",
    6: "kraft_voters",
}


@final
class TypedRecord:
    """A decoded record. If decoding failed, `error` is set and key and value stay raw."""

    def __init__(self, record: Record, kind: str) -> None:
        self.record = record
        self.kind = kind
        self.key: Message | None = None
        self.value: Message | None = None
        self.error = ""
        # The subject, for filters; partition -1 means none.
        self.group = ""
        self.topic = ""
        self.partition = -1
        self.members: list[str] = []

    @property
    def is_tombstone(self) -> bool:
        return self.key is not None and self.record.value is None


@final
class RecordReader:
    """Decodes the records of one log after the other, and remembers topic ids from the metadata log."""

    def __init__(self, names: dict[bytes, str] | None = None) -> None:
        """`names` maps known topic ids to topic names."""
        self.names: dict[bytes, str] = dict(names or {})

    def know(self, values: list[bytes]) -> None:
        """Remember topic ids from records of the metadata log that are not shown."""
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
        try:
            return self.decode(topic, record)
        except DecodeError as error:
            typed = TypedRecord(record, "undecodable")
            typed.error = str(error)
            return typed

    def decode(self, topic: str, record: Record) -> TypedRecord:
        """A record that is not of a control batch. Raises DecodeError."""
        typed = TypedRecord(record, "record")
        if topic in COORDINATOR_TOPICS:
            self._decode(topic, typed)
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
            typed.kind = record_name(typed.value)
        else:
            if record.key is None:
                raise DecodeError("a record without a key")
            decode = decode_record if topic == OFFSETS_TOPIC else decode_transaction_record
            typed.key, typed.value = decode(record.key, record.value)
            unknown = typed.key
            typed.kind = record_name(typed.key)
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


def record_name(message: Message) -> str:
    """`offset_commit` for OffsetCommitKey, `topic_record` for TopicRecord."""
    return _snake(type(message).__name__.removesuffix("Key"))


@functools.cache
def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
