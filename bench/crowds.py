"""Groups of many members against an engine in this process, and the CPU time that the engine takes for them.

The members do what clients do, and each has what it needs to know. Only the engine is timed: requests are made before
the clock starts, and answers are decoded after it stops.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from bench.in_process import IN_FLIGHT, InProcess
from bench.members_child import Member
from bench.workload import check, decode, request_frame
from kcoord.core.config import CoreConfig
from kcoord.engine.session import Session
from kcoord.log.storage import MemoryStorage
from kcoord.protocol import apis, errors
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from kcoord.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from kcoord.wire.message import Message

# Members that join at once are in one generation, and consumer groups wait so long for the next assignment. No time
# passes while the engine works, so that it can be short: the sessions of the other groups go on meanwhile.
DELAY_MS = 10
# Partitions of an engine and of a request. The defaults are below what 10,000 members need for two partitions each, all
# of which the first one has for a moment.
PARTITIONS_MAX = 100_000
# The limit of a group, for one member more than the default allows.
MEMBERS_MAX = 20_000
SESSION_TIMEOUT_MS = 300_000
# Rounds of heartbeats, and waits for the answers to parked requests, after which a group should have agreed.
ROUNDS_MAX = 50

T = TypeVar("T", bound=Message)
Requests = Sequence[tuple[Session, bytes]]


class Meter(InProcess):
    """An engine that counts its CPU time."""

    def __init__(self, storage: MemoryStorage | None = None) -> None:
        config = CoreConfig()
        config.group_initial_rebalance_delay_ms = config.group_consumer_assignment_interval_ms = DELAY_MS
        config.partitions_max = config.request_partitions_max = config.request_elements_max = PARTITIONS_MAX
        config.group_max_size = config.group_consumer_max_size = MEMBERS_MAX
        super().__init__(storage, random.Random(1).randbytes, config)
        # Seconds.
        self.cpu_s = 0.0
        # Answers by session id, until they are taken.
        self.answers: dict[int, bytearray] = {}

    def timed(self, work: Callable[[], object]) -> float:
        """Run the work on its own. Returns seconds of CPU time."""
        before = self.cpu_s
        started = time.process_time()
        work()
        self.cpu_s += time.process_time() - started
        return self.cpu_s - before

    def exchange_all(self, requests: Requests) -> None:
        """Send requests, some in each turn, and run the jobs that they lead to."""
        self.timed(lambda: self._exchange_all(requests))

    def _exchange_all(self, requests: Requests) -> None:
        engine = self.engine
        now = self.now()
        for number, (session, data) in enumerate(requests, 1):
            engine.receive(session, data, now)
            if number % IN_FLIGHT == 0:
                self._end_turns()
        self._end_turns()

    def sleep(self, ms: int) -> None:
        """Let time pass, and handle the timers that are due."""
        self.mono_ms += ms
        self.timed(self._fire)

    def _fire(self) -> None:
        engine = self.engine
        while 0 <= engine.next_deadline_ms() <= self.mono_ms:
            engine.fire_timers(self.now())
            self._end_turns()

    def _end_turns(self) -> None:
        engine = self.engine
        now = self.now()
        while True:
            engine.end_turn(now)
            for session in engine.take_ready():
                data = session.take_bytes()
                if data:
                    self.answers.setdefault(session.id, bytearray()).extend(data)
                    engine.output_taken(session)
            jobs = engine.take_jobs()
            for job in jobs:
                engine.job_done(job, job.run(), None, now)
            if not jobs and not engine.has_more():
                break

    def take(self, session: Session, api_key: int, version: int, kind: type[T]) -> T | None:
        """The next answer to a session; None if there is none yet."""
        data = self.answers.get(session.id)
        if not data:
            return None
        size = 4 + int.from_bytes(data[:4], "big")
        frame = bytes(data[:size])
        del data[:size]
        answer = decode(api_key, version, frame)
        if not isinstance(answer, kind):
            raise RuntimeError(f"{type(answer).__name__} instead of {kind.__name__}")
        return answer

    def take_all(self, sessions: Sequence[Session], api_key: int, version: int, kind: type[T]) -> list[T]:
        """One answer to each session. Time passes until all are there."""
        answers: list[T] = []
        for session in sessions:
            answer = self.take(session, api_key, version, kind)
            for _ in range(ROUNDS_MAX):
                if answer is not None:
                    break
                self.sleep(DELAY_MS)
                answer = self.take(session, api_key, version, kind)
            if answer is None:
                raise RuntimeError(f"no {kind.__name__} for a member: {session.close_reason or 'it waits'}")
            answers.append(answer)
        return answers

    def open_session(self) -> Session:
        return self.engine.open_session("127.0.0.1", "127.0.0.1", 9092)


class ClassicCrowd:
    """The members of a classic group, each with a connection of its own."""

    def __init__(self, meter: Meter, group_id: str, topic: str) -> None:
        self.meter = meter
        self.group_id = group_id
        # Version 1 of the subscription: one topic, no user data, no owned partitions.
        metadata = struct.pack(">hih", 1, 1, len(topic)) + topic.encode() + struct.pack(">ii", -1, 0)
        self.protocols = [JoinGroupRequestProtocol("range", metadata)]
        self.sessions: list[Session] = []
        self.member_ids: list[str] = []
        self.generation = -1
        self.leader_id = ""

    def join(self, count: int) -> None:
        """More members join: as clients do, first without an id and then with that of the answer."""
        sessions = [self.meter.open_session() for _ in range(count)]
        self.meter.exchange_all([(session, self._join_frame("")) for session in sessions])
        answers = self.meter.take_all(sessions, apis.JOIN_GROUP, 6, JoinGroupResponse)
        check(0 if all(one.error_code == errors.MEMBER_ID_REQUIRED for one in answers) else -1, "JoinGroup")
        ids = [answer.member_id for answer in answers]
        self.sessions += sessions
        self.member_ids += ids
        frames = [(session, self._join_frame(one)) for session, one in zip(sessions, ids, strict=True)]
        self.meter.exchange_all(frames)

    def rejoin(self, count: int) -> None:
        """The first members learn with a heartbeat that the group rebalances, and join again."""
        sessions = self.sessions[:count]
        self.meter.exchange_all(list(zip(sessions, self.heartbeats(), strict=False)))
        beats = self.meter.take_all(sessions, apis.HEARTBEAT, 4, HeartbeatResponse)
        check(0 if all(one.error_code == errors.REBALANCE_IN_PROGRESS for one in beats) else -1, "Heartbeat")
        frames = [(s, self._join_frame(one)) for s, one in zip(sessions, self.member_ids, strict=False)]
        self.meter.exchange_all(frames)

    def sync(self) -> None:
        """All members get the answers to their JoinGroups, and then their assignments."""
        meter = self.meter
        joined = meter.take_all(self.sessions, apis.JOIN_GROUP, 6, JoinGroupResponse)
        for answer in joined:
            check(answer.error_code, "JoinGroup")
        self.generation = joined[0].generation_id
        self.leader_id = joined[0].leader
        assignments = [SyncGroupRequestAssignment(one, bytes(16)) for one in self.member_ids]
        frames: list[tuple[Session, bytes]] = []
        for session, member_id in zip(self.sessions, self.member_ids, strict=True):
            given = assignments if member_id == self.leader_id else []
            body = SyncGroupRequest(self.group_id, self.generation, member_id, None, "consumer", "range", given)
            frames.append((session, request_frame(apis.SYNC_GROUP, 5, body)))
        meter.exchange_all(frames)
        for synced in meter.take_all(self.sessions, apis.SYNC_GROUP, 5, SyncGroupResponse):
            check(synced.error_code or (0 if len(synced.assignment) == 16 else -1), "SyncGroup")

    def heartbeats(self) -> list[bytes]:
        """A Heartbeat of each member."""
        group_id, generation = self.group_id, self.generation
        bodies = [HeartbeatRequest(group_id, generation, one, None) for one in self.member_ids]
        return [request_frame(apis.HEARTBEAT, 4, body) for body in bodies]

    def _join_frame(self, member_id: str) -> bytes:
        body = JoinGroupRequest(
            self.group_id, SESSION_TIMEOUT_MS, SESSION_TIMEOUT_MS, member_id, None, "consumer", self.protocols
        )
        return request_frame(apis.JOIN_GROUP, 6, body)


class ConsumerCrowd:
    """The members of a consumer group. They share a connection, as none of their requests waits."""

    def __init__(self, meter: Meter, group_id: str, topic: str, topic_id: bytes, partitions: int) -> None:
        self.meter = meter
        self.group_id = group_id
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = partitions
        self.members: list[Member] = []

    def join(self, count: int) -> None:
        """More members join, and all beat until they agree."""
        first = len(self.members)
        members = [Member(self.group_id, number, self.topic) for number in range(first, first + count)]
        self.members += members
        self._beat(members)
        for _ in range(ROUNDS_MAX):
            if self.has_agreed():
                return
            self.meter.sleep(DELAY_MS)
            self._beat(self.members)
        raise RuntimeError(f"{self.group_id} has not agreed after {ROUNDS_MAX} heartbeats of each member")

    def has_agreed(self) -> bool:
        """Whether all are in one epoch, each partition has one owner, and all have equally many."""
        counts = [len(member.owned) for member in self.members]
        owned = {partition for member in self.members for partition in member.owned}
        return (
            len({member.epoch for member in self.members}) == 1
            and sum(counts) == len(owned) == self.partitions
            and max(counts) - min(counts) <= 1
        )

    def heartbeats(self) -> list[bytes]:
        """A heartbeat of each member, as it sends it in a stable group."""
        return [member.request(self.topic_id) for member in self.members]

    def _beat(self, members: Sequence[Member]) -> None:
        meter = self.meter
        session = meter.session
        meter.exchange_all([(session, member.request(self.topic_id)) for member in members])
        data = bytes(meter.answers.pop(session.id, b""))
        position = 0
        for member in members:
            size = 4 + int.from_bytes(data[position : position + 4], "big")
            answer = decode(apis.CONSUMER_GROUP_HEARTBEAT, 1, data[position : position + size])
            assert isinstance(answer, ConsumerGroupHeartbeatResponse)
            member.take(answer)
            position += size
