"""Worst frames of the APIs that read and write records."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from kcoord.protocol import apis
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.wire.compression import CODEC_GZIP, CODEC_LZ4, CODEC_NAMES, CODEC_SNAPPY, CODEC_ZSTD
from kcoord.wire.record_batch import BatchBuilder
from tests.stall.frames import Frame, filled, message
from tests.stall.frames_groups import UNKNOWN, WIDE_INDEXES
from tests.stall.rig import Peer
from tests.stall.shapes import DIFFERENT_MAX, frame_bytes_max
from tests.stall.worlds import DATA, DATA_BATCHES, DATA_PARTITIONS, WIDE, WIDE_PARTITIONS, World

CODECS: Final = (CODEC_GZIP, CODEC_SNAPPY, CODEC_LZ4, CODEC_ZSTD)
# What one batch may become at most, a little less than the limit (decompressed.max.bytes).
BOMB_BYTES: Final = (64 << 20) - 4_096
SMALL_BOMB_BYTES: Final = 4 << 20
# Snappy shrinks to no less than a twentieth, and a batch has at most 1 MiB.
SNAPPY_BOMB_BYTES: Final = 20 << 20
# Empty records of one compressed batch: as many as stay below 1 MiB in every codec.
DENSE_RECORDS: Final = {CODEC_GZIP: 700_000, CODEC_SNAPPY: 280_000, CODEC_LZ4: 280_000, CODEC_ZSTD: 1_300_000}
PLAIN_RECORDS: Final = 110_000
PRODUCER_IDS_FROM: Final = 1_000_000
RECORD_HEADERS: Final = 100_000
# Of each batch that ListOffsets has to look into.
COMPRESSED_RECORDS: Final = 20_000
COMPRESSED_BYTES: Final = 8 << 20
COMPRESSED_PARTITIONS: Final = 16
LATER_MS: Final = 60_000


@cache
def now_ms() -> int:
    return int(time.time() * 1000)


def _empty_records(count: int, later_ms: int = 0) -> BatchBuilder:
    builder = BatchBuilder()
    for _ in range(count):
        builder.append(now_ms() + later_ms, None, None)
    return builder


@cache
def plain(count: int) -> bytes:
    """A batch of records that have nothing in them."""
    return _empty_records(count).build(0, 0)


@cache
def dense(codec: int, count: int) -> bytes:
    """The same, compressed: each record has to be looked at."""
    return _empty_records(count).build(0, 0, codec=codec)


@cache
def headers() -> bytes:
    """A record with very many headers."""
    builder = BatchBuilder()
    builder.append(now_ms(), None, None, [("", None)] * RECORD_HEADERS)
    return builder.build(0, 0)


@cache
def bomb(codec: int, size: int) -> bytes:
    """A batch with one record that becomes very large."""
    builder = BatchBuilder()
    builder.append(now_ms(), None, bytes(size))
    return builder.build(0, 0, codec=codec)


@cache
def producers(count: int) -> list[bytes]:
    """Batches of as many producers whose ids nobody gave out."""
    return [_empty_records(1).build(0, 0, PRODUCER_IDS_FROM + number, 0, 0) for number in range(count)]


def produce(what: str, records: Callable[[World], bytes | list[bytes]], is_one: bool = False) -> Frame:
    """Batches for the partitions of the topic with data: one, or as many as fit."""

    def build(world: World, part: float) -> bytes:
        made = records(world)
        share = min((len(made) + 200) / frame_bytes_max(apis.PRODUCE), 1.0) if is_one else part
        whole = filled(
            apis.PRODUCE, 9, what, "data", "TopicData.PartitionData", "different",
            Name=DATA, Index=range(DATA_PARTITIONS), Records=made,
        )  # fmt: skip
        return whole.build(world, share)

    return Frame(apis.PRODUCE, 9, what, "data", build, changes=True)


def produce_frames() -> list[Frame]:
    frames = [
        filled(apis.PRODUCE, 9, "partitions without records", "data", "TopicData.PartitionData", Name=DATA),
        filled(apis.PRODUCE, 9, "unknown topics", "data", "TopicData", "different", "deep", Name=UNKNOWN),
        produce("batches of one record", lambda world: plain(1)),
        produce("batches of 10,000 records", lambda world: plain(world.size(10_000))),
        produce(f"batches of {PLAIN_RECORDS:,} records", lambda world: plain(world.size(PLAIN_RECORDS))),
        produce("batches of new producers", lambda world: producers(world.size(DIFFERENT_MAX))),
        produce("batches of one producer", lambda world: producers(1)),
        produce("records with 100,000 headers", lambda world: headers()),
    ]
    for codec in CODECS:
        frames += codec_frames(codec)
    return frames


def codec_frames(codec: int) -> list[Frame]:
    name = CODEC_NAMES[codec]
    size = SNAPPY_BOMB_BYTES if codec == CODEC_SNAPPY else BOMB_BYTES
    count = DENSE_RECORDS[codec]

    def one_large(world: World) -> bytes:
        return bomb(codec, world.size(size))

    def small(world: World) -> bytes:
        return bomb(codec, world.size(SMALL_BOMB_BYTES))

    def many_records(world: World) -> bytes:
        return dense(codec, world.size(count))

    return [
        produce(f"{name}, a batch of {size >> 20} MiB", one_large, is_one=True),
        produce(f"{name}, batches of {size >> 20} MiB", one_large),
        produce(f"{name}, batches of 4 MiB", small),
        produce(f"{name}, {count:,} records", many_records, is_one=True),
        produce(f"{name}, batches of {count:,} records", many_records),
    ]


def _write(peer: Peer, index: int, batch: bytes) -> None:
    data = [TopicProduceData(DATA, bytes(16), [PartitionProduceData(index, batch)])]
    peer.ask(apis.PRODUCE, 9, ProduceRequest(None, -1, 10_000, data))


def _many_records(peer: Peer) -> None:
    """The last batch of some partitions is of a later time, and has many records in few bytes."""
    for index in range(COMPRESSED_PARTITIONS):
        _write(peer, index, _empty_records(COMPRESSED_RECORDS, LATER_MS).build(0, 0, codec=CODEC_ZSTD))


def _large_records(peer: Peer) -> None:
    """The same with a record that becomes very large."""
    builder = BatchBuilder()
    builder.append(now_ms() + LATER_MS, None, bytes(COMPRESSED_BYTES))
    for index in range(COMPRESSED_PARTITIONS):
        _write(peer, index, builder.build(0, 0, codec=CODEC_ZSTD))


def _fetch(topic: str, partitions: int, bytes_max: int, repeat: int = 1, session_epoch: int = -1) -> FetchRequest:
    wanted = [
        FetchPartition(number % partitions, -1, 0, partition_max_bytes=bytes_max)
        for number in range(partitions * repeat)
    ]
    return FetchRequest(
        replica_id=-1, max_wait_ms=500, min_bytes=1, max_bytes=bytes_max, session_id=0,
        session_epoch=session_epoch, topics=[FetchTopic(topic, partitions=wanted)],
    )  # fmt: skip


def everything() -> FetchRequest:
    """All that one answer may have of the topic with data."""
    return _fetch(DATA, DATA_PARTITIONS, 100 << 20)


def fetch_frames() -> list[Frame]:
    fetch, partitions = apis.FETCH, "Topics.Partitions"
    more = range(WIDE_PARTITIONS, WIDE_PARTITIONS + DIFFERENT_MAX)
    return [
        message(fetch, 12, "55 MB", "data", lambda world: everything()),
        message(fetch, 12, "64 partitions, 230 times", "data", lambda world: _fetch(
            DATA, DATA_PARTITIONS, 100 << 20, 230)),
        message(fetch, 12, "64 partitions, a byte of each, 230 times", "data", lambda world: _fetch(
            DATA, DATA_PARTITIONS, 1, 230)),
        message(fetch, 12, "8,000 empty partitions", "topics", lambda world: _fetch(WIDE, world.size(
            WIDE_PARTITIONS), 1 << 20)),
        message(fetch, 12, "8,000 empty partitions, a session", "topics", lambda world: _fetch(WIDE, world.size(
            WIDE_PARTITIONS), 1 << 20, session_epoch=0)),
        filled(fetch, 4, "unknown partitions", "topics", partitions, "different", Topic=WIDE, Partition=more),
        filled(fetch, 12, "unknown partitions, a session", "topics", partitions, "different", Topic=WIDE,
               SessionEpoch=0, Partition=more),
        filled(fetch, 12, "unknown topics", "topics", "Topics", "different", "deep", Topic=UNKNOWN),
        filled(fetch, 12, "topics to forget", "topics", "ForgottenTopicsData", "different", "deep", Topic=UNKNOWN,
               SessionEpoch=0),
    ]  # fmt: skip


def other_frames() -> list[Frame]:
    listed, deleted, partitions = apis.LIST_OFFSETS, apis.DELETE_RECORDS, "Topics.Partitions"
    data: dict[str, Any] = {"Name": DATA, "PartitionIndex": range(DATA_PARTITIONS)}
    wide: dict[str, Any] = {"Name": WIDE, "PartitionIndex": WIDE_INDEXES}
    # Each partition once: what is named twice is refused.
    once = 1.05e-3
    steps = range(DATA_PARTITIONS * DATA_BATCHES)
    return [
        filled(listed, 6, "a partition, as often as fits", "topics", partitions, Name=WIDE),
        filled(listed, 6, "partitions, each twice", "topics", partitions, "twice", Name=WIDE,
               PartitionIndex=range(DIFFERENT_MAX)),
        filled(listed, 6, "8,000 partitions", "topics", partitions, "different", share=0.13, **wide),
        filled(listed, 6, "unknown topics", "topics", "Topics", "different", "deep", Name=UNKNOWN),
        filled(listed, 7, "64 partitions by time", "data", partitions, "different", share=once, **data, Timestamp=1),
        filled(listed, 7, "many compressed records by time", "data", partitions, "different", share=once,
               prepare=_many_records, **data, Timestamp=now_ms() + LATER_MS),
        filled(listed, 7, "the largest time, many compressed records", "data", partitions, "different", share=once,
               prepare=_many_records, **data, Timestamp=-3),
        filled(listed, 7, "large compressed records by time", "data", partitions, "different", share=once,
               prepare=_large_records, **data, Timestamp=now_ms() + LATER_MS),
        filled(listed, 7, "8,000 partitions by time", "topics", partitions, "different", share=0.13, **wide,
               Timestamp=1),
        filled(deleted, 2, "64 partitions, a step each time", "data", partitions, "different", changes=True,
               Name=DATA, PartitionIndex=[step % DATA_PARTITIONS for step in steps],
               Offset=[step // DATA_PARTITIONS for step in steps]),
        filled(deleted, 2, "nothing to delete", "topics", partitions, "different", **wide, Offset=-1),
        filled(deleted, 2, "unknown topics", "topics", "Topics", "different", "deep", Name=UNKNOWN),
        filled(apis.OFFSET_FOR_LEADER_EPOCH, 4, "8,000 partitions, again and again", "topics", partitions,
               "different", Topic=WIDE, Partition=WIDE_INDEXES),
        filled(apis.OFFSET_FOR_LEADER_EPOCH, 4, "unknown topics", "topics", "Topics", "different", "deep",
               Topic=UNKNOWN),
    ]  # fmt: skip


def data_frames() -> list[Frame]:
    return produce_frames() + fetch_frames() + other_frames()
