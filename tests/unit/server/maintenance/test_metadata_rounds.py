"""A server keeps its metadata log short while it serves, and finds everything again."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from kcoord.log.metadata_checkpoint import parse_checkpoint
from kcoord.log.storage import DiskStorage
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_topics import DeleteTopicsRequest
from kcoord.protocol.metadata import MetadataRequest
from kcoord.protocol.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from kcoord.server.maintenance import metadata_rounds
from tests.unit.server.maintenance.test_rounds import create, files
from tests.unit.server.test_server import Peer, Rig, event, serving, until

# A server and its processes, at their own pace.
pytestmark = pytest.mark.slow

LOG = "__cluster_metadata"
SMALL = "metadata.log.max.record.bytes.between.snapshots=2000"
SHORT = "metadata.max.retention.bytes=0"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_rounds, "CHECK_S", 0.02)


async def create_and_delete(peer: Peer, count: int) -> None:
    for number in range(count):
        await create(peer, f"topic-{number}")
        answer = await peer.ask(apis.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=[f"topic-{number}"]))
        assert answer.responses[0].error_code == 0


async def names(peer: Peer) -> list[str]:
    answer = await peer.ask(apis.METADATA, 9, MetadataRequest(None))
    return sorted(found.name for found in answer.topics)


def checkpoints(data: Path) -> list[str]:
    return files(data, LOG, ".checkpoint*")


def start_of(rig: Rig) -> int:
    assembly = rig.server.assembly
    assert assembly is not None and assembly.engine.metadata is not None
    return assembly.engine.metadata.log.log_start_offset


async def until_rested(rig: Rig) -> None:
    """Until the last round is over, with its line in the log, and no other is due.

    What came while a snapshot was written may be worth another.
    """
    rounds, assembly = rig.server.background().metadata, rig.server.assembly
    assert rounds is not None and assembly is not None

    def is_idle() -> bool:
        return (rounds._job is None or rounds._job.is_over) and not rounds._is_due(assembly)

    await until(is_idle, "the rounds to be over")


def written(rig: Rig) -> list[dict[str, object]]:
    return event(rig, "metadata_snapshot_written")


@pytest.mark.parametrize("sync", ["always", "os"])
async def test_the_log_stays_short_under_traffic(tmp_path: Path, sync: str) -> None:
    before: list[str] = []
    digest = ""
    async with serving(tmp_path, SMALL, SHORT, f"log.sync={sync}") as rig:
        peer = await rig.connect()
        await create(peer, "kept", retention_ms="1234567")
        while len(written(rig)) < 2:
            await create_and_delete(peer, 5)
        await until_rested(rig)
        await until(lambda: len(checkpoints(tmp_path)) == 1, "the log to be shortened")
        await until(lambda: len(event(rig, "metadata_log_shortened")) >= len(written(rig)), "the line of it")
        # Whatever came since the last one is at most in one segment more.
        assert len(checkpoints(tmp_path)) == 1 and len(files(tmp_path, LOG)) <= 2
        assert start_of(rig) > 0
        before = await names(peer)
        assert rig.server.assembly is not None
        digest = rig.server.assembly.engine.core.digest()
    async with serving(tmp_path, f"log.sync={sync}") as rig:
        assert rig.server.assembly is not None
        assert rig.server.assembly.engine.core.digest() == digest
        peer = await rig.connect()
        assert await names(peer) == before
        await create(peer, "later")
        assert not event(rig, "metadata_snapshot_damaged")


async def test_history_stays_for_its_time(tmp_path: Path) -> None:
    async with serving(tmp_path, SMALL) as rig:
        peer = await rig.connect()
        while len(written(rig)) < 2:
            await create_and_delete(peer, 5)
        await until_rested(rig)
        assert start_of(rig) == 0 and len(checkpoints(tmp_path)) == len(written(rig))
        assert not event(rig, "metadata_log_shortened")


async def test_a_snapshot_after_some_time_if_there_is_anything_new(tmp_path: Path) -> None:
    async with serving(tmp_path, "metadata.log.max.snapshot.interval.ms=200") as rig:
        await until(lambda: len(written(rig)) == 1, "a snapshot")
        await asyncio.sleep(0.5)
        assert len(checkpoints(tmp_path)) == 1
        await create(await rig.connect(), "new")
        await until(lambda: len(written(rig)) == 2, "another")
    async with serving(tmp_path / "never", "metadata.log.max.snapshot.interval.ms=0") as rig:
        await create(await rig.connect(), "new")
        await asyncio.sleep(0.3)
        assert not checkpoints(tmp_path / "never")


@pytest.mark.parametrize(("limit", "count"), [(1 << 20, 0), (4000, 1)])
async def test_a_stop_writes_one_where_it_pays(tmp_path: Path, limit: int, count: int) -> None:
    setting = f"metadata.log.max.record.bytes.between.snapshots={limit}"
    async with serving(tmp_path, setting, "shutdown.deadline.ms=60000") as rig:
        await create(await rig.connect(), "t")
        assert not checkpoints(tmp_path)
    found = checkpoints(tmp_path)
    assert len(found) == count
    for name in found:
        parse_checkpoint((tmp_path / f"{LOG}-0" / name).read_bytes(), 0)
    async with serving(tmp_path, setting) as rig:
        assert await names(await rig.connect()) == ["__consumer_offsets", "t"]
    # Nothing new came.
    assert checkpoints(tmp_path) == found


async def test_a_snapshot_that_fails_costs_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_rounds, "CHILD", "kcoord.server.no_such_module")

    async with serving(tmp_path, SMALL, SHORT) as rig:
        peer = await rig.connect()
        await create_and_delete(peer, 20)
        await until(lambda: bool(event(rig, "metadata_snapshot_not_written")), "the line")
        assert "no_such_module" in str(event(rig, "metadata_snapshot_not_written")[0]["reason"])
        # Until what came meanwhile was tried as well.
        await until_rested(rig)
        count = len(event(rig, "metadata_snapshot_not_written"))
        await asyncio.sleep(0.3)
        # Not tried again before the log has grown as much.
        assert len(event(rig, "metadata_snapshot_not_written")) == count
        await create(peer, "after")
        assert start_of(rig) == 0 and not checkpoints(tmp_path)


async def test_nothing_goes_before_the_new_start_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomic = DiskStorage.write_atomic
    fails = [True]

    def broken(self: DiskStorage, path: str, data: bytes) -> None:
        if fails[0] and path == "log-start-offset-checkpoint":
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        write_atomic(self, path, data)

    monkeypatch.setattr(DiskStorage, "write_atomic", broken)

    async with serving(tmp_path, SMALL, SHORT) as rig:
        peer = await rig.connect()
        await create_and_delete(peer, 20)
        await until(lambda: len(event(rig, "metadata_log_not_shortened")) > 2, "three tries")
        # It is moved for each try, and back.
        await until(lambda: start_of(rig) == 0, "the start to be where it was")
        assert files(tmp_path, LOG)[0] == f"{0:020d}.log"
        fails[0] = False
        await until(lambda: bool(event(rig, "metadata_log_shortened")), "the fourth")
        assert start_of(rig) > 0 and files(tmp_path, LOG)[0] != f"{0:020d}.log"


async def test_a_stop_does_not_wait_for_a_snapshot_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "slow_child.py"
    slow.write_text("import sys, time\nsys.stdin.readline()\ntime.sleep(600)\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(metadata_rounds, "CHILD", "slow_child")

    data = tmp_path / "data"
    async with serving(data, SMALL, "shutdown.deadline.ms=500") as rig:
        peer = await rig.connect()
        await create_and_delete(peer, 20)
        rounds = rig.server.background().metadata
        assert rounds is not None
        await until(lambda: rounds._job is not None and rounds._job.child is not None, "the child")
    assert (data / ".kafka_cleanshutdown").exists() and not checkpoints(data)


async def test_a_child_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "slow_child.py"
    slow.write_text("import sys, time\nsys.stdin.readline()\ntime.sleep(600)\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(metadata_rounds, "CHILD", "slow_child")

    async with serving(tmp_path / "data", SMALL) as rig:
        peer = await rig.connect()
        await create_and_delete(peer, 20)
        rounds = rig.server.background().metadata
        assert rounds is not None
        await until(lambda: rounds._job is not None and rounds._job.child is not None, "the child")
        monkeypatch.setattr(metadata_rounds, "CHILD", "kcoord.server.maintenance.metadata_child")
        assert rounds._job is not None and rounds._job.child is not None
        rounds._job.child.send_signal(signal.SIGKILL)
        await until(lambda: bool(event(rig, "metadata_snapshot_not_written")), "the line")
        while not written(rig):
            await create_and_delete(peer, 5)


async def delete_with_offsets(peer: Peer, groups: int) -> None:
    """Delete a topic of which 400 offsets are committed for each group: far more than one step deletes."""
    made = await peer.ask(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic("gone", 400, 1)]))
    assert made.topics[0].error_code == 0
    partitions = [OffsetCommitRequestPartition(index, 7, -1, "") for index in range(400)]
    for number in range(groups):
        topics = [OffsetCommitRequestTopic("gone", bytes(16), partitions)]
        await peer.ask(apis.OFFSET_COMMIT, 8, OffsetCommitRequest(f"g{number}", -1, "", None, -1, topics))
    answer = await peer.ask(apis.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["gone"]))
    assert answer.responses[0].error_code == 0


def offsets_of(rig: Rig) -> int:
    assembly = rig.server.assembly
    assert assembly is not None
    return assembly.engine.core.offsets.count


async def test_a_snapshot_waits_until_the_offsets_of_deleted_topics_are_deleted(tmp_path: Path) -> None:
    """It does not have the topic, so that a start from it would not delete them."""
    async with serving(tmp_path, SMALL + "00") as rig:
        peer = await rig.connect()
        await delete_with_offsets(peer, 200)
        rounds, assembly = rig.server.background().metadata, rig.server.assembly
        assert rounds is not None and assembly is not None
        assert await rounds.round(assembly)
        assert offsets_of(rig) == 0


@pytest.mark.parametrize("deadline_ms", [30_000, 1])
async def test_a_stop_that_leaves_offsets_of_deleted_topics_is_not_a_clean_one(
    tmp_path: Path, deadline_ms: int
) -> None:
    clean = tmp_path / ".kafka_cleanshutdown"
    async with serving(tmp_path, f"shutdown.deadline.ms={deadline_ms}") as rig:
        await delete_with_offsets(await rig.connect(), 200)
    left = offsets_of(rig)
    assert left == 0 if deadline_ms > 1 or clean.exists() else not checkpoints(tmp_path)
    async with serving(tmp_path) as rig:
        await until(lambda: offsets_of(rig) == 0, "the rest to be deleted")
    assert clean.exists()
