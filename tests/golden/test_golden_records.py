"""Records of our logs against bytes that Kafka's Java codec made: typed, and written as the very same bytes again."""

from __future__ import annotations

import pytest

from kcoord.log import other_codecs
from kcoord.log.serde import (
    UnknownRecord,
    decode_metadata_record,
    decode_record,
    decode_transaction_record,
    encode_metadata_record,
    encode_record,
    encode_value,
)
from kcoord.protocol.records.legacy_offset_commit import (
    decode_legacy_offset_commit_key,
    decode_legacy_offset_commit_value,
)
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, Reader, write_uvarint
from tests.golden.test_golden import golden
from tests.harness import schema_json

# The versions that a broker of version 4.3 writes; all others are read.
WRITTEN = {"OffsetCommit": 4, "GroupMetadata": 3, "TransactionLog": 1}
RECORD_TYPES = {
    name.removesuffix("Key"): schema_json.module_of(name).RECORD_TYPE
    for name in schema_json.kafkas()
    if name.endswith("Key")
}
METADATA = [name for name, schema in schema_json.schemas().items() if schema.type == "metadata"]


def cases(name: str) -> list[tuple[int, str, bytes, bytes]]:
    """(value version, style, key bytes, value bytes) as they stand in a log."""
    prefix = RECORD_TYPES[name].to_bytes(2, "big")
    keys = [prefix + body for _, _, _, body in golden()[f"{name}Key"]]
    return [
        (version, style, keys[i % len(keys)], version.to_bytes(2, "big") + body)
        for i, (version, style, _, body) in enumerate(golden()[f"{name}Value"])
    ]


def decode(name: str, key: bytes, value: bytes | None) -> tuple[Message, Message | None]:
    return decode_transaction_record(key, value) if name == "TransactionLog" else decode_record(key, value)


def test_all_record_types_are_there() -> None:
    # 9 and 18 were only in releases for trying out.
    numbers = {number for name, number in RECORD_TYPES.items() if name != "TransactionLog"}
    assert numbers == set(range(24)) - {9, 18}
    assert set(METADATA) == {record.__name__ for record, _ in other_codecs.ALL_METADATA}


@pytest.mark.parametrize("name", sorted(set(RECORD_TYPES) - {"LegacyOffsetCommit"}))
def test_coordinator_records(name: str) -> None:
    for version, style, key_bytes, value_bytes in cases(name):
        what = f"{name} v{version} ({style})"
        key, value = decode(name, key_bytes, value_bytes)
        assert value is not None and type(key).__name__ == f"{name}Key", what
        assert type(value).__name__ == f"{name}Value", what
        assert encode_record(key, None) == (key_bytes, None), what
        assert encode_value(key, value, version) == value_bytes, what
        assert decode(name, key_bytes, None) == (key, None), what
        chosen = encode_record(key, value)[1]
        expiring = name == "OffsetCommit" and version == 1 and chosen is not None and chosen[1] == 1
        if version == WRITTEN.get(name, 0) or expiring:
            assert chosen == value_bytes, what


def test_the_oldest_offset_commits() -> None:
    for _, style, key_bytes, value_bytes in cases("LegacyOffsetCommit"):
        old_key = decode_legacy_offset_commit_key(Reader(key_bytes, 2), 0)
        old = decode_legacy_offset_commit_value(Reader(value_bytes, 2), 0)
        assert encode_record(old_key, old) == (key_bytes, value_bytes), style
        key, value = decode_record(key_bytes, value_bytes)
        assert key == OffsetCommitKey(old_key.group, old_key.topic, old_key.partition)
        assert value == OffsetCommitValue(old.offset, -1, old.metadata, old.commit_timestamp)


@pytest.mark.parametrize("name", METADATA)
def test_metadata_records(name: str) -> None:
    module = schema_json.module_of(name)
    for version, style, _, body in golden()[name]:
        w = BytesWriter()
        for number in (1, module.RECORD_TYPE, version):
            write_uvarint(w, number)
        data = w.getvalue() + body
        record = decode_metadata_record(data)
        assert type(record).__name__ == name
        if version == module.MAX_VERSION:
            assert encode_metadata_record(record) == data, f"{name} v{version} ({style})"


@pytest.mark.parametrize("name", ["ShareGroupMetadata", "StreamsGroupTopology"])
def test_what_nothing_acts_on_may_be_of_any_form(name: str) -> None:
    """A newer version, or what does not fit, is kept byte for byte; of our own types it is an error."""
    for _, _, key_bytes, value_bytes in cases(name):
        for odd in (b"\x00\x07" + value_bytes[2:], value_bytes[:-1], b""):
            key, value = decode_record(key_bytes, odd)
            assert isinstance(key, UnknownRecord) and value is None
            assert key.record_type == RECORD_TYPES[name]
            assert encode_record(key, None) == (key_bytes, odd)
