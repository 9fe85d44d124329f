"""What large groups cost in the engine alone: members that join, restart one after the other, or rejoin.

    PYTHONPATH=build/compiled:. PYTHONSAFEPATH=1 python -m bench.group_work [--members N ...] [--only NAME]

The engine is in this process, as for `bench.in_process`: whole frames go in and bytes of answers come out, without
sockets and files. Only its CPU time counts, and not that of the members. Each member has a session of its own. In one
round, which is a tenth of a second of the engine's clock, every member sends what its client would send: its next
request if it was answered, and otherwise a heartbeat. A group has agreed when all members are in one generation or
epoch and, with the consumer protocol, own equally many partitions. Assignments are computed at each join (interval 0).

    join      all members join at once
    restart   STEPS times a member leaves, and another one joins; each time until the group agrees
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from typing import NamedTuple

from bench.in_process import InProcess
from bench.seats import KINDS, VERSIONS, Seat
from bench.workload import create_topic, decode, request_frame
from kcoord.core.config import CoreConfig
from kcoord.engine.session import Session
from kcoord.protocol import apis
from kcoord.protocol.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kcoord.server.main import GC_THRESHOLDS

GROUP = "group"
TOPIC = "topic"
STEPS = 10
ROUND_MS = 100
ROUNDS_MAX = 1000


class Work(NamedTuple):
    """CPU seconds of the engine, rounds until the group agreed, and requests."""

    cpu_s: float
    rounds: int
    requests: int


class Place:
    """A member and its session. `waiting` is the API whose answer is missing; -1 for none."""

    def __init__(self, seat: Seat, session: Session) -> None:
        self.seat = seat
        self.session = session
        self.waiting = -1


class Crowd:
    """The members of one group, and the engine that they use."""

    def __init__(self, protocol: str, count: int) -> None:
        self.kind = KINDS[protocol]
        self.is_classic = protocol == "classic"
        config = CoreConfig()
        config.group_consumer_assignment_interval_ms = 0
        self.client = client = InProcess(entropy=random.Random(7).randbytes, config=config)
        create_topic(client, TOPIC, count)  # type: ignore[arg-type]
        asked = MetadataRequest([MetadataRequestTopic(b"\0" * 16, TOPIC)], allow_auto_topic_creation=False)
        self.topic_id = client.call(apis.METADATA, 12, asked, MetadataResponse).topics[0].topic_id
        self.partitions = count
        self.places: list[Place] = []
        self.by_session: dict[int, Place] = {}
        self.made = 0
        self.cpu_s = 0.0
        self.requests = 0

    def add(self) -> None:
        seat = self.kind(GROUP, TOPIC, self.made, self.topic_id)
        self.made += 1
        place = Place(seat, self.client.engine.open_session("127.0.0.1", "127.0.0.1", 9092))
        self.places.append(place)
        self.by_session[place.session.id] = place

    def turn(self, frames: list[tuple[Session, bytes]]) -> list[tuple[Session, bytes]]:
        """Give frames to the engine. Returns what it answers; the CPU time in between counts."""
        engine, now = self.client.engine, self.client.now()
        began = time.process_time()
        engine.fire_timers(now)
        for session, frame in frames:
            engine.receive(session, frame, now)
        engine.end_turn(now)
        while engine.has_more():
            engine.end_turn(now)
        ready = [(session, session.take_bytes()) for session in engine.take_ready()]
        self.cpu_s += time.process_time() - began
        engine.take_facts()
        self.requests += len(frames)
        return ready

    def round(self) -> None:
        frames: list[tuple[Session, bytes]] = []
        for place in self.places:
            if place.waiting < 0:
                place.waiting, version, body = place.seat.request()
                frames.append((place.session, request_frame(place.waiting, version, body)))
        for session, data in self.turn(frames):
            place = self.by_session[session.id]
            api_key, place.waiting = place.waiting, -1
            place.seat.take(decode(api_key, VERSIONS[api_key], data))
        self.client.mono_ms += ROUND_MS

    def agrees(self) -> bool:
        found = [place.seat.agreement() for place in self.places]
        epochs, shares = {epoch for epoch, _ in found}, [share for _, share in found]
        if len(epochs) > 1 or -1 in epochs or max(shares) - min(shares) > 1:
            return False
        return self.is_classic or sum(shares) == self.partitions

    def until_agreed(self) -> Work:
        cpu_s, requests = self.cpu_s, self.requests
        for rounds in range(1, ROUNDS_MAX):
            self.round()
            if self.agrees():
                return Work(self.cpu_s - cpu_s, rounds, self.requests - requests)
        raise RuntimeError(f"no agreement after {ROUNDS_MAX} rounds")

    def replace_one(self) -> Work:
        """A member leaves, and another one joins when the others have agreed."""
        leaver = self.places.pop(len(self.places) // 2)
        cpu_s, requests = self.cpu_s, self.requests
        api_key, version, body = leaver.seat.leave()
        self.turn([(leaver.session, request_frame(api_key, version, body))])
        del self.by_session[leaver.session.id]
        self.client.engine.close_session(leaver.session, self.client.now())
        rounds = self.until_agreed().rounds
        self.add()
        rounds += self.until_agreed().rounds
        return Work(self.cpu_s - cpu_s, rounds, self.requests - requests)


def measure(protocol: str, count: int) -> list[tuple[str, Work]]:
    crowd = Crowd(protocol, count)
    for _ in range(count):
        crowd.add()
    gc.collect()
    # As in the server.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    figures = [("join", crowd.until_agreed())]
    crowd.round()
    steps = [crowd.replace_one() for _ in range(STEPS)]
    figures.append(("restart", Work(*(sum(column) for column in zip(*steps, strict=True)))))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, nargs="*", default=[1000, 5000])
    parser.add_argument("--only", default="", help="measure the protocols whose names contain this")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for protocol in KINDS:
        if arguments.only not in protocol:
            continue
        for count in arguments.members:
            runs = [measure(protocol, count) for _ in range(arguments.rounds)]
            for figures in zip(*runs, strict=True):
                name, work = min(figures, key=lambda figure: figure[1].cpu_s)
                each = work.cpu_s / (count * (STEPS if name == "restart" else 1)) * 1e6
                print(
                    f"{name:8} {protocol:9} {count:6} members: {work.cpu_s:8.3f} s, {each:8.1f} us per member, "
                    f"{work.rounds} rounds, {work.requests} requests, {work.cpu_s / work.requests * 1e6:.2f} us each",
                    flush=True,
                )


if __name__ == "__main__":
    main()
