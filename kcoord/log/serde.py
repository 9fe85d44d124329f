"""Typed records of the coordinator, transaction and metadata logs to bytes and back.

A coordinator record's key is its type as int16 and a body, its value a version as int16 and a body; no value is a
tombstone. A metadata record has no key; its value is a frame of unsigned varints (frame version 1, record type,
version) and a body (KIP-631).

The versions written are those that Kafka 4.3 writes at its newest metadata version, so that its tools read our
logs; everything older is read. Types that are not known here are kept as they are, in UnknownRecord.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, final

from kcoord.protocol.records import (
    access_control_entry_record,
    client_quota_record,
    config_record,
    consumer_group_current_member_assignment,
    consumer_group_member_metadata,
    consumer_group_metadata,
    consumer_group_partition_metadata,
    consumer_group_regular_expression,
    consumer_group_target_assignment_member,
    consumer_group_target_assignment_metadata,
    feature_level_record,
    no_op_record,
    partition_change_record,
    partition_record,
    producer_ids_record,
    register_broker_record,
    remove_access_control_entry_record,
    remove_topic_record,
    remove_user_scram_credential_record,
    topic_record,
    unregister_broker_record,
    user_scram_credential_record,
)
from kcoord.protocol.records.group_metadata import (
    GroupMetadataKey,
    GroupMetadataValue,
    decode_group_metadata_key,
    decode_group_metadata_value,
    encode_group_metadata_key,
    encode_group_metadata_value,
)
from kcoord.protocol.records.legacy_offset_commit import (
    decode_legacy_offset_commit_key,
    decode_legacy_offset_commit_value,
)
from kcoord.protocol.records.offset_commit import (
    OffsetCommitKey,
    OffsetCommitValue,
    decode_offset_commit_key,
    decode_offset_commit_value,
    encode_offset_commit_key,
    encode_offset_commit_value,
)
from kcoord.protocol.records.transaction_log import (
    TransactionLogKey,
    TransactionLogValue,
    decode_transaction_log_key,
    decode_transaction_log_value,
    encode_transaction_log_key,
    encode_transaction_log_value,
)
from kcoord.wire.message import Message
from kcoord.wire.primitives import (
    BytesWriter,
    DecodeError,
    EncodeError,
    Reader,
    write_i16_be,
    write_uvarint,
)

LEGACY_OFFSET_COMMIT: Final = 0
OFFSET_COMMIT: Final = 1
GROUP_METADATA: Final = 2
TRANSACTION_LOG: Final = 0

# Value versions that Kafka 4.3 writes.
OFFSET_COMMIT_VERSION: Final = 4
# The only version that has an expiry time of its own, for clients that ask for one.
OFFSET_COMMIT_EXPIRING_VERSION: Final = 1
OFFSET_COMMIT_VERSION_MAX: Final = 4
GROUP_METADATA_VERSION: Final = 3
GROUP_METADATA_VERSION_MAX: Final = 4
TRANSACTION_LOG_VERSION: Final = 1
# Of a consumer group's records.
CONSUMER_GROUP_VERSION: Final = 0

METADATA_FRAME_VERSION: Final = 1

Decoder = Callable[[Reader, int], Message]
Encoder = Callable[[BytesWriter, Any, int], None]


@final
class UnknownRecord(Message):
    """A record of a type that is not known here: its type and its very bytes."""

    FIELDS: ClassVar[tuple[str, ...]] = ("record_type", "key", "value")

    def __init__(self, record_type: int, key: bytes, value: bytes | None) -> None:
        self.record_type = record_type
        self.key = key
        self.value = value


@final
class _RecordCodec:
    """How to read and write one record type. `version` is what is written, `version_max` what can be read."""

    def __init__(
        self, record_type: int, version: int, version_max: int, decode: Decoder, encode: Encoder
    ) -> None:
        self.record_type = record_type
        self.version = version
        self.version_max = version_max
        self.decode = decode
        self.encode = encode


# Keys and values of the consumer group's records, by record type.
_KEYS: Final[dict[int, _RecordCodec]] = {
    3: _RecordCodec(
        3,
        0,
        0,
        consumer_group_metadata.decode_consumer_group_metadata_key,
        consumer_group_metadata.encode_consumer_group_metadata_key,
    ),
    4: _RecordCodec(
        4,
        0,
        0,
        consumer_group_partition_metadata.decode_consumer_group_partition_metadata_key,
        consumer_group_partition_metadata.encode_consumer_group_partition_metadata_key,
    ),
    5: _RecordCodec(
        5,
        0,
        0,
        consumer_group_member_metadata.decode_consumer_group_member_metadata_key,
        consumer_group_member_metadata.encode_consumer_group_member_metadata_key,
    ),
    6: _RecordCodec(
        6,
        0,
        0,
        consumer_group_target_assignment_metadata.decode_consumer_group_target_assignment_metadata_key,
        consumer_group_target_assignment_metadata.encode_consumer_group_target_assignment_metadata_key,
    ),
    7: _RecordCodec(
        7,
        0,
        0,
        consumer_group_target_assignment_member.decode_consumer_group_target_assignment_member_key,
        consumer_group_target_assignment_member.encode_consumer_group_target_assignment_member_key,
    ),
    8: _RecordCodec(
        8,
        0,
        0,
        consumer_group_current_member_assignment.decode_consumer_group_current_member_assignment_key,
        consumer_group_current_member_assignment.encode_consumer_group_current_member_assignment_key,
    ),
    16: _RecordCodec(
        16,
        0,
        0,
        consumer_group_regular_expression.decode_consumer_group_regular_expression_key,
        consumer_group_regular_expression.encode_consumer_group_regular_expression_key,
    ),
}
_VALUES: Final[dict[int, _RecordCodec]] = {
    3: _RecordCodec(
        3,
        CONSUMER_GROUP_VERSION,
        consumer_group_metadata.MAX_VERSION,
        consumer_group_metadata.decode_consumer_group_metadata_value,
        consumer_group_metadata.encode_consumer_group_metadata_value,
    ),
    4: _RecordCodec(
        4,
        CONSUMER_GROUP_VERSION,
        consumer_group_partition_metadata.MAX_VERSION,
        consumer_group_partition_metadata.decode_consumer_group_partition_metadata_value,
        consumer_group_partition_metadata.encode_consumer_group_partition_metadata_value,
    ),
    5: _RecordCodec(
        5,
        CONSUMER_GROUP_VERSION,
        consumer_group_member_metadata.MAX_VERSION,
        consumer_group_member_metadata.decode_consumer_group_member_metadata_value,
        consumer_group_member_metadata.encode_consumer_group_member_metadata_value,
    ),
    6: _RecordCodec(
        6,
        CONSUMER_GROUP_VERSION,
        consumer_group_target_assignment_metadata.MAX_VERSION,
        consumer_group_target_assignment_metadata.decode_consumer_group_target_assignment_metadata_value,
        consumer_group_target_assignment_metadata.encode_consumer_group_target_assignment_metadata_value,
    ),
    7: _RecordCodec(
        7,
        CONSUMER_GROUP_VERSION,
        consumer_group_target_assignment_member.MAX_VERSION,
        consumer_group_target_assignment_member.decode_consumer_group_target_assignment_member_value,
        consumer_group_target_assignment_member.encode_consumer_group_target_assignment_member_value,
    ),
    8: _RecordCodec(
        8,
        CONSUMER_GROUP_VERSION,
        consumer_group_current_member_assignment.MAX_VERSION,
        consumer_group_current_member_assignment.decode_consumer_group_current_member_assignment_value,
        consumer_group_current_member_assignment.encode_consumer_group_current_member_assignment_value,
    ),
    16: _RecordCodec(
        16,
        CONSUMER_GROUP_VERSION,
        consumer_group_regular_expression.MAX_VERSION,
        consumer_group_regular_expression.decode_consumer_group_regular_expression_value,
        consumer_group_regular_expression.encode_consumer_group_regular_expression_value,
    ),
}
_KEY_TYPES: Final[dict[type[Message], int]] = {
    consumer_group_metadata.ConsumerGroupMetadataKey: 3,
    consumer_group_partition_metadata.ConsumerGroupPartitionMetadataKey: 4,
    consumer_group_member_metadata.ConsumerGroupMemberMetadataKey: 5,
    consumer_group_target_assignment_metadata.ConsumerGroupTargetAssignmentMetadataKey: 6,
    consumer_group_target_assignment_member.ConsumerGroupTargetAssignmentMemberKey: 7,
    consumer_group_current_member_assignment.ConsumerGroupCurrentMemberAssignmentKey: 8,
    consumer_group_regular_expression.ConsumerGroupRegularExpressionKey: 16,
}

# The metadata records that we write or act upon. Their newest version is what Kafka 4.3 writes.
_METADATA: Final[list[tuple[type[Message], _RecordCodec]]] = [
    (
        register_broker_record.RegisterBrokerRecord,
        _RecordCodec(
            register_broker_record.RECORD_TYPE,
            register_broker_record.MAX_VERSION,
            register_broker_record.MAX_VERSION,
            register_broker_record.decode_register_broker_record,
            register_broker_record.encode_register_broker_record,
        ),
    ),
    (
        unregister_broker_record.UnregisterBrokerRecord,
        _RecordCodec(
            unregister_broker_record.RECORD_TYPE,
            unregister_broker_record.MAX_VERSION,
            unregister_broker_record.MAX_VERSION,
            unregister_broker_record.decode_unregister_broker_record,
            unregister_broker_record.encode_unregister_broker_record,
        ),
    ),
    (
        topic_record.TopicRecord,
        _RecordCodec(
            topic_record.RECORD_TYPE,
            topic_record.MAX_VERSION,
            topic_record.MAX_VERSION,
            topic_record.decode_topic_record,
            topic_record.encode_topic_record,
        ),
    ),
    (
        partition_record.PartitionRecord,
        _RecordCodec(
            partition_record.RECORD_TYPE,
            partition_record.MAX_VERSION,
            partition_record.MAX_VERSION,
            partition_record.decode_partition_record,
            partition_record.encode_partition_record,
        ),
    ),
    (
        config_record.ConfigRecord,
        _RecordCodec(
            config_record.RECORD_TYPE,
            config_record.MAX_VERSION,
            config_record.MAX_VERSION,
            config_record.decode_config_record,
            config_record.encode_config_record,
        ),
    ),
    (
        partition_change_record.PartitionChangeRecord,
        _RecordCodec(
            partition_change_record.RECORD_TYPE,
            partition_change_record.MAX_VERSION,
            partition_change_record.MAX_VERSION,
            partition_change_record.decode_partition_change_record,
            partition_change_record.encode_partition_change_record,
        ),
    ),
    (
        remove_topic_record.RemoveTopicRecord,
        _RecordCodec(
            remove_topic_record.RECORD_TYPE,
            remove_topic_record.MAX_VERSION,
            remove_topic_record.MAX_VERSION,
            remove_topic_record.decode_remove_topic_record,
            remove_topic_record.encode_remove_topic_record,
        ),
    ),
    (
        user_scram_credential_record.UserScramCredentialRecord,
        _RecordCodec(
            user_scram_credential_record.RECORD_TYPE,
            user_scram_credential_record.MAX_VERSION,
            user_scram_credential_record.MAX_VERSION,
            user_scram_credential_record.decode_user_scram_credential_record,
            user_scram_credential_record.encode_user_scram_credential_record,
        ),
    ),
    (
        feature_level_record.FeatureLevelRecord,
        _RecordCodec(
            feature_level_record.RECORD_TYPE,
            feature_level_record.MAX_VERSION,
            feature_level_record.MAX_VERSION,
            feature_level_record.decode_feature_level_record,
            feature_level_record.encode_feature_level_record,
        ),
    ),
    (
        client_quota_record.ClientQuotaRecord,
        _RecordCodec(
            client_quota_record.RECORD_TYPE,
            client_quota_record.MAX_VERSION,
            client_quota_record.MAX_VERSION,
            client_quota_record.decode_client_quota_record,
            client_quota_record.encode_client_quota_record,
        ),
    ),
    (
        producer_ids_record.ProducerIdsRecord,
        _RecordCodec(
            producer_ids_record.RECORD_TYPE,
            producer_ids_record.MAX_VERSION,
            producer_ids_record.MAX_VERSION,
            producer_ids_record.decode_producer_ids_record,
            producer_ids_record.encode_producer_ids_record,
        ),
    ),
    (
        access_control_entry_record.AccessControlEntryRecord,
        _RecordCodec(
            access_control_entry_record.RECORD_TYPE,
            access_control_entry_record.MAX_VERSION,
            access_control_entry_record.MAX_VERSION,
            access_control_entry_record.decode_access_control_entry_record,
            access_control_entry_record.encode_access_control_entry_record,
        ),
    ),
    (
        remove_access_control_entry_record.RemoveAccessControlEntryRecord,
        _RecordCodec(
            remove_access_control_entry_record.RECORD_TYPE,
            remove_access_control_entry_record.MAX_VERSION,
            remove_access_control_entry_record.MAX_VERSION,
            remove_access_control_entry_record.decode_remove_access_control_entry_record,
            remove_access_control_entry_record.encode_remove_access_control_entry_record,
        ),
    ),
    (
        no_op_record.NoOpRecord,
        _RecordCodec(
            no_op_record.RECORD_TYPE,
            no_op_record.MAX_VERSION,
            no_op_record.MAX_VERSION,
            no_op_record.decode_no_op_record,
            no_op_record.encode_no_op_record,
        ),
    ),
    (
        remove_user_scram_credential_record.RemoveUserScramCredentialRecord,
        _RecordCodec(
            remove_user_scram_credential_record.RECORD_TYPE,
            remove_user_scram_credential_record.MAX_VERSION,
            remove_user_scram_credential_record.MAX_VERSION,
            remove_user_scram_credential_record.decode_remove_user_scram_credential_record,
            remove_user_scram_credential_record.encode_remove_user_scram_credential_record,
        ),
    ),
]
_METADATA_BY_TYPE: Final[dict[int, _RecordCodec]] = {codec.record_type: codec for _, codec in _METADATA}
_METADATA_BY_CLASS: Final[dict[type[Message], _RecordCodec]] = dict(_METADATA)


def encode_record(key: Message, value: Message | None) -> tuple[bytes, bytes | None]:
    """Key and value bytes of a coordinator or transaction record; no value is a tombstone.

    Raises EncodeError for what is not such a record or does not fit the format.
    """
    w = BytesWriter()
    if isinstance(key, OffsetCommitKey):
        write_i16_be(w, OFFSET_COMMIT)
        encode_offset_commit_key(w, key, 0)
        return w.getvalue(), _encode_offset_commit_value(value)
    if isinstance(key, GroupMetadataKey):
        write_i16_be(w, GROUP_METADATA)
        encode_group_metadata_key(w, key, 0)
        return w.getvalue(), _encode_group_metadata_value(value)
    if isinstance(key, TransactionLogKey):
        write_i16_be(w, TRANSACTION_LOG)
        encode_transaction_log_key(w, key, 0)
        return w.getvalue(), _encode_transaction_log_value(value)
    if isinstance(key, UnknownRecord):
        return key.key, key.value
    record_type = _KEY_TYPES.get(type(key))
    if record_type is None:
        raise EncodeError(f"{type(key).__name__} is not a record key")
    write_i16_be(w, record_type)
    _KEYS[record_type].encode(w, key, 0)
    if value is None:
        return w.getvalue(), None
    codec = _VALUES[record_type]
    v = BytesWriter()
    write_i16_be(v, codec.version)
    codec.encode(v, value, codec.version)
    return w.getvalue(), v.getvalue()


def _encode_offset_commit_value(value: Message | None) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, OffsetCommitValue):
        raise EncodeError("an offset commit key needs an offset commit value")
    version = OFFSET_COMMIT_VERSION if value.expire_timestamp == -1 else OFFSET_COMMIT_EXPIRING_VERSION
    w = BytesWriter()
    write_i16_be(w, version)
    encode_offset_commit_value(w, value, version)
    return w.getvalue()


def _encode_group_metadata_value(value: Message | None) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, GroupMetadataValue):
        raise EncodeError("a group metadata key needs a group metadata value")
    w = BytesWriter()
    write_i16_be(w, GROUP_METADATA_VERSION)
    encode_group_metadata_value(w, value, GROUP_METADATA_VERSION)
    return w.getvalue()


def _encode_transaction_log_value(value: Message | None) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, TransactionLogValue):
        raise EncodeError("a transaction log key needs a transaction log value")
    w = BytesWriter()
    write_i16_be(w, TRANSACTION_LOG_VERSION)
    encode_transaction_log_value(w, value, TRANSACTION_LOG_VERSION)
    return w.getvalue()


def _check_version(name: str, version: int, version_max: int) -> int:
    if version < 0 or version > version_max:
        raise DecodeError(f"{name} of version {version}, known up to {version_max}")
    return version


def decode_record(key: bytes, value: bytes | None) -> tuple[Message, Message | None]:
    """Key and value of a record of `__consumer_offsets`. Unknown types give an UnknownRecord as the key.

    The oldest form of an offset commit (type 0) is given as the newer one. Trailing bytes in values are ignored,
    as Kafka does. Raises DecodeError.
    """
    r = Reader(key)
    record_type = r.int16()
    if record_type == OFFSET_COMMIT:
        commit_key = decode_offset_commit_key(r, 0)
        if value is None:
            return commit_key, None
        v = Reader(value)
        version = _check_version("offset commit", v.int16(), OFFSET_COMMIT_VERSION_MAX)
        return commit_key, decode_offset_commit_value(v, version)
    if record_type == GROUP_METADATA:
        group_key = decode_group_metadata_key(r, 0)
        if value is None:
            return group_key, None
        v = Reader(value)
        version = _check_version("group metadata", v.int16(), GROUP_METADATA_VERSION_MAX)
        return group_key, decode_group_metadata_value(v, version)
    if record_type == LEGACY_OFFSET_COMMIT:
        return _decode_legacy_offset_commit(r, value)
    key_codec = _KEYS.get(record_type)
    if key_codec is None:
        return UnknownRecord(record_type, key, value), None
    key_message = key_codec.decode(r, 0)
    if value is None:
        return key_message, None
    codec = _VALUES[record_type]
    v = Reader(value)
    version = _check_version(f"record type {record_type}", v.int16(), codec.version_max)
    return key_message, codec.decode(v, version)


def _decode_legacy_offset_commit(r: Reader, value: bytes | None) -> tuple[Message, Message | None]:
    old_key = decode_legacy_offset_commit_key(r, 0)
    key = OffsetCommitKey(old_key.group, old_key.topic, old_key.partition)
    if value is None:
        return key, None
    v = Reader(value)
    _check_version("legacy offset commit", v.int16(), 0)
    old = decode_legacy_offset_commit_value(v, 0)
    return key, OffsetCommitValue(old.offset, -1, old.metadata, old.commit_timestamp)


def decode_transaction_record(key: bytes, value: bytes | None) -> tuple[Message, Message | None]:
    """Key and value of a record of `__transaction_state`. Raises DecodeError."""
    r = Reader(key)
    record_type = r.int16()
    if record_type != TRANSACTION_LOG:
        return UnknownRecord(record_type, key, value), None
    key_message = decode_transaction_log_key(r, 0)
    if value is None:
        return key_message, None
    v = Reader(value)
    version = _check_version("transaction log record", v.int16(), TRANSACTION_LOG_VERSION)
    return key_message, decode_transaction_log_value(v, version)


def encode_metadata_record(value: Message) -> bytes:
    """The value bytes of a record of `__cluster_metadata`. Raises EncodeError."""
    if isinstance(value, UnknownRecord):
        if value.value is None:
            raise EncodeError("a metadata record has a value")
        return value.value
    codec = _METADATA_BY_CLASS.get(type(value))
    if codec is None:
        raise EncodeError(f"{type(value).__name__} is not a metadata record")
    w = BytesWriter()
    write_uvarint(w, METADATA_FRAME_VERSION)
    write_uvarint(w, codec.record_type)
    write_uvarint(w, codec.version)
    codec.encode(w, value, codec.version)
    return w.getvalue()


def decode_metadata_record(value: bytes) -> Message:
    """The record in the value bytes of `__cluster_metadata`; UnknownRecord for an unknown type.

    Raises DecodeError.
    """
    r = Reader(value)
    frame_version = int(r.uvarint())
    if frame_version != METADATA_FRAME_VERSION:
        raise DecodeError(f"metadata frame of version {frame_version}")
    record_type = int(r.uvarint())
    version = int(r.uvarint())
    codec = _METADATA_BY_TYPE.get(record_type)
    if codec is None:
        return UnknownRecord(record_type, b"", value)
    return codec.decode(r, _check_version(f"metadata record type {record_type}", version, codec.version_max))
