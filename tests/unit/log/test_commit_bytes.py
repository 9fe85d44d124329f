"""Commits that are read in place: the same fields as the general decoders find, and nothing that those refuse."""

from __future__ import annotations

import random

import pytest

from kcoord.log.commit_bytes import SHORT_TEXT_MAX, CommitBytes
from kcoord.log.serde import decode_record, encode_record, encode_value
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.wire.primitives import ZERO_UUID, DecodeError

TOPIC_ID = bytes(range(16))
# In front of the bytes, so that positions are not those of a record of its own.
BEFORE = b"\x07\x07\x07"


def read(key: bytes, value: bytes) -> tuple[object, ...] | None:
    """The fields, if the layout is one of those that are read in place."""
    data = BEFORE + key + value
    commit = CommitBytes()
    at = len(BEFORE)
    if not commit.read_key(data, at, len(key)) or not commit.read_value(data, at + len(key), len(value)):
        return None
    topic_id = data[commit.topic_id_at : commit.topic_id_at + 16] if commit.topic_id_at >= 0 else ZERO_UUID
    return (
        data[commit.group_at : commit.group_end],
        data[commit.topic_at : commit.topic_end],
        commit.partition,
        commit.offset,
        commit.leader_epoch,
        data[commit.text_at : commit.text_end],
        commit.timestamp_ms,
        topic_id,
    )


def decoded(key: bytes, value: bytes) -> tuple[object, ...]:
    k, v = decode_record(key, value)
    assert isinstance(k, OffsetCommitKey) and isinstance(v, OffsetCommitValue)
    return (
        k.group.encode(),
        k.topic.encode(),
        k.partition,
        v.offset,
        v.leader_epoch,
        v.metadata.encode(),
        v.commit_timestamp,
        v.topic_id,
    )


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("size", [0, 1, SHORT_TEXT_MAX, SHORT_TEXT_MAX + 1, 300])
def test_the_layouts_that_are_read_in_place(version: int, size: int) -> None:
    for topic_id in (ZERO_UUID, TOPIC_ID) if version == 4 else (ZERO_UUID,):
        key = OffsetCommitKey("gruppe-ü", "orders", 7)
        value = OffsetCommitValue(1 << 40, 3, "m" * size, 1_760_000_000_000, -1, topic_id)
        key_bytes, _ = encode_record(key, None)
        value_bytes = encode_value(key, value, version)
        found = read(key_bytes, value_bytes)
        if version == 4 and size > SHORT_TEXT_MAX:
            assert found is None
        else:
            assert found == decoded(key_bytes, value_bytes)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_older_values_are_not(version: int) -> None:
    key = OffsetCommitKey("g", "t", 0)
    assert read(encode_record(key, None)[0], encode_value(key, OffsetCommitValue(1), version)) is None


@pytest.mark.parametrize("seed", range(4))
def test_damaged_bytes_are_refused_or_read_as_the_general_decoders_read_them(seed: int) -> None:
    chance = random.Random(seed)
    counts = {True: 0, False: 0}
    for _ in range(3_000):
        key = OffsetCommitKey("g" * chance.randrange(4), "t" * chance.randrange(4), chance.randrange(99))
        topic_id = TOPIC_ID if chance.random() < 0.5 else ZERO_UUID
        value = OffsetCommitValue(chance.randrange(1 << 50), -1, "m" * chance.randrange(9), 5, -1, topic_id)
        key_bytes = damage(chance, encode_record(key, None)[0])
        value_bytes = damage(chance, encode_value(key, value, chance.choice((3, 4))))
        found = read(key_bytes, value_bytes)
        counts[found is not None] += 1
        if found is None or key_bytes[:2] != b"\x00\x01":
            continue
        try:
            assert found == decoded(key_bytes, value_bytes)
        except DecodeError as error:
            # What callers check.
            assert "UTF-8" in str(error)
    assert min(counts.values()) > 300


def damage(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randrange(2)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed[: chance.randrange(len(changed) + 1)] if chance.random() < 0.1 else changed)
