"""The measured requests, and the blocking client that prepares topics and groups for them."""

from __future__ import annotations

import socket
import struct
import time
from typing import TypeVar

from bench.load import Traffic
from kcoord.protocol import apis, errors
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kcoord.protocol.header import RequestHeader, decode_response_header, encode_request_header
from kcoord.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kcoord.protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from kcoord.protocol.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, Reader
from kcoord.wire.record_batch import BatchBuilder

TOPIC = "bench"
PARTITIONS = 5
CLIENT_ID = "bench"
SESSION_TIMEOUT_MS = 300_000
RECORD_BYTES = 1000
RECORDS_PER_BATCH = 64
FETCH_BYTES = 1 << 20

T = TypeVar("T", bound=Message)


def request_frame(api_key: int, version: int, message: Message) -> bytes:
    """Encode a whole request frame with correlation id 0."""
    w = BytesWriter()
    header = RequestHeader(api_key, version, 0, CLIENT_ID)
    encode_request_header(w, header, apis.APIS[api_key].request_header_version(version))
    apis.encode_request(w, api_key, message, version)
    body = w.getvalue()
    return struct.pack(">i", len(body)) + body


class Client:
    """Sends one request at a time over a blocking socket."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=30)

    def close(self) -> None:
        self.socket.close()

    def read(self, size: int) -> bytes:
        chunks = bytearray()
        while len(chunks) < size:
            chunk = self.socket.recv(size - len(chunks))
            if not chunk:
                raise RuntimeError("the server closed the connection")
            chunks += chunk
        return bytes(chunks)

    def exchange(self, frame: bytes) -> bytes:
        """Send a request frame. Returns the whole response frame."""
        self.socket.sendall(frame)
        prefix = self.read(4)
        return prefix + self.read(struct.unpack(">i", prefix)[0])

    def call(self, api_key: int, version: int, message: Message, kind: type[T]) -> T:
        answer = decode(api_key, version, self.exchange(request_frame(api_key, version, message)))
        if not isinstance(answer, kind):
            raise RuntimeError(f"{type(answer).__name__} instead of {kind.__name__}")
        return answer


def decode(api_key: int, version: int, frame: bytes) -> Message:
    r = Reader(frame, 4)
    decode_response_header(r, apis.APIS[api_key].response_header_version(version))
    return apis.decode_response(api_key, r, version)


def check(code: int, what: str) -> None:
    if code:
        raise RuntimeError(f"{what}: {errors.ERROR_NAMES.get(code, code)}")


def create_topic(client: Client, name: str, partitions: int) -> None:
    request = CreateTopicsRequest([CreatableTopic(name, partitions, 1)], 30_000, False)
    for topic in client.call(19, 5, request, CreateTopicsResponse).topics:
        check(topic.error_code, f"create {name}")


def fetch_group(client: Client, group_id: str) -> int:
    """Return the number of committed offsets of a group."""
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id, topics=None)])
    response = client.call(apis.OFFSET_FETCH, 8, request, OffsetFetchResponse)
    check(response.groups[0].error_code, "OffsetFetch")
    return sum(len(topic.partitions) for topic in response.groups[0].topics)


class Member:
    """A group with one member, joined and synced."""

    def __init__(self, client: Client, group_id: str) -> None:
        self.group_id = group_id
        self.member_id = ""
        joined = self.join(client)
        if joined.error_code == errors.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            joined = self.join(client)
        check(joined.error_code, "join")
        self.member_id = joined.member_id
        self.generation_id = joined.generation_id
        assignments = [SyncGroupRequestAssignment(self.member_id, b"\x00\x00")]
        sync = SyncGroupRequest(group_id, self.generation_id, self.member_id, None, "consumer", "range", assignments)
        check(client.call(14, 5, sync, SyncGroupResponse).error_code, "sync")

    def join(self, client: Client) -> JoinGroupResponse:
        # Version 1 subscription to the topic, no user data, no owned partitions.
        metadata = struct.pack(">hih", 1, 1, len(TOPIC)) + TOPIC.encode() + struct.pack(">ii", -1, 0)
        protocols = [JoinGroupRequestProtocol("range", metadata)]
        request = JoinGroupRequest(
            self.group_id, SESSION_TIMEOUT_MS, SESSION_TIMEOUT_MS, self.member_id, None, "consumer", protocols
        )
        return client.call(11, 6, request, JoinGroupResponse)

    def commit(self, client: Client, count: int = PARTITIONS) -> Traffic:
        partitions = [OffsetCommitRequestPartition(each, 1000 + each, 0, "") for each in range(count)]
        request = OffsetCommitRequest(
            self.group_id, self.generation_id, self.member_id, None,
            topics=[OffsetCommitRequestTopic(TOPIC, partitions=partitions)],
        )  # fmt: skip
        frame = request_frame(8, 8, request)
        answer = client.exchange(frame)
        decoded = decode(8, 8, answer)
        assert isinstance(decoded, OffsetCommitResponse)
        for topic in decoded.topics:
            for partition in topic.partitions:
                check(partition.error_code, "commit")
        return Traffic(frame, answer)

    def fetch_offsets(self, client: Client) -> Traffic:
        topics = [OffsetFetchRequestTopics(TOPIC, partition_indexes=list(range(PARTITIONS)))]
        groups = [OffsetFetchRequestGroup(self.group_id, topics=topics)]
        frame = request_frame(9, 8, OffsetFetchRequest(groups=groups))
        answer = client.exchange(frame)
        decoded = decode(9, 8, answer)
        assert isinstance(decoded, OffsetFetchResponse)
        check(decoded.groups[0].error_code, "offset fetch")
        found = {partition.committed_offset for partition in decoded.groups[0].topics[0].partitions}
        if found != {1000 + number for number in range(PARTITIONS)}:
            raise RuntimeError(f"offset fetch: {found}")
        return Traffic(frame, answer)

    def heartbeat(self, client: Client) -> Traffic:
        request = HeartbeatRequest(self.group_id, self.generation_id, self.member_id, None)
        frame = request_frame(12, 4, request)
        answer = client.exchange(frame)
        decoded = decode(12, 4, answer)
        assert isinstance(decoded, HeartbeatResponse)
        check(decoded.error_code, "heartbeat")
        return Traffic(frame, answer)


def batch() -> bytes:
    builder = BatchBuilder()
    now = int(time.time() * 1000)
    for number in range(RECORDS_PER_BATCH):
        builder.append(now, None, bytes([number]) * RECORD_BYTES)
    return builder.build(0, 0)


def produce(client: Client, partition: int, records: bytes) -> Traffic:
    """A Produce v9 of one batch to one partition with acks=all."""
    data = [TopicProduceData(TOPIC, partition_data=[PartitionProduceData(partition, records)])]
    frame = request_frame(0, 9, ProduceRequest(None, -1, 30_000, data))
    answer = client.exchange(frame)
    decoded = decode(0, 9, answer)
    assert isinstance(decoded, ProduceResponse)
    check(decoded.responses[0].partition_responses[0].error_code, "produce")
    return Traffic(frame, answer, varies=True)


def fetch(client: Client, partition: int) -> tuple[Traffic, int]:
    """A Fetch v12 without a session from the start of a partition, and the bytes of records in its response."""
    wanted = [FetchPartition(partition, -1, 0, partition_max_bytes=FETCH_BYTES)]
    request = FetchRequest(
        replica_id=-1, max_wait_ms=500, min_bytes=1, max_bytes=FETCH_BYTES, session_id=0, session_epoch=-1,
        topics=[FetchTopic(TOPIC, partitions=wanted)],
    )  # fmt: skip
    frame = request_frame(1, 12, request)
    answer = client.exchange(frame)
    decoded = decode(1, 12, answer)
    assert isinstance(decoded, FetchResponse)
    found = decoded.responses[0].partitions[0]
    check(decoded.error_code or found.error_code, "fetch")
    return Traffic(frame, answer), len(found.records or b"")
