"""Whole engines without sockets, for tests: in memory, with clocks and randomness of the test's own."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from kcoord.core.assignors.spec import Assignor
from kcoord.core.config import CoreConfig
from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.engine.session import Session
from kcoord.log.directory import open_directory
from kcoord.log.journal import Journal
from kcoord.log.storage import MemoryStorage, Storage
from kcoord.protocol import apis
from kcoord.server.listen.limits import frame_limits
from kcoord.server.settings.load import load as load_config
from kcoord.wire.primitives import BytesWriter, Reader, write_int16, write_int32, write_nullable_string
from tests.harness.core_invariants import engine_problems

REPOSITORY = Path(__file__).resolve().parents[2]
CLUSTER_ID = "dGVzdGNsdXN0ZXItLS0tLQ"


def open_engine(
    storage: Storage,
    now: Now,
    rng: random.Random | None = None,
    sync: str = "always",
    config: CoreConfig | None = None,
    assignors: dict[str, Assignor] | None = None,
    finish: bool = True,
) -> Engine:
    """Open (or make) the log in `storage` and load it. The engine lets its own bugs surface.

    Without `finish`, what the start leaves to later turns is not done.
    """
    random_bytes = (rng or random.Random(7)).randbytes
    directory = open_directory(storage, 1, CLUSTER_ID, CLUSTER_ID)
    journal = Journal(directory, sync)
    core_config = config
    if core_config is None:
        core_config = CoreConfig()
        # A topic that tests which are about others would meet everywhere.
        core_config.group_events_enable = False
    core_config.cluster_id = CLUSTER_ID
    engine = Engine(core_config, directory, journal, random_bytes, frame_limits(load_config().server), assignors)
    engine.outbox.strict = True
    engine.load(now)
    if finish:
        finish_turn(engine, now)
    return engine


def open_memory_engine(
    now: Now,
    rng: random.Random | None = None,
    config: CoreConfig | None = None,
    assignors: dict[str, Assignor] | None = None,
) -> Engine:
    return open_engine(MemoryStorage(), now, rng, "memory", config, assignors)


def finish_turn(engine: Engine, now: Now) -> None:
    """End the turn and, where there is something to sync, sync it, until nothing is left."""
    ticket = engine.end_turn(now)
    while ticket is not None or engine.has_more():
        if ticket is not None:
            ticket.sync()
            engine.commit_done(ticket, now)
        ticket = engine.end_turn(now)
    engine.take_ready()
    problems = engine_problems(engine)
    assert not problems, problems


def run_jobs(engine: Engine, now: Now, *keys: str) -> list[str]:
    """Run the jobs with these keys, in this order, or else all that come up; their keys. Ends every turn.

    What is taken and not among `keys` is left to be run by a later call, on the same engine.
    """
    ran: list[str] = []
    finish_turn(engine, now)
    engine.take_jobs()
    while engine.applier.jobs_in_flight:
        wanted = [key for key in keys if key not in ran] if keys else list(engine.applier.jobs_in_flight)
        if not wanted:
            break
        job = engine.applier.jobs_in_flight[wanted[0]]
        ran.append(job.key)
        engine.job_done(job, job.run(), None, now)
        finish_turn(engine, now)
        engine.take_jobs()
    return ran


def request_frame(api_key: int, version: int, message: Any, correlation_id: int = 1, client_id: str = "test") -> bytes:
    """A whole request with its size field."""
    w = BytesWriter()
    write_int16(w, api_key)
    write_int16(w, version)
    write_int32(w, correlation_id)
    write_nullable_string(w, client_id)
    if version >= apis.APIS[api_key].flexible_version:
        w.append(0)
    apis.encode_request(w, api_key, message, version)
    data = w.getvalue()
    return len(data).to_bytes(4, "big") + data


def take_output(session: Session) -> bytes:
    """Everything that may be written to the connection now, as one piece."""
    return session.take_bytes()


def read_answers(data: bytes) -> list[tuple[int, bytes]]:
    """Whole response frames as (correlation id, rest)."""
    found: list[tuple[int, bytes]] = []
    position = 0
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        frame = data[position + 4 : position + 4 + size]
        assert len(frame) == size, "a response frame is cut short"
        found.append((int.from_bytes(frame[:4], "big", signed=True), frame[4:]))
        position += 4 + size
    return found


def decode_answer(api_key: int, version: int, rest: bytes) -> Any:
    header_version = apis.APIS[api_key].response_header_version(version)
    reader = Reader(rest, 1 if header_version == 1 else 0)
    response = apis.decode_response(api_key, reader, version)
    reader.expect_end()
    return response


class Client:
    """A connection to an engine whose requests are answered one at a time."""

    def __init__(self, engine: Engine, host: str = "127.0.0.1") -> None:
        self.engine = engine
        self.session: Session = engine.open_session(host, "127.0.0.1", 9092)
        self.correlation_id = 0

    def send(self, api_key: int, version: int, message: Any, now: Now) -> int:
        self.correlation_id += 1
        frame = request_frame(api_key, version, message, self.correlation_id)
        self.engine.receive(self.session, frame, now)
        return self.correlation_id

    def ask(self, api_key: int, version: int, message: Any, now: Now) -> Any:
        """Send, finish the turn, and return the one answer."""
        correlation_id = self.send(api_key, version, message, now)
        finish_turn(self.engine, now)
        answers = read_answers(take_output(self.session))
        assert [a[0] for a in answers] == [correlation_id], (answers, self.session.close_reason)
        return decode_answer(api_key, version, answers[0][1])
