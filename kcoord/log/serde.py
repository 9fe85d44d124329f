"""Encodes and decodes the typed records of the coordinator, transaction and metadata logs.

The key of a coordinator record is its type as int16 and a body, its value a version as int16 and a body; a null value
is a tombstone. A metadata record has no key; its value is a frame of unsigned varints (frame version 1, record type,
version) and a body (KIP-631).

The written versions are those of Kafka 4.3 at its newest metadata version, so that its tools can read the logs. Older
versions can be read. Records of unknown types are kept byte for byte, in UnknownRecord.
"""

from __future__ import annotations

from typing import ClassVar, Final, cast, final

from kcoord.log.record_codecs import (
    GROUP_ASSIGNMENT,
    METADATA_BY_CLASS,
    METADATA_BY_TYPE,
    PAIRS_BY_KEY,
    PAIRS_BY_TYPE,
    PairCodec,
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
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    decode_legacy_offset_commit_key,
    decode_legacy_offset_commit_value,
    encode_legacy_offset_commit_key,
    encode_legacy_offset_commit_value,
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
# The only version with an expiry timestamp, for clients that set a retention time.
OFFSET_COMMIT_EXPIRING_VERSION: Final = 1
OFFSET_COMMIT_VERSION_MAX: Final = 4
GROUP_METADATA_VERSION: Final = 3
GROUP_METADATA_VERSION_MAX: Final = 4
TRANSACTION_LOG_VERSION: Final = 1
TRANSACTION_LOG_VERSION_MAX: Final = 1
METADATA_FRAME_VERSION: Final = 1


@final
class UnknownRecord(Message):
    """A record of an unknown type: its type and its bytes."""

    FIELDS: ClassVar[tuple[str, ...]] = ("record_type", "key", "value")

    def __init__(self, record_type: int, key: bytes, value: bytes | None) -> None:
        self.record_type = record_type
        self.key = key
        self.value = value


def encode_record(key: Message, value: Message | None) -> tuple[bytes, bytes | None]:
    """Key and value bytes of a coordinator or transaction record; a value of None is a tombstone.

    Raises EncodeError for other messages and for values that do not fit the format.
    """
    if isinstance(key, UnknownRecord):
        return key.key, key.value
    w = BytesWriter()
    if isinstance(key, OffsetCommitKey):
        write_i16_be(w, OFFSET_COMMIT)
        encode_offset_commit_key(w, key, 0)
    elif isinstance(key, GroupMetadataKey):
        write_i16_be(w, GROUP_METADATA)
        encode_group_metadata_key(w, key, 0)
    elif isinstance(key, TransactionLogKey):
        write_i16_be(w, TRANSACTION_LOG)
        encode_transaction_log_key(w, key, 0)
    elif isinstance(key, LegacyOffsetCommitKey):
        write_i16_be(w, LEGACY_OFFSET_COMMIT)
        encode_legacy_offset_commit_key(w, key, 0)
    else:
        codec = _pair_of_key(key)
        write_i16_be(w, codec.record_type)
        codec.encode_key(w, key, 0)
    return w.getvalue(), None if value is None else encode_value(key, value, _version_of(value))


def encode_value(key: Message, value: Message, version: int) -> bytes:
    """The value bytes of a record in the given version instead of the one encode_record chooses. Raises EncodeError."""
    w = BytesWriter()
    write_i16_be(w, version)
    if isinstance(key, OffsetCommitKey):
        _check_writable(isinstance(value, OffsetCommitValue), version, OFFSET_COMMIT_VERSION_MAX)
        encode_offset_commit_value(w, cast(OffsetCommitValue, value), version)
    elif isinstance(key, GroupMetadataKey):
        _check_writable(isinstance(value, GroupMetadataValue), version, GROUP_METADATA_VERSION_MAX)
        encode_group_metadata_value(w, cast(GroupMetadataValue, value), version)
    elif isinstance(key, TransactionLogKey):
        _check_writable(isinstance(value, TransactionLogValue), version, TRANSACTION_LOG_VERSION_MAX)
        encode_transaction_log_value(w, cast(TransactionLogValue, value), version)
    elif isinstance(key, LegacyOffsetCommitKey):
        _check_writable(isinstance(value, LegacyOffsetCommitValue), version, 0)
        encode_legacy_offset_commit_value(w, cast(LegacyOffsetCommitValue, value), version)
    else:
        codec = _pair_of_key(key)
        _check_writable(True, version, 0)
        codec.encode_value(w, value, version)
    return w.getvalue()


def _pair_of_key(key: Message) -> PairCodec:
    codec = PAIRS_BY_KEY.get(type(key))
    if codec is None:
        from kcoord.log.other_codecs import OTHER_PAIRS_BY_KEY

        codec = OTHER_PAIRS_BY_KEY.get(type(key))
        if codec is None:
            raise EncodeError(f"{type(key).__name__} is not a record key")
    return codec


def _check_writable(is_right: bool, version: int, version_max: int) -> None:
    if not is_right:
        raise EncodeError("the value does not match the type of the key")
    if version < 0 or version > version_max:
        raise EncodeError(f"value version {version}, supported up to {version_max}")


def _version_of(value: Message) -> int:
    """The version in which a broker writes a value."""
    if isinstance(value, OffsetCommitValue):
        return OFFSET_COMMIT_VERSION if value.expire_timestamp == -1 else OFFSET_COMMIT_EXPIRING_VERSION
    if isinstance(value, GroupMetadataValue):
        return GROUP_METADATA_VERSION
    if isinstance(value, TransactionLogValue):
        return TRANSACTION_LOG_VERSION
    return 0


def _check_version(name: str, version: int, version_max: int) -> int:
    if version < 0 or version > version_max:
        raise DecodeError(f"{name} of version {version}, supported up to {version_max}")
    return version


def decode_record(key: bytes, value: bytes | None) -> tuple[Message, Message | None]:
    """Key and value of a record of `__consumer_offsets`. For unknown types the key is an UnknownRecord.

    The oldest form of an offset commit (type 0) is converted to the newer one. Trailing bytes in values are ignored,
    as in Kafka. Raises DecodeError.
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
    codec = PAIRS_BY_TYPE.get(record_type)
    if codec is not None:
        return _decode_pair(codec, r, value)
    from kcoord.log.other_codecs import OTHER_PAIRS_BY_TYPE

    other = OTHER_PAIRS_BY_TYPE.get(record_type)
    if other is None:
        return UnknownRecord(record_type, key, value), None
    try:
        return _decode_pair(other, r, value)
    except DecodeError:
        # kcoord does not use records of these types, and their schemas may still change.
        return UnknownRecord(record_type, key, value), None


def _decode_pair(codec: PairCodec, r: Reader, value: bytes | None) -> tuple[Message, Message | None]:
    key = codec.decode_key(r, 0)
    if value is None:
        return key, None
    v = Reader(value)
    _check_version(f"record type {codec.record_type}", v.int16(), 0)
    return key, codec.decode_value(v, 0)


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
    if record_type == GROUP_ASSIGNMENT.record_type:
        return _decode_pair(GROUP_ASSIGNMENT, r, value)
    if record_type != TRANSACTION_LOG:
        return UnknownRecord(record_type, key, value), None
    key_message = decode_transaction_log_key(r, 0)
    if value is None:
        return key_message, None
    v = Reader(value)
    version = _check_version("transaction log record", v.int16(), TRANSACTION_LOG_VERSION_MAX)
    return key_message, decode_transaction_log_value(v, version)


def encode_metadata_record(value: Message) -> bytes:
    """The value bytes of a record of `__cluster_metadata`. Raises EncodeError."""
    if isinstance(value, UnknownRecord):
        if value.value is None:
            raise EncodeError("a metadata record has a value")
        return value.value
    codec = METADATA_BY_CLASS.get(type(value))
    if codec is None:
        from kcoord.log.other_codecs import OTHER_METADATA_BY_CLASS

        codec = OTHER_METADATA_BY_CLASS.get(type(value))
        if codec is None:
            raise EncodeError(f"{type(value).__name__} is not a metadata record")
    w = BytesWriter()
    write_uvarint(w, METADATA_FRAME_VERSION)
    write_uvarint(w, codec.record_type)
    write_uvarint(w, codec.version_max)
    codec.encode(w, value, codec.version_max)
    return w.getvalue()


def decode_metadata_record(value: bytes) -> Message:
    """Decode the value bytes of a record of `__cluster_metadata`; UnknownRecord for an unknown type.

    Raises DecodeError.
    """
    r = Reader(value)
    frame_version = int(r.uvarint())
    if frame_version != METADATA_FRAME_VERSION:
        raise DecodeError(f"metadata frame of version {frame_version}")
    record_type = int(r.uvarint())
    version = int(r.uvarint())
    codec = METADATA_BY_TYPE.get(record_type)
    if codec is None:
        from kcoord.log.other_codecs import OTHER_METADATA_BY_TYPE

        codec = OTHER_METADATA_BY_TYPE.get(record_type)
        if codec is None:
            return UnknownRecord(record_type, b"", value)
    return codec.decode(r, _check_version(f"metadata record type {record_type}", version, codec.version_max))
