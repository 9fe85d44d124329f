"""Loading: the short way from a record's bytes to the state does what replaying its messages does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord.core.config import CoreConfig
from kcoord.core.coordinator import Core
from kcoord.core.outcome import LogId
from kcoord.engine.loader import LogLoader
from kcoord.log.errors import LogDamaged
from kcoord.log.log_config import LogConfig
from kcoord.log.partition_log import PartitionLog
from kcoord.log.serde import decode_record, encode_record
from kcoord.log.storage import MemoryStorage
from kcoord.protocol.records.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from kcoord.protocol.records.offset_commit import (
    OffsetCommitKey,
    OffsetCommitValue,
    encode_offset_commit_value,
)
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.wire.compression import CODEC_GZIP, CODEC_NONE, CODEC_ZSTD
from kcoord.wire.primitives import BytesWriter, DecodeError, write_int16
from kcoord.wire.record_batch import BatchBuilder

LOG = LogId("__consumer_offsets", 0)
TOPIC_ID = b"\x07" * 16
KeyValue = tuple[bytes, bytes | None]


def new_core() -> Core:
    """A core that knows the internal topic, and a topic `known` with an id."""
    core = Core(CoreConfig())
    for number, (name, topic_id) in enumerate((("__consumer_offsets", b"\x01" * 16), ("known", TOPIC_ID))):
        core.replay(core.metadata_log, 2 * number, None, TopicRecord(name, topic_id))
        core.replay(core.metadata_log, 2 * number + 1, None, PartitionRecord(0, topic_id, [1], [1]))
    return core


def replayed(records: list[KeyValue]) -> Core:
    core = new_core()
    for offset, (key, value) in enumerate(records):
        core.replay(LOG, offset, *decode_record(key, value))
    return core


def log_of(batches: list[tuple[list[KeyValue], int]], segment_bytes: int = 1 << 30) -> PartitionLog:
    storage = MemoryStorage()
    storage.make_dir("__consumer_offsets-0")
    config = LogConfig(segment_bytes=segment_bytes)
    log = PartitionLog(storage, "__consumer_offsets", 0, b"\x01" * 16, config)
    for records, codec in batches:
        builder = BatchBuilder()
        for key, value in records:
            builder.append(1000 + log.end_offset, key, value, [("why", b"x")] if len(key) % 3 == 0 else None)
        base = log.end_offset
        log.append(builder.build(base, 0, codec=codec), base, base + len(records) - 1, 1000)
    log.flush()
    return log


def loaded(log: PartitionLog) -> tuple[Core, int]:
    core = new_core()
    return core, LogLoader(core, LOG).load_log(log, 0)


def value_bytes(value: OffsetCommitValue, version: int) -> bytes:
    w = BytesWriter()
    write_int16(w, version)
    encode_offset_commit_value(w, value, version)
    return w.getvalue()


NAMES = st.sampled_from(["a", "b", "known", "", "grüße", "n" * 200]) | st.text(max_size=8).filter(
    lambda text: text.encode("utf-8", "replace").decode() == text
)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 5)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-1, 3)


@st.composite
def commits(draw: st.DrawFn) -> KeyValue:
    key = OffsetCommitKey(draw(NAMES), draw(NAMES), draw(INT32))
    key_bytes, _ = encode_record(key, None)
    key_bytes += draw(st.sampled_from([b"", b"", b"", b"trailing"]))
    if draw(st.integers(0, 9)) == 0:
        return key_bytes, None
    metadata = draw(NAMES | st.sampled_from(["m" * 125, "m" * 126, "m" * 127, "m" * 128, "m" * 30000]))
    topic_id = draw(st.sampled_from([b"\0" * 16, TOPIC_ID, b"\x09" * 16]))
    version = draw(st.sampled_from([0, 1, 2, 3, 3, 4, 4, 4, 4]))
    value = OffsetCommitValue(draw(INT64), draw(INT32), metadata, draw(INT64), draw(INT64), topic_id)
    return key_bytes, value_bytes(value, version) + draw(st.sampled_from([b"", b"", b"", b"\x00more"]))


@st.composite
def groups(draw: st.DrawFn) -> KeyValue:
    key = GroupMetadataKey(draw(NAMES))
    value = GroupMetadataValue("consumer", draw(st.integers(0, 9)), None, None, 5, [])
    key_bytes, encoded = encode_record(key, draw(st.sampled_from([value, None])))
    return key_bytes, encoded


UNKNOWN = st.tuples(st.sampled_from([b"\x00\x63key", b"\x00\x0b\x00\x01g"]), st.none() | st.binary(max_size=40))
BATCHES = st.lists(
    st.tuples(
        st.lists(commits() | commits() | commits() | groups() | UNKNOWN, min_size=1, max_size=8),
        st.sampled_from([CODEC_NONE, CODEC_NONE, CODEC_GZIP, CODEC_ZSTD]),
    ),
    max_size=8,
)


@settings(max_examples=300, deadline=None)
@given(BATCHES)
@pytest.mark.slow
def test_loading_is_replaying(batches: list[tuple[list[KeyValue], int]]) -> None:
    records = [record for group, _ in batches for record in group]
    expected = replayed(records)
    core, count = loaded(log_of(batches, segment_bytes=2000))
    assert count == len(records)
    assert core.digest() == expected.digest()
    assert core.offsets.count == expected.offsets.count
    assert list(core.groups.groups) == list(expected.groups.groups)
    assert core.groups.last_end_offset == expected.groups.last_end_offset


@settings(max_examples=300, deadline=None)
@given(commits(), st.integers(0, 400), st.integers(0, 255), st.integers(0, 400))
def test_what_replaying_refuses_loading_refuses(record: KeyValue, at: int, byte: int, cut: int) -> None:
    """One byte of key or value changed, or the value cut: the same state or the same refusal."""
    key, value = record
    if at < len(key):
        key = key[:at] + bytes([byte]) + key[at + 1 :]
    elif value is not None:
        at -= len(key)
        value = (value[:at] + bytes([byte]) + value[at + 1 :])[: max(len(value) - cut, 0)]
    try:
        expected = replayed([(key, value)]).digest()
    except DecodeError as error:
        with pytest.raises(LogDamaged, match=r"offset 0\)") as refused:
            loaded(log_of([([(key, value)], CODEC_NONE)]))
        assert refused.value.reason == str(error)
        return
    assert loaded(log_of([([(key, value)], CODEC_NONE)]))[0].digest() == expected


def test_names_are_kept_once() -> None:
    value = OffsetCommitValue(1, 2, "where I was", 3, -1, TOPIC_ID)
    records = [
        encode_record(OffsetCommitKey(f"group-{number}", topic, number), value)
        for topic in ("known", "other")
        for number in range(3)
    ]
    core, _ = loaded(log_of([([record], CODEC_NONE) for record in records]))
    tables = core.offsets.by_group
    assert len({id(name) for table in tables.values() for name in table}) == 2
    stored = [entry for table in tables.values() for of_topic in table.values() for entry in of_topic.values()]
    assert len({id(entry.metadata) for entry in stored}) == 1
    assert len({id(entry.topic_id) for entry in stored if entry.record_offset < 3}) == 1
    assert all(group_id is core.groups.groups[group_id].group_id for group_id in tables)


def test_damage_is_named_by_file_offset_and_position() -> None:
    records = [encode_record(OffsetCommitKey("g", "t", n), OffsetCommitValue(n)) for n in range(4)]
    log = log_of([([record], CODEC_NONE) for record in records])
    file = log.storage.open("__consumer_offsets-0/00000000000000000000.log")
    data = bytearray(file.read_at(0, 1 << 20))
    size = len(data) // 4
    data[2 * size + 70] ^= 1
    file.truncate(0)
    file.append(bytes(data))
    with pytest.raises(LogDamaged) as refused:
        loaded(log)
    assert (refused.value.offset, refused.value.position) == (2, 2 * size)
    assert refused.value.file == "__consumer_offsets-0/00000000000000000000.log"


def test_an_epoch_has_the_time_of_its_record() -> None:
    """Retention may count from then, also after a restart."""
    storage = MemoryStorage()
    storage.make_dir("__consumer_offsets-0")
    log = PartitionLog(storage, "__consumer_offsets", 0, b"\x01" * 16, LogConfig())
    builder = BatchBuilder()
    for epoch in (1, 2):
        key, value = encode_record(ConsumerGroupMetadataKey("g"), ConsumerGroupMetadataValue(epoch, 0))
        builder.append(5000 + epoch, key, value, None)
    log.append(builder.build(0, 0, codec=CODEC_NONE), 0, 1, 5002)
    log.write_pending()
    core, _ = loaded(log)
    assert core.groups.consumer_groups["g"].epoch_time_ms == 5002
