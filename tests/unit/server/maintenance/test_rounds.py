"""A server looks after its logs while it serves."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kcoord.log.directory import LOG_START_OFFSETS
from kcoord.log.partition_log import PartitionLog
from kcoord.log.retention import plan_retention
from kcoord.log.storage import DiskStorage
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kcoord.protocol.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kcoord.protocol.delete_topics import DeleteTopicsRequest
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kcoord.protocol.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kcoord.protocol.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.server.maintenance import cleaning
from kcoord.server.maintenance import rounds as maintenance
from kcoord.wire.record_batch import BatchBuilder
from tests.unit.server.test_server import Peer, event, serving, until

# A server and its processes, at their own pace.
pytestmark = pytest.mark.slow

OFFSET_OUT_OF_RANGE = 1
SET = 0
TOPIC = 2


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def create(peer: Peer, topic: str, **configs: str) -> None:
    made = [CreatableTopicConfig(name.replace("_", "."), value) for name, value in configs.items()]
    answer = await peer.ask(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic(topic, 1, 1, [], made)]))
    assert answer.topics[0].error_code == 0, answer.topics[0].error_message


async def configure(peer: Peer, topic: str, **configs: str) -> None:
    settings = [AlterableConfig(name.replace("_", "."), SET, value) for name, value in configs.items()]
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(TOPIC, topic, settings)], False)
    answer = await peer.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, request)
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message


async def produce(peer: Peer, topic: str, timestamp: int, size: int = 100, key: bytes | None = None) -> int:
    builder = BatchBuilder()
    builder.append(timestamp, key, bytes(size))
    data = PartitionProduceData(0, builder.build(0, -1))
    request = ProduceRequest(None, -1, 1000, [TopicProduceData(topic, partition_data=[data])])
    answer = await peer.ask(apis.PRODUCE, 9, request)
    partition = answer.responses[0].partition_responses[0]
    assert partition.error_code == 0, partition
    return int(partition.base_offset)


async def earliest(peer: Peer, topic: str) -> int:
    request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(topic, [ListOffsetsPartition(0, -1, -2)])])
    answer = await peer.ask(apis.LIST_OFFSETS, 6, request)
    return int(answer.topics[0].partitions[0].offset)


async def fetch(peer: Peer, topic: str, offset: int) -> Any:
    asked = FetchTopic(topic, partitions=[FetchPartition(0, -1, offset, -1, -1, 1 << 24)])
    request = FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 24, topics=[asked])
    answer = await peer.ask(apis.FETCH, 11, request)
    return answer.responses[0].partitions[0]


def files(data: Path, topic: str, suffix: str = ".log") -> list[str]:
    return sorted(path.name for path in (data / f"{topic}-0").glob(f"*{suffix}"))


async def test_old_segments_go_while_the_server_runs(tmp_path: Path) -> None:
    async with serving(tmp_path, "log.retention.check.interval.ms=50") as rig:
        peer = await rig.connect()
        await create(peer, "old", segment_bytes="1048576", retention_ms="3600000")
        day_ago = now_ms() - 24 * 3600 * 1000
        for timestamp in (day_ago, day_ago, now_ms(), now_ms()):
            await produce(peer, "old", timestamp, 600_000)
        await until(lambda: len(files(tmp_path, "old")) == 2, "two segments")
        await until(lambda: bool(event(rig, "segments_removed")), "the line in the log")
        assert await earliest(peer, "old") == 2
        assert (await fetch(peer, "old", 1)).error_code == OFFSET_OUT_OF_RANGE
        assert len((await fetch(peer, "old", 2)).records) > 600_000
    async with serving(tmp_path) as rig:
        peer = await rig.connect()
        assert await earliest(peer, "old") == 2
        assert await produce(peer, "old", now_ms()) == 4


async def test_nothing_happens_to_the_files_once_the_server_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that removes segments does not hear that its task was cancelled, and the next server opens them."""
    monkeypatch.setattr(cleaning, "REMOVAL_PAUSE_S", 0.3)
    monkeypatch.setattr(cleaning, "LARGE_FILE_BYTES", 0)

    patient = "shutdown.deadline.ms=3600000"
    async with serving(tmp_path, "log.retention.check.interval.ms=50", patient) as rig:
        peer = await rig.connect()
        await create(peer, "old", segment_bytes="1048576", retention_ms="-1")
        for timestamp in (1000, 1000, 1000, 1000, now_ms()):
            await produce(peer, "old", timestamp, 600_000)
        await configure(peer, "old", retention_ms="3600000")
        await until(lambda: len(files(tmp_path, "old")) < 5, "the first to go")
    assert files(tmp_path, "old") == [f"{4:020d}.log"]
    async with serving(tmp_path) as rig:
        assert await earliest(await rig.connect(), "old") == 4


async def test_a_topic_of_old_records_becomes_empty_and_accepts_new_ones(tmp_path: Path) -> None:
    async with serving(tmp_path, "log.retention.check.interval.ms=50", "log.retention.ms=3600000") as rig:
        peer = await rig.connect()
        await create(peer, "gone")
        for _ in range(3):
            await produce(peer, "gone", 1000)
        await until(lambda: files(tmp_path, "gone") == ["00000000000000000003.log"], "one empty file")
        assert await earliest(peer, "gone") == 3
        assert await produce(peer, "gone", now_ms()) == 3
        await asyncio.sleep(0.2)
        assert files(tmp_path, "gone") == ["00000000000000000003.log"]
        assert await earliest(peer, "gone") == 3
    async with serving(tmp_path) as rig:
        peer = await rig.connect()
        assert await earliest(peer, "gone") == 3
        assert await produce(peer, "gone", now_ms()) == 4


async def test_size_is_kept_and_compacted_topics_do_not_grow_old(tmp_path: Path) -> None:
    settings = ("log.retention.check.interval.ms=50", "log.retention.ms=3600000", "log.retention.bytes=1500000")
    async with serving(tmp_path, *settings) as rig:
        peer = await rig.connect()
        await create(peer, "sized", segment_bytes="1048576", retention_ms="-1")
        await create(peer, "kept", segment_bytes="1048576", cleanup_policy="compact")
        for index in range(6):
            await produce(peer, "sized", 1000, 600_000)
            await produce(peer, "kept", 1000, 600_000, b"%d" % index)
        await until(lambda: len(files(tmp_path, "sized")) == 3, "three segments")
        assert await earliest(peer, "sized") == 3
        assert await earliest(peer, "kept") == 0 and len(files(tmp_path, "kept")) == 6


@pytest.mark.parametrize("sync", ["memory", "os"])
async def test_in_memory_and_while_topics_are_deleted(tmp_path: Path, sync: str) -> None:
    settings = (f"log.sync={sync}", "log.retention.check.interval.ms=1", "log.retention.ms=1000")
    async with serving(tmp_path, *settings) as rig:
        peer = await rig.connect()
        for index in range(30):
            name = f"t{index % 3}"
            await create(peer, name)
            for _ in range(index % 5):
                await produce(peer, name, 1000)
            await asyncio.sleep(0.002 * (index % 4))
            request = DeleteTopicsRequest([], [name], 1000)
            await peer.ask(apis.DELETE_TOPICS, 5, request)
        await create(peer, "t0")
        assert await earliest(peer, "t0") == 0
        await produce(peer, "t0", 1000)
        assembly = rig.server.assembly
        assert assembly is not None
        log = assembly.directory.get("t0", 0)
        assert log is not None
        await until(lambda: log.log_start_offset == 1, "the record to go")
        assert not rig.ended.done()


async def delete_records(peer: Peer, offsets: dict[int, int], topic: str = "t") -> list[int]:
    """The low watermarks that the answer has."""
    partitions = [DeleteRecordsPartition(index, offset) for index, offset in offsets.items()]
    answer = await peer.ask(apis.DELETE_RECORDS, 2, DeleteRecordsRequest([DeleteRecordsTopic(topic, partitions)], 1000))
    assert all(partition.error_code == 0 for partition in answer.topics[0].partitions)
    return [partition.low_watermark for partition in answer.topics[0].partitions]


async def fill(peer: Peer) -> None:
    await create(peer, "t", segment_bytes="1048576")
    for _ in range(4):
        await produce(peer, "t", now_ms(), 700_000)


@pytest.mark.parametrize("sync", ["always", "os", "memory"])
async def test_segments_below_deleted_records_go_soon(tmp_path: Path, sync: str) -> None:
    async with serving(tmp_path, f"log.sync={sync}") as rig:
        peer = await rig.connect()
        await fill(peer)
        assert rig.server.assembly is not None
        log = rig.server.assembly.directory.get("t", 0)
        assert log is not None and len(log.segments) == 4
        assert await delete_records(peer, {0: 2}) == [2]
        assert (await fetch(peer, "t", 1)).error_code == OFFSET_OUT_OF_RANGE
        await until(lambda: bool(event(rig, "segments_removed")), "the removal")
        assert len(log.segments) == 2
        if sync != "memory":
            assert files(tmp_path, "t") == [f"{2:020d}.log", f"{3:020d}.log"]
        assert await earliest(peer, "t") == 2
    if sync != "memory":
        async with serving(tmp_path, f"log.sync={sync}") as rig:
            assert await earliest(await rig.connect(), "t") == 2


async def test_no_other_request_waits_for_the_disk_when_records_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomic = DiskStorage.write_atomic
    may_continue = threading.Event()
    begun = threading.Event()

    def slow(self: DiskStorage, path: str, data: bytes) -> None:
        if path == LOG_START_OFFSETS:
            begun.set()
            may_continue.wait(60.0)
        write_atomic(self, path, data)

    try:
        async with serving(tmp_path) as rig:
            peer, other = await rig.connect(), await rig.connect()
            await fill(peer)
            monkeypatch.setattr(DiskStorage, "write_atomic", slow)
            deleting = asyncio.ensure_future(delete_records(peer, {0: 2}))
            await until(begun.is_set, "the write")
            assert await earliest(other, "t") == 2
            assert not deleting.done()
            assert files(tmp_path, "t")[0] == f"{0:020d}.log"
            may_continue.set()
            assert await deleting == [2]
    finally:
        may_continue.set()


async def test_files_that_cannot_be_removed_stay_for_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = DiskStorage.remove

    def broken(self: DiskStorage, path: str) -> None:
        if path.startswith("t-0/"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        remove(self, path)

    monkeypatch.setattr(DiskStorage, "remove", broken)

    async with serving(tmp_path) as rig:
        peer = await rig.connect()
        await fill(peer)
        await delete_records(peer, {0: 3})
        await until(lambda: bool(event(rig, "retention_failed")), "the failure")
        assert await earliest(peer, "t") == 3
    assert len(files(tmp_path, "t")) == 4
    monkeypatch.setattr(DiskStorage, "remove", remove)
    async with serving(tmp_path, "log.retention.check.interval.ms=50") as rig:
        peer = await rig.connect()
        assert await earliest(peer, "t") == 3
        await until(lambda: len(files(tmp_path, "t")) == 1, "retention")


async def test_a_partition_that_cannot_be_looked_at_keeps_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_retention

    def broken(log: PartitionLog, *arguments: Any) -> Any:
        if log.topic == "a":
            raise OSError(errno.EIO, os.strerror(errno.EIO), log.name)
        return plan(log, *arguments)

    monkeypatch.setattr(maintenance, "plan_retention", broken)

    async with serving(tmp_path, "log.retention.check.interval.ms=50") as rig:
        peer = await rig.connect()
        for topic in ("a", "t"):
            await create(peer, topic, retention_ms="1000")
            await produce(peer, topic, now_ms() - 10_000)
        await until(lambda: bool(event(rig, "segments_removed")), "the other one")
        assert event(rig, "retention_failed")[0]["log"] == "a-0"
