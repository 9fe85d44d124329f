"""Data directories written by a real engine, with a short history, and the `kcoord` command run on them."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from kcoord.cli.main import main
from kcoord.core.outcome import Now
from kcoord.log.storage import DiskStorage
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_groups import DeleteGroupsRequest
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kcoord.protocol.leave_group import LeaveGroupRequest, MemberIdentity
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.protocol.records.consumer_protocol_assignment import (
    ConsumerProtocolAssignment,
    encode_consumer_protocol_assignment,
)
from kcoord.protocol.records.consumer_protocol_assignment import TopicPartition as AssignedPartitions
from kcoord.protocol.records.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
    encode_consumer_protocol_subscription,
)
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kcoord.wire.primitives import BytesWriter, write_int16
from kcoord.wire.record_batch import BatchBuilder
from tests.harness.engine import Client, decode_answer, finish_turn, open_engine, read_answers, take_output
from tests.harness.record_batches import parse_batches

# 2025-10-09 08:53:20 UTC.
START_MS = 1_760_000_000_000
OFFSETS = "__consumer_offsets-0"
METADATA = "__cluster_metadata-0"


def at(seconds: float) -> Now:
    return Now(int(seconds * 1000), START_MS + int(seconds * 1000))


def subscription(*topics: str) -> bytes:
    w = BytesWriter()
    write_int16(w, 1)
    encode_consumer_protocol_subscription(w, ConsumerProtocolSubscription(list(topics)), 1)
    return w.getvalue()


def assignment(topic: str, *partitions: int) -> bytes:
    w = BytesWriter()
    write_int16(w, 1)
    assigned = [AssignedPartitions(topic, list(partitions))]
    encode_consumer_protocol_assignment(w, ConsumerProtocolAssignment(assigned), 1)
    return w.getvalue()


class LogRig:
    """An engine on `path`. Ends with `stop` (clean), `kill` (as it is), or stays open and keeps the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.engine = open_engine(DiskStorage(str(path)), at(0), random.Random(5))
        self.client = Client(self.engine)
        self.member_id = ""
        self.generation = -1

    def create(self, topic: str, partitions: int, when: float) -> None:
        body = CreateTopicsRequest([CreatableTopic(topic, partitions, 1)])
        assert self.client.ask(apis.CREATE_TOPICS, 5, body, at(when)).topics[0].error_code == 0

    def commit(self, group: str, when: float, metadata: str = "", **offsets: int) -> None:
        """Offsets as `orders_0=5`; by the member that joined last, for groups that have one."""
        topics: list[OffsetCommitRequestTopic] = []
        for name, offset in offsets.items():
            topic, _, partition = name.rpartition("_")
            committed = OffsetCommitRequestPartition(int(partition), offset, -1, metadata)
            topics.append(OffsetCommitRequestTopic(topic, bytes(16), [committed]))
        member_id = self.member_id if group == "workers" else ""
        generation = self.generation if group == "workers" else -1
        body = OffsetCommitRequest(group, generation, member_id, None, -1, topics)
        answer = self.client.ask(apis.OFFSET_COMMIT, 8, body, at(when))
        codes = [partition.error_code for topic in answer.topics for partition in topic.partitions]
        assert codes == [0] * len(offsets)

    def join(self, when: float) -> None:
        """One member of the group `workers`, with partitions 0 and 1 of `orders`."""
        protocols = [JoinGroupRequestProtocol("range", subscription("orders"))]
        body: Any = JoinGroupRequest("workers", 10000, 60000, "", None, "consumer", protocols)
        sent = self.client.send(apis.JOIN_GROUP, 3, body, at(when))
        finish_turn(self.engine, at(when))
        self.engine.fire_timers(at(when))
        finish_turn(self.engine, at(when))
        [(correlation_id, rest)] = read_answers(take_output(self.client.session))
        assert correlation_id == sent
        joined = decode_answer(apis.JOIN_GROUP, 3, rest)
        assert joined.error_code == 0
        self.member_id, self.generation = joined.member_id, joined.generation_id
        body = SyncGroupRequest(
            "workers",
            self.generation,
            self.member_id,
            assignments=[SyncGroupRequestAssignment(self.member_id, assignment("orders", 0, 1))],
        )
        assert self.client.ask(apis.SYNC_GROUP, 2, body, at(when)).error_code == 0

    def leave(self, when: float) -> None:
        body = LeaveGroupRequest("workers", members=[MemberIdentity(self.member_id)])
        assert self.client.ask(apis.LEAVE_GROUP, 3, body, at(when)).error_code == 0

    def delete_group(self, group: str, when: float) -> None:
        answer = self.client.ask(apis.DELETE_GROUPS, 1, DeleteGroupsRequest([group]), at(when))
        assert answer.results[0].error_code == 0

    def produce(self, topic: str, value: bytes, when: float, partition: int = 0) -> None:
        builder = BatchBuilder()
        builder.append(at(when).wall_ms, b"key", value)
        data = [PartitionProduceData(partition, builder.build(0, -1))]
        body = ProduceRequest(None, -1, 1000, [TopicProduceData(topic, partition_data=data)])
        answer = self.client.ask(apis.PRODUCE, 9, body, at(when))
        assert answer.responses[0].partition_responses[0].error_code == 0

    def history(self) -> None:
        """What most tests look at."""
        self.create("orders", 2, 0)
        self.commit("report", 1, "by hand", orders_0=10)
        self.join(2)
        self.commit("workers", 3, orders_0=5, orders_1=7)
        self.commit("workers", 4, orders_0=9)
        self.commit("workers", 5, orders_0=2)
        self.leave(6)
        self.delete_group("report", 7)

    def marks(self) -> None:
        """Write the durable marks, as the server does each second."""
        self.engine.directory.write_recovery_points()

    def stop(self) -> None:
        self.engine.stop()

    def kill(self) -> None:
        self.engine.directory.close(False)


def batches_of(segment: Path) -> list[bytes]:
    """The bytes of each batch in a segment file."""
    data = segment.read_bytes()
    return [data[header.pos : header.pos + header.size] for header in parse_batches(data)]


def split_segment(directory: Path, base_offset: int, without: tuple[int, ...] = ()) -> None:
    """Make two segments of the one of a log, and leave out batches of these base offsets, as compaction does."""
    segment = directory / f"{0:020d}.log"
    batches = batches_of(segment)
    for stale in directory.glob("*.*index"):
        stale.unlink()
    kept = [(int.from_bytes(batch[:8], "big"), batch) for batch in batches]
    kept = [(base, batch) for base, batch in kept if base not in without]
    segment.write_bytes(b"".join(batch for base, batch in kept if base < base_offset))
    later = b"".join(batch for base, batch in kept if base >= base_offset)
    (directory / f"{base_offset:020d}.log").write_bytes(later)


def stopped(path: Path) -> Path:
    rig = LogRig(path)
    rig.history()
    rig.stop()
    return path


def run(*arguments: str | Path) -> Result:
    """The command on a terminal of 80 columns, or as many as the test sets."""
    width = os.environ.get("COLUMNS", "80")
    return CliRunner(env={"COLUMNS": width}).invoke(main, ["log", *map(str, arguments)], catch_exceptions=False)


def run_json(*arguments: str | Path) -> Any:
    result = run(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
