"""A server compacts its logs while it serves, and finds everything again."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from kcoord.core.outcome import Marker
from kcoord.engine.markers import marker_batch
from kcoord.protocol import apis
from kcoord.protocol.delete_topics import DeleteTopicsRequest
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.server.maintenance import cleaning
from kcoord.wire.record_batch import BatchBuilder, decode_records
from tests.harness.record_batches import parse_batches
from tests.unit.server.maintenance.test_rounds import configure, create, fetch, files, now_ms
from tests.unit.server.test_server import WAIT_S, Peer, Rig, event, serving, until

# A server and its processes, at their own pace.
pytestmark = pytest.mark.slow

# So many commits are 80 MB.
COMMITS_MAX = 20_000
FAST = ("log.cleaner.backoff.ms=30", "log.history=0", "log.sync=os")


async def put(peer: Peer, topic: str, pairs: dict[bytes, bytes | None]) -> None:
    builder = BatchBuilder()
    for key, value in pairs.items():
        builder.append(now_ms(), key, value)
    data = PartitionProduceData(0, builder.build(0, -1))
    request = ProduceRequest(None, -1, 1000, [TopicProduceData(topic, partition_data=[data])])
    answer = await peer.ask(apis.PRODUCE, 9, request)
    assert answer.responses[0].partition_responses[0].error_code == 0


async def read_all(peer: Peer, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Key and value of every record, as a consumer from the beginning gets them."""
    found: list[tuple[bytes | None, bytes | None]] = []
    offset = 0
    while True:
        answer = await fetch(peer, topic, offset)
        assert answer.error_code == 0
        if offset >= answer.high_watermark:
            return found
        for header in parse_batches(answer.records):
            for record in decode_records(answer.records, header.pos, header, 1 << 24):
                if record.offset >= offset:
                    found.append((record.key, record.value))
            offset = header.last_offset + 1


async def commit(peer: Peer, group: str, offset: int, note: str = "") -> None:
    partition = OffsetCommitRequestPartition(0, offset, -1, note)
    topics = [OffsetCommitRequestTopic("t", bytes(16), [partition])]
    answer = await peer.ask(apis.OFFSET_COMMIT, 8, OffsetCommitRequest(group, -1, "", None, -1, topics))
    assert answer.topics[0].partitions[0].error_code == 0


async def committed(peer: Peer, group: str) -> int:
    request = OffsetFetchRequest(group, [OffsetFetchRequestTopic("t", [0])])
    answer = await peer.ask(apis.OFFSET_FETCH, 5, request)
    return int(answer.topics[0].partitions[0].committed_offset)


async def until_idle(rig: Rig) -> None:
    """Until the cleaner has looked at everything a few times and found nothing to do."""
    cleaner = rig.server.background().maintenance.cleaner
    idle_rounds = 0
    while idle_rounds < 50:
        idle_rounds = 0 if cleaner.busy else idle_rounds + 1
        await asyncio.sleep(0.01)


def size_of(data: Path, topic: str) -> int:
    return sum(path.stat().st_size for path in (data / f"{topic}-0").glob("*.log"))


async def test_a_compacted_topic_shrinks_to_its_newest_values(tmp_path: Path) -> None:
    async with serving(tmp_path, *FAST) as rig:
        peer = await rig.connect()
        await create(peer, "c", cleanup_policy="compact", segment_bytes="1048576", min_cleanable_dirty_ratio="0.1")
        newest: dict[bytes, bytes] = {}
        for number in range(12):
            for key in (b"a", b"b", b"c"):
                newest[key] = b"%d" % number + key * 200_000
                await put(peer, "c", {key: newest[key]})
        await until(lambda: size_of(tmp_path, "c") < 2_500_000, "the log to shrink")
        found = await read_all(peer, "c")
        assert dict(found) == newest and len(found) < 36
        # The files are in place a moment before the log line that tells of them.
        await until(lambda: bool(event(rig, "compacted")), "the log line of it")
        assert not event(rig, "compaction_failed")
        await until_idle(rig)
    async with serving(tmp_path, *FAST) as rig:
        peer = await rig.connect()
        assert dict(await read_all(peer, "c")) == newest
        await until_idle(rig)
        # What was cleaned is known to be.
        assert not event(rig, "compacted")
        assert (tmp_path / "cleaner-offset-checkpoint").read_text().splitlines()[2].startswith("c 0 ")


async def test_tombstones_go_and_old_segments_are_closed_for_it(tmp_path: Path) -> None:
    async with serving(tmp_path, *FAST) as rig:
        peer = await rig.connect()
        await create(
            peer, "c", cleanup_policy="compact", delete_retention_ms="100", max_compaction_lag_ms="200",
            min_compaction_lag_ms="0",
        )  # fmt: skip
        await put(peer, "c", {b"a": b"1", b"b": b"1"})
        await put(peer, "c", {b"a": None})
        await until(lambda: len(event(rig, "compacted")) > 0, "the active segment to be closed and cleaned")
        await put(peer, "c", {b"b": b"2"})
        # One cleaning gives the tombstone its time, a later one that has something to do takes it.
        end = time.monotonic() + WAIT_S
        while (b"a", None) in await read_all(peer, "c"):
            assert time.monotonic() < end, "the tombstone is still there"
            await asyncio.sleep(0.1)
            await put(peer, "c", {b"b": b"3"})
        found = await read_all(peer, "c")
        assert b"a" not in dict(found) and found[-1] in ((b"b", b"2"), (b"b", b"3"))


async def fill_offsets(rig: Rig) -> Peer:
    peer = await rig.connect()
    await create(peer, "t")
    await configure(peer, "__consumer_offsets", segment_bytes="1048576")
    for number in range(1, 1201):
        await commit(peer, f"g{number % 3}", number, "m" * 4000)
    return peer


async def test_committed_offsets_survive_their_compaction(tmp_path: Path) -> None:
    async with serving(tmp_path, *FAST) as rig:
        peer = await fill_offsets(rig)
        await until(lambda: size_of(tmp_path, "__consumer_offsets") < 2_500_000, "the log to shrink")
        assert [await committed(peer, f"g{i}") for i in range(3)] == [1200, 1198, 1199]
    async with serving(tmp_path, *FAST) as rig:
        peer = await rig.connect()
        assert [await committed(peer, f"g{i}") for i in range(3)] == [1200, 1198, 1199]
        await commit(peer, "g0", 5)
        assert await committed(peer, "g0") == 5


@pytest.mark.parametrize(("limit", "is_kept"), [("1073741824", True), ("1500000", False)])
async def test_history_is_left_alone_up_to_its_size(tmp_path: Path, limit: str, is_kept: bool) -> None:
    settings = ("log.cleaner.backoff.ms=30", "log.sync=os", f"log.history.bytes={limit}")
    async with serving(tmp_path, *settings) as rig:
        await fill_offsets(rig)
        if is_kept:
            await until_idle(rig)
            assert not event(rig, "compacted") and size_of(tmp_path, "__consumer_offsets") > 4_500_000
        else:
            await until(lambda: bool(event(rig, "compacted")), "compaction")
            assert len(files(tmp_path, "__consumer_offsets")) > 1


async def test_offsets_that_grow_fast_are_not_left_until_the_backoff_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "HURRY_BYTES", 3_000_000)
    monkeypatch.setattr(cleaning, "LOOK_S", 0.01)
    settings = ("log.cleaner.backoff.ms=3600000", "log.history=0", "log.sync=os")
    async with serving(tmp_path, *settings) as rig:
        peer = await fill_offsets(rig)
        # A look just after a segment was closed finds nothing to clean, and the next one comes after as much growth.
        number = 0
        while not event(rig, "compacted") and number < COMMITS_MAX:
            number += 1
            await commit(peer, f"g{number % 3}", number, "m" * 4000)
        await until(lambda: bool(event(rig, "compacted")), "compaction")


async def test_damage_stops_the_cleaning_of_one_log_only(tmp_path: Path) -> None:
    configs: Any = {"cleanup_policy": "compact", "segment_bytes": "1048576", "min_cleanable_dirty_ratio": "0.1"}
    async with serving(tmp_path, "log.cleaner.enable=false") as rig:
        peer = await rig.connect()
        for topic in ("bad", "good"):
            await create(peer, topic, **configs)
            for number in range(6):
                await put(peer, topic, {b"a": b"%d" % number + bytes(600_000)})
    path = tmp_path / "bad-0" / files(tmp_path, "bad")[1]
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    async with serving(tmp_path, *FAST) as rig:
        peer = await rig.connect()
        await until(lambda: bool(event(rig, "compacted")), "the other log to be compacted")
        await until(lambda: bool(event(rig, "log_damaged")), "a line about the damage")
        assert [line["log"] for line in event(rig, "compacted")] == ["good-0"]
        assert len(event(rig, "log_damaged")) == 1 and len(files(tmp_path, "bad")) == 6
        assert path.read_bytes() == data


async def test_an_open_transaction_is_not_tried_again_and_again(tmp_path: Path) -> None:
    async with serving(tmp_path, "log.cleaner.enable=false") as rig:
        peer = await rig.connect()
        await create(peer, "c", cleanup_policy="compact", segment_bytes="1048576", min_cleanable_dirty_ratio="0")
        for number in range(4):
            await put(peer, "c", {b"a": b"%d" % number + bytes(600_000)})
    builder = BatchBuilder()
    builder.append(now_ms(), b"a", b"0")
    path = tmp_path / "c-0" / files(tmp_path, "c")[0]
    path.write_bytes(builder.build(0, 0, 7, 0, 0, True))
    async with serving(tmp_path, *FAST) as rig:
        await until(lambda: bool(event(rig, "compacted")), "the first try")
        await until_idle(rig)
        assert len(event(rig, "compacted")) == 1 and len(files(tmp_path, "c")) == 4


async def test_a_transaction_longer_than_a_piece_holds_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen from the first pieces it is open: its marker is in a later segment."""
    monkeypatch.setattr(cleaning, "PIECE_BYTES", 1)
    async with serving(tmp_path, "log.cleaner.enable=false") as rig:
        peer = await rig.connect()
        await create(peer, "c", cleanup_policy="compact", segment_bytes="1048576", min_cleanable_dirty_ratio="0")
        for number in range(6):
            await put(peer, "c", {b"a": b"%d" % number + bytes(600_000)})
    builder = BatchBuilder()
    builder.append(now_ms(), b"a", b"0")
    names = files(tmp_path, "c")
    (tmp_path / "c-0" / names[0]).write_bytes(builder.build(0, 0, 7, 0, 0, True))
    marker = marker_batch(Marker("c", 0, 7, 0, True, 0, 0), 4, 0, now_ms())
    (tmp_path / "c-0" / names[4]).write_bytes(marker)
    async with serving(tmp_path, *FAST) as rig:
        await until(lambda: bool(event(rig, "compacted")) and event(rig, "compacted")[-1]["end"] == 5, "compaction")
        await until_idle(rig)
        # The first try was one piece, and the second one the whole log.
        assert [line["end"] for line in event(rig, "compacted")] == [0, 5]
        assert len(files(tmp_path, "c")) < 6


async def test_topics_may_be_deleted_and_the_server_stopped_meanwhile(tmp_path: Path) -> None:
    for turn in range(6):
        async with serving(tmp_path, "log.cleaner.backoff.ms=1", "log.sync=os") as rig:
            peer = await rig.connect()
            await create(peer, "c", cleanup_policy="compact", segment_bytes="1048576", min_cleanable_dirty_ratio="0")
            for number in range(8):
                await put(peer, "c", {b"a": b"%d" % number + bytes(700_000)})
            await asyncio.sleep(0.05 * turn)
            if turn % 2:
                await peer.ask(apis.DELETE_TOPICS, 5, DeleteTopicsRequest([], ["c"], 1000))
                await asyncio.sleep(0.2)
                assert not rig.ended.done()
        assert rig.ended.exception() is None
        if not turn % 2:
            async with serving(tmp_path, "log.cleaner.enable=false") as rig:
                peer = await rig.connect()
                assert (await read_all(peer, "c"))[-1] == (b"a", b"7" + bytes(700_000))
                await peer.ask(apis.DELETE_TOPICS, 5, DeleteTopicsRequest([], ["c"], 1000))
