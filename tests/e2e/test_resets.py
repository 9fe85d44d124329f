"""Clients that reset their connections at any moment, and a stop while clients come: nobody else is hurt."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kcoord.protocol.heartbeat import HeartbeatRequest
from kcoord.protocol.metadata import MetadataRequest, MetadataResponse
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
from kcoord.server.probe import Probe
from tests.e2e.process import ServerProcess
from tests.harness.engine import request_frame

WAIT_S = 60.0
RESETTERS = 3
BUSY = 20
IN_FLIGHT = 8
ROUNDS = 60
# The rate is not what is tested: a newcomer at any moment is.
FAST = ("--set", "max.connection.creation.rate=100000", "--set", "log.reserve.bytes=0")
HEARTBEAT = request_frame(apis.HEARTBEAT, 4, HeartbeatRequest("g", 1, "m"), 1)
METADATA = request_frame(apis.METADATA, 12, MetadataRequest(None), 2)


def commit_request(offset: int) -> OffsetCommitRequest:
    topics = [OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, offset, -1, "")])]
    return OffsetCommitRequest("honest", -1, "", None, -1, topics)


def commit(probe: Probe, offset: int) -> None:
    answer = probe.ask(apis.OFFSET_COMMIT, 8, commit_request(offset), OffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == 0


def committed(probe: Probe) -> int:
    topics = [OffsetFetchRequestTopics("t", partition_indexes=[0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("honest", topics=topics)])
    answer = probe.ask(apis.OFFSET_FETCH, 8, request, OffsetFetchResponse)
    return answer.groups[0].topics[0].partitions[0].committed_offset


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), WAIT_S)
    # Closing it sends a reset and throws away what is on its way.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return sock


def come_and_reset(port: int, seed: int, is_over: threading.Event) -> None:
    rng = random.Random(seed)
    foreign = request_frame(apis.OFFSET_COMMIT, 8, commit_request(-7))[:-3]
    open_sockets: list[socket.socket] = []
    while not is_over.is_set():
        with suppress(ConnectionError):
            sock = connect(port)
            open_sockets.append(sock)
            sock.sendall(rng.choice((HEARTBEAT, METADATA)) * rng.randint(0, 40) + rng.choice((b"", foreign)))
        while len(open_sockets) > rng.randint(0, 30):
            open_sockets.pop(rng.randrange(len(open_sockets))).close()
    for sock in open_sockets:
        sock.close()


def keep_busy(port: int, is_over: threading.Event, wrong: list[str]) -> None:
    """Heartbeats of a group that does not exist, so many in flight; each is answered, in one and the same way."""
    with connect(port) as sock:
        sock.sendall(HEARTBEAT)
        wanted = sock.recv(1000)
        sock.sendall(HEARTBEAT * IN_FLIGHT)
        while not is_over.is_set():
            answers = b""
            while len(answers) < IN_FLIGHT * len(wanted):
                part = sock.recv(1 << 16)
                if not part:
                    wrong.append("a busy connection was closed")
                    return
                answers += part
            if answers != wanted * IN_FLIGHT:
                wrong.append(f"{answers!r}")
                return
            sock.sendall(HEARTBEAT * IN_FLIGHT)


@contextmanager
def threads(*works: threading.Thread) -> Iterator[None]:
    for work in works:
        work.start()
    try:
        yield
    finally:
        for work in works:
            work.join(WAIT_S)


def test_resets_under_load_affect_no_other_client(tmp_path: Path) -> None:
    seed = int(os.environ.get("KCOORD_SEED", "1"))
    is_over = threading.Event()
    wrong: list[str] = []
    with ServerProcess(tmp_path, *FAST) as server:
        port = server.port
        works = [threading.Thread(target=keep_busy, args=(port, is_over, wrong)) for _ in range(BUSY)]
        for number in range(RESETTERS):
            work = threading.Thread(target=come_and_reset, args=(port, seed * 1000 + number, is_over))
            works.append(work)
        with Probe(server.bootstrap, WAIT_S) as admin:
            topic = CreateTopicsRequest([CreatableTopic("t", 1, 1)])
            admin.ask(apis.CREATE_TOPICS, 5, topic, CreateTopicsResponse)
        with threads(*works):
            try:
                with Probe(server.bootstrap, WAIT_S) as probe:
                    for offset in range(ROUNDS):
                        commit(probe, offset)
                        assert committed(probe) == offset
                    # And one that comes only now.
                    with Probe(server.bootstrap, WAIT_S) as newcomer:
                        answer = newcomer.ask(apis.METADATA, 12, MetadataRequest(None), MetadataResponse)
                        assert len(answer.brokers) == 1
            finally:
                is_over.set()
        assert wrong == [] and server.process.poll() is None, f"seed {seed}"
        assert server.stop() == 0
        assert not server.lines("internal_error")


def come(port: int, is_over: threading.Event) -> None:
    """Connect and ask, again and again, until nobody listens."""
    found: list[socket.socket] = []
    with suppress(OSError):
        while not is_over.is_set():
            sock = connect(port)
            found.append(sock)
            sock.sendall(HEARTBEAT * IN_FLIGHT)
    for sock in found:
        sock.close()


def test_a_stop_while_clients_come_is_a_clean_one() -> None:
    for number in range(5):
        is_over = threading.Event()
        with ServerProcess(None, *FAST) as server:
            with threads(*(threading.Thread(target=come, args=(server.port, is_over)) for _ in range(4))):
                try:
                    time.sleep(0.2 + 0.05 * number)
                    assert server.stop() == 0
                finally:
                    is_over.set()
