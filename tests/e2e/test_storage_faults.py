"""A whole server over a disk that fails or fills: it ends or turns writes away, and acknowledges nothing in vain."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kcoord.protocol.errors import KAFKA_STORAGE_ERROR, NONE, RETRIABLE
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kcoord.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kcoord.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from kcoord.server.failures import EXIT_DISK_FULL, EXIT_STORAGE, ServerError
from kcoord.server.probe import Probe, ProbeError
from kcoord.server.settings.load import load
from kcoord.server.thread import ServerThread
from kcoord.wire.record_batch import BatchBuilder
from tests.harness.faulty_storage import Fault, FaultyStorage

MIB = 1 << 20
WAIT_S = 60.0
# A server that fails waits for nobody: who does is still there when the test has waited for its end.
FOR_EVER_MS = 3_600_000


def make_server(storage: FaultyStorage, folder: Path) -> ServerThread:
    assignments = ["listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={folder}", f"log.reserve.bytes={MIB}"]
    assignments.append(f"shutdown.deadline.ms={FOR_EVER_MS}")
    return ServerThread(load(assignments=assignments), storage=storage)


@pytest.fixture
def storage() -> FaultyStorage:
    return FaultyStorage()


@pytest.fixture
def server(storage: FaultyStorage, tmp_path: Path) -> Iterator[ServerThread]:
    """Running, with a topic t. What ended it, if anything, is for the test to ask."""
    thread = make_server(storage, tmp_path)
    thread.start()
    with Probe(thread.bootstrap) as probe:
        request = CreateTopicsRequest([CreatableTopic("t", 1, 1)])
        assert probe.ask(apis.CREATE_TOPICS, 5, request, CreateTopicsResponse).topics[0].error_code == NONE
        assert produce(probe) == NONE
    yield thread
    try:
        thread.stop()
    except ServerError:
        return


def produce(probe: Probe) -> int:
    builder = BatchBuilder()
    builder.append(int(time.time() * 1000), b"k", b"v")
    data = [TopicProduceData("t", partition_data=[PartitionProduceData(0, builder.build(0, -1))])]
    answer = probe.ask(apis.PRODUCE, 9, ProduceRequest(None, -1, 1000, data), ProduceResponse)
    return answer.responses[0].partition_responses[0].error_code


def commit(probe: Probe, offset: int, group: str = "g", generation: int = -1, member: str = "") -> int:
    topics = [OffsetCommitRequestTopic("t", bytes(16), [OffsetCommitRequestPartition(0, offset, -1, "")])]
    request = OffsetCommitRequest(group, generation, member, None, -1, topics)
    answer = probe.ask(apis.OFFSET_COMMIT, 8, request, OffsetCommitResponse)
    return answer.topics[0].partitions[0].error_code


def committed(probe: Probe, group: str = "g") -> int:
    request = OffsetFetchRequest(group, [OffsetFetchRequestTopic("t", [0])])
    answer = probe.ask(apis.OFFSET_FETCH, 7, request, OffsetFetchResponse)
    return answer.topics[0].partitions[0].committed_offset


def join(probe: Probe, group: str) -> tuple[int, str]:
    """A group of one member; its generation and the member's id."""
    protocols = [JoinGroupRequestProtocol("range", b"")]
    request = JoinGroupRequest(group, 30000, 30000, "", None, "consumer", protocols)
    member = probe.ask(apis.JOIN_GROUP, 5, request, JoinGroupResponse).member_id
    request.member_id = member
    answer = probe.ask(apis.JOIN_GROUP, 5, request, JoinGroupResponse)
    assert answer.error_code == NONE
    assignments = [SyncGroupRequestAssignment(member, b"x")]
    sync = SyncGroupRequest(group, answer.generation_id, member, None, assignments=assignments)
    assert probe.ask(apis.SYNC_GROUP, 3, sync, SyncGroupResponse).error_code == NONE
    return answer.generation_id, member


def wait_for(is_so: Callable[[], bool], seconds: float = WAIT_S) -> None:
    ends_at = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < ends_at
        time.sleep(0.05)


def wait_end(thread: ServerThread) -> ServerError:
    """What ended the server. It does not stop as it would on request."""
    ends_at = time.monotonic() + WAIT_S
    while thread.error is None and time.monotonic() < ends_at:
        time.sleep(0.005)
    assert thread.error is not None, "the server still runs"
    assert "stopping" not in [line["event"] for line in thread.log.recent]
    return thread.error


@pytest.mark.parametrize("kind", ["sync", "write"])
def test_a_failed_write_or_sync_ends_the_server(
    server: ServerThread, storage: FaultyStorage, kind: str, tmp_path: Path
) -> None:
    with Probe(server.bootstrap) as probe, Probe(server.bootstrap) as other:
        assert commit(probe, 1) == NONE
        storage.choose_fault = lambda done, path: Fault(errno.EIO) if done == kind else None
        with pytest.raises(ProbeError):
            commit(probe, 2)
        error = wait_end(server)
        with pytest.raises(ProbeError):
            commit(other, 3)
    assert error.code == EXIT_STORAGE
    assert "the log failed and the server stops" in error.message and "Input/output error" in error.message
    # What was acknowledged is there after the power was lost as well, what was not may be.
    again = make_server(storage.crash(), tmp_path)
    again.start()
    with Probe(again.bootstrap) as probe:
        assert committed(probe) == 1
    again.stop()


def test_marks_that_cannot_be_written_end_the_server(server: ServerThread, storage: FaultyStorage) -> None:
    storage.choose_fault = lambda done, path: Fault(errno.EIO) if "recovery-point" in path else None
    with Probe(server.bootstrap) as probe:
        commit(probe, 1)
        error = wait_end(server)
    assert error.code == EXIT_STORAGE


def test_a_disk_that_is_full_all_at_once_ends_the_server(server: ServerThread, storage: FaultyStorage) -> None:
    storage.choose_fault = lambda done, path: Fault(errno.ENOSPC, short=True) if done == "write" else None
    with Probe(server.bootstrap) as probe, pytest.raises(ProbeError):
        produce(probe)
    error = wait_end(server)
    assert error.code == EXIT_DISK_FULL
    assert "the disk is full and the server stops" in error.message


def test_a_full_disk_turns_writes_away_and_nothing_else(server: ServerThread, storage: FaultyStorage) -> None:
    with Probe(server.bootstrap) as probe, Probe(server.bootstrap) as member:
        generation, member_id = join(member, "live")
        assert commit(probe, 1) == NONE
        storage.free = MIB - 1
        wait_for(lambda: produce(probe) == KAFKA_STORAGE_ERROR)
        assert commit(probe, 2) == KAFKA_STORAGE_ERROR and KAFKA_STORAGE_ERROR in RETRIABLE
        assert commit(member, 2, "live", generation, member_id) == KAFKA_STORAGE_ERROR
        create = CreateTopicsRequest([CreatableTopic("more", 1, 1)])
        refused = probe.ask(apis.CREATE_TOPICS, 5, create, CreateTopicsResponse)
        assert refused.topics[0].error_code == KAFKA_STORAGE_ERROR
        # Heartbeats and reads go on.
        beat = HeartbeatRequest("live", generation, member_id)
        assert member.ask(apis.HEARTBEAT, 3, beat, HeartbeatResponse).error_code == NONE
        assert committed(probe) == 1
        ask = FetchTopic("t", partitions=[FetchPartition(0, fetch_offset=0, partition_max_bytes=MIB)])
        fetch = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=MIB, topics=[ask])
        found = probe.ask(apis.FETCH, 11, fetch, FetchResponse).responses[0].partitions[0]
        assert found.error_code == NONE and found.records
        # With free space everything continues, in the same generation.
        storage.free = MIB
        wait_for(lambda: produce(probe) == NONE)
        assert commit(member, 3, "live", generation, member_id) == NONE
        assert committed(member, "live") == 3
    assert server.error is None


def test_without_the_reserve_free_it_does_not_start(storage: FaultyStorage, tmp_path: Path) -> None:
    storage.free = MIB - 1
    with pytest.raises(ServerError) as caught:
        make_server(storage, tmp_path).start()
    assert caught.value.code == EXIT_DISK_FULL
    assert "log.reserve.bytes" in caught.value.message
