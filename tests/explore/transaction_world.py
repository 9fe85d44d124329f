"""A whole engine, its disk and clock, transactional producers, and the network between them.

Every step is one that a scheduler, a network or a power cut may take: a request is sent, arrives much later, or its
answer is lost; a turn ends, a file is synced, a job runs, time passes; a client dies; the machine loses power at any
operation of the storage, and what was not synced is lost in part. What the clients were told is on their transactions.
"""

from __future__ import annotations

import random
from typing import Any, Final

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import Job, Now
from kcoord.engine.engine import Engine
from kcoord.engine.session import Session
from kcoord.log.journal import CommitTicket, sync_one
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.find_coordinator import FindCoordinatorRequest
from tests.explore.transaction_checks import CommittedReader, broken, fetch_committed, read_logs
from tests.explore.transaction_client import PARTITIONS, TIMEOUT_MS, TOPIC, Ask, Producer, Refused, Txn
from tests.harness.engine import (
    Client,
    decode_answer,
    finish_turn,
    open_engine,
    read_answers,
    request_frame,
    take_output,
)
from tests.harness.faulty_storage import FaultyStorage, Naming, Piece, Snapshot

WALL_MS: Final = 1_700_000_000_000
RETRY_MS: Final = 20
# The end of a connection arrives within this time after its last bytes.
END_DELAY_MS: Final = 15
GROUP_KEY, TRANSACTION_KEY = 0, 1
LATE_APIS: Final = (
    apis.TXN_OFFSET_COMMIT, apis.TXN_OFFSET_COMMIT, apis.PRODUCE, apis.END_TXN, apis.ADD_PARTITIONS_TO_TXN,
    apis.INIT_PRODUCER_ID,
)  # fmt: skip
LATE_SHARE: Final = 0.35
# The end of an InitProducerId that names no producer id and epoch.
NO_PRODUCER: Final = b"\xff" * 10 + b"\x00"
# Each so many turns, one writes what the others have held back.
HOLD_TURNS: Final = 4
# A run that is left alone ends within so many turns.
SETTLE_TURNS: Final = 3000


class PowerCut(BaseException):
    """The machine loses power in the middle of an operation."""


class Violation(Exception):
    """A promise was broken."""


class Remote:
    """A client and its connections, from the outside."""

    def __init__(self, producer: Producer, initials: int) -> None:
        self.producer = producer
        self.sessions: dict[str, Session] = {}
        self.ask: Ask | None = None
        # The connection of the request that is under way.
        self.sent: Session | None = None
        # How many requests for a producer id there were when its own was sent, and how often time has jumped.
        self.initials = initials
        self.jumps = 0
        self.crashes = 0

    def is_excused(self, crashes: int) -> bool:
        """Whether a crash explains that it cannot get its next epoch: which one it had before is not in the log."""
        return self.ask is not None and self.ask.api_key == apis.INIT_PRODUCER_ID and self.crashes < crashes


class World:
    def __init__(
        self, rng: random.Random, version: int, producers: int, count: int, storage: FaultyStorage | None = None
    ) -> None:
        self.rng = rng
        self.mono_ms = 0
        self.steps: list[str] = []
        self.txns: dict[int, Txn] = {}
        self.initials: dict[str, int] = {}
        self.jumps = 0
        self.crashes = 0
        self.correlation_id = 0
        # What is late most of the time in this run, and how much is late otherwise.
        self.late_api = rng.choice(LATE_APIS)
        self.late_share = rng.choice((0.02, 0.1))
        self.reader = CommittedReader()
        self.committed: dict[tuple[str, int], int] = {}
        self.storage = FaultyStorage() if storage is None else storage
        self.open()
        client = Client(self.engine)
        client.ask(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic(TOPIC, PARTITIONS, 1)]), self.now())
        for kind in (GROUP_KEY, TRANSACTION_KEY):
            client.ask(apis.FIND_COORDINATOR, 2, FindCoordinatorRequest("a", kind), self.now())
        self.remotes: list[Remote] = []
        for number in range(producers):
            self.start_producer("ab"[number % 2], rng.choice((1, 2)) if version == 0 else version, count)

    # --- the server

    def now(self) -> Now:
        return Now(self.mono_ms, WALL_MS + self.mono_ms)

    def open(self) -> None:
        config = CoreConfig()
        config.group_events_enable = False
        config.transaction_topic_num_partitions = 2
        self.engine: Engine = open_engine(self.storage, self.now(), random.Random(7), config=config)
        self.ticket: CommitTicket | None = None
        self.jobs: list[Job] = []
        self.late: list[tuple[Session, bytes, str]] = []
        # Connections that clients have closed, and when the end of each arrives.
        self.closings: list[tuple[int, Session]] = []

    def end_turn(self) -> None:
        self.mono_ms += 1
        self.close_connections()
        self.engine.fire_timers(self.now())
        # Records that nobody waits for may go with a later commit, as in a server, which waits a moment.
        ticket = self.engine.end_turn(self.now(), self.mono_ms % HOLD_TURNS != 0)
        if ticket is not None:
            self.ticket = ticket
        self.jobs += self.engine.take_jobs()
        self.collect()

    def sync(self) -> None:
        ticket = self.ticket
        assert ticket is not None
        if ticket.syncs:
            sync_one(ticket.syncs.pop(self.rng.randrange(len(ticket.syncs))))
        if not ticket.syncs:
            self.ticket = None
            self.engine.commit_done(ticket, self.now())
            self.collect()

    def run_job(self) -> None:
        job = self.jobs.pop(0)
        self.engine.job_done(job, job.run(), None, self.now())

    def crash(self, snapshot: Snapshot) -> None:
        """Lose power, and start again with what is left of the files."""
        self.crashes += 1
        self.storage = snapshot.crash(self.surviving(snapshot))
        for remote in self.remotes:
            remote.sessions.clear()
            if remote.sent is not None:
                remote.sent = None
                self.resume(remote, None)
        self.open()
        self.look()

    def surviving(self, snapshot: Snapshot) -> list[Piece]:
        rng = self.rng
        pieces = snapshot.pieces()
        way = rng.randrange(4)
        if way == 0:
            return []
        if way == 1:
            return pieces[: rng.randint(0, len(pieces))]
        if way == 2:
            return [piece for piece in pieces if rng.random() < 0.5]
        # Whole files, each on its own.
        lost: dict[int, bool] = {}
        kept: list[Piece] = []
        for piece in pieces:
            item = snapshot.pending[piece.operation]
            number = -1 if isinstance(item, Naming) else item.node.number
            if lost.setdefault(number, rng.random() < 0.5 and number >= 0):
                continue
            kept.append(piece)
        return kept

    # --- clients

    def start_producer(self, transactional_id: str, version: int, count: int) -> None:
        producer = Producer(transactional_id, version, count, self.rng, self.new_txn)
        remote = Remote(producer, self.initials.get(transactional_id, 0))
        remote.ask = next(producer.life)
        self.remotes.append(remote)

    def new_txn(self, transactional_id: str) -> Txn:
        txn = Txn(len(self.txns) + 1, transactional_id)
        self.txns[txn.number] = txn
        for remote in self.remotes:
            if remote.producer.transactional_id == transactional_id:
                remote.jumps = self.jumps
                remote.crashes = self.crashes
        return txn

    def resume(self, remote: Remote, answer: Any) -> None:
        """The client gets an answer, or with None loses its connection."""
        try:
            remote.ask = remote.producer.life.send(answer)
        except StopIteration:
            self.remove(remote)
        except Refused as refused:
            self.remove(remote)
            is_replaced = self.initials.get(remote.producer.transactional_id, 0) > remote.initials
            if not is_replaced and remote.jumps == self.jumps and not remote.is_excused(self.crashes):
                raise Violation(f"{remote.producer.txn}: {refused}, and nobody replaced it") from refused
            self.steps.append(f"  {refused}")
        self.look_at(remote.producer.txn)

    def remove(self, remote: Remote) -> None:
        self.remotes.remove(remote)

    def send(self, remote: Remote) -> None:
        """Send the request of a client. It may be late, and then the client has given it up."""
        ask = remote.ask
        assert ask is not None
        rng = self.rng
        session = remote.sessions.get(ask.role)
        if session is None:
            session = remote.sessions[ask.role] = self.engine.open_session("127.0.0.1", "127.0.0.1", 9092)
        self.correlation_id += 1
        frame = request_frame(ask.api_key, ask.version, ask.body, self.correlation_id)
        label = f"{apis.APIS[ask.api_key].name} v{ask.version} on {session.id}"
        if rng.random() < (LATE_SHARE if ask.api_key == self.late_api else self.late_share):
            self.steps.append(f"delay {label}")
            self.late.append((session, frame, label))
            self.lose(remote, ask.role)
            return
        self.steps.append(label)
        self.deliver(session, frame, remote)
        if rng.random() < 0.06:
            self.steps.append("  its answer is lost")
            self.lose(remote, ask.role)
            return
        remote.sent = session
        self.collect()

    def lose(self, remote: Remote, role: str) -> None:
        remote.sessions.pop(role, None)
        remote.sent = None
        self.resume(remote, None)

    def deliver_late(self, session: Session, frame: bytes) -> None:
        """A request arrives that its client has given up, and soon after it the end of the connection."""
        self.deliver(session, frame, None)
        self.closings.append((self.mono_ms + self.rng.randrange(END_DELAY_MS), session))

    def close_connections(self) -> None:
        for due_ms, session in list(self.closings):
            if due_ms <= self.mono_ms:
                self.closings.remove((due_ms, session))
                self.engine.close_session(session, self.now())

    def deliver(self, session: Session, frame: bytes, remote: Remote | None) -> None:
        api_key = int.from_bytes(frame[4:6], "big")
        if api_key == apis.INIT_PRODUCER_ID and frame.endswith(NO_PRODUCER):
            self.note_initial(frame, remote)
        if self.rng.random() < 0.3:
            # The check of a large batch is a job, and its append comes in a later turn.
            produce = self.engine.data_plane.produce
            for budget in (produce.turn, produce.small):
                budget.content_bytes = budget.elements = 0
        self.engine.receive(session, frame, self.now())
        self.jobs += self.engine.take_jobs()

    def note_initial(self, frame: bytes, remote: Remote | None) -> None:
        """A producer without an id and epoch replaces every other one, itself included if it is a late copy."""
        for other in self.remotes:
            transactional_id = other.producer.transactional_id
            if transactional_id.encode() + TIMEOUT_MS.to_bytes(4, "big") in frame:
                self.initials[transactional_id] = self.initials.get(transactional_id, 0) + 1
                break
        if remote is not None:
            remote.initials = self.initials.get(remote.producer.transactional_id, 0)

    def collect(self) -> None:
        """Hand out the answers that may leave."""
        for session in self.engine.take_ready():
            if session.close_reason:
                raise Violation(f"the server closed a connection: {session.close_reason}")
        for remote in list(self.remotes):
            session_of = remote.sent
            if session_of is None or remote.ask is None:
                continue
            answers = read_answers(take_output(session_of))
            if answers:
                remote.sent = None
                answer = decode_answer(remote.ask.api_key, remote.ask.version, answers[-1][1])
                self.resume(remote, answer)

    # --- checks

    def look_at(self, txn: Txn | None) -> None:
        """When a client knows how its transaction ended, everybody does."""
        if txn is not None and txn.told is not None:
            self.check(broken(read_logs(self.engine), self.txns, False))

    def look(self) -> None:
        """A consumer reads on, and committed offsets only grow."""
        self.reader.poll(self.engine, self.now())
        for transactional_id in "ab":
            for partition in range(PARTITIONS):
                stored = self.engine.core.offsets.get(transactional_id, TOPIC, partition)
                number = -1 if stored is None else stored.committed_offset
                if number < self.committed.get((transactional_id, partition), -1):
                    raise Violation(f"the offset of {transactional_id} went back to transaction {number}")

    def check(self, problems: list[str]) -> None:
        if problems:
            raise Violation("; ".join(problems))

    def settle(self) -> None:
        """No further faults: everything comes to its end, and then everything is looked at."""
        for session, frame, _ in self.late:
            self.deliver_late(session, frame)
        self.late = []
        for _ in range(SETTLE_TURNS):
            for remote in list(self.remotes):
                if remote in self.remotes and remote.sent is None and remote.ask is not None:
                    self.send_now(remote)
            while self.jobs:
                self.run_job()
            self.end_turn()
            while self.ticket is not None:
                self.sync()
            if not self.remotes and not self.engine.has_more() and not self.engine.has_unwritten():
                break
        else:
            raise Violation(f"clients wait for ever: {[remote.ask for remote in self.remotes]}")
        self.mono_ms += 2 * TIMEOUT_MS
        self.engine.fire_timers(self.now())
        finish_turn(self.engine, self.now())
        self.final()

    def send_now(self, remote: Remote) -> None:
        ask = remote.ask
        assert ask is not None
        session = remote.sessions.get(ask.role)
        if session is None:
            session = remote.sessions[ask.role] = self.engine.open_session("127.0.0.1", "127.0.0.1", 9092)
        self.correlation_id += 1
        self.steps.append(f"{apis.APIS[ask.api_key].name} v{ask.version} on {session.id}")
        remote.sent = session
        self.deliver(session, request_frame(ask.api_key, ask.version, ask.body, self.correlation_id), remote)
        self.collect()

    def final(self) -> None:
        verdict = read_logs(self.engine)
        self.check(broken(verdict, self.txns, True))
        self.reader.poll(self.engine, self.now())
        before = self.shown()
        digest = self.engine.core.digest()
        for partition in range(PARTITIONS):
            where = f"{TOPIC}-{partition}"
            tp = self.engine.data_plane.table.find(TOPIC, partition)
            assert tp is not None
            if tp.last_stable_offset != tp.log.end_offset:
                raise Violation(f"the last stable offset of {where} stays at {tp.last_stable_offset}")
            if self.reader.seen[partition] != verdict.values[where]:
                raise Violation(f"{where}: {self.reader.seen[partition]} read, {verdict.values[where]} committed")
            if before[0][partition] != verdict.values[where]:
                raise Violation(f"{where}: read again, {before[0][partition]}, {verdict.values[where]} committed")
        if before[1] != verdict.offsets:
            raise Violation(f"offsets are {before[1]}, the log says {verdict.offsets}")
        self.storage = self.storage.crash()
        self.open()
        if self.engine.core.digest() != digest or self.shown() != before:
            raise Violation("a restart changes what is stored")

    def shown(self) -> tuple[list[list[tuple[int, bytes]]], dict[tuple[str, int], int]]:
        """What a consumer reads from the beginning, and the committed offsets."""
        values = [fetch_committed(self.engine, partition, 0, self.now())[0] for partition in range(PARTITIONS)]
        offsets: dict[tuple[str, int], int] = {}
        for transactional_id in "ab":
            for partition in range(PARTITIONS):
                stored = self.engine.core.offsets.get(transactional_id, TOPIC, partition)
                if stored is not None:
                    offsets[transactional_id, partition] = stored.committed_offset
        return values, offsets
