"""What a real client does after an error of a coordinator: one scenario for every client, API and error.

A case has one rule, and a group (or a transactional id) and a topic of its own, so many cases share a server and run
side by side. A consumer resumes at the committed offset 1, reads a record, commits, reads another one, commits and
leaves; a producer commits two transactions with offsets. The application repeats what has raised an exception, as its
user would. `run` returns what the client did: it repeats the request, rejoins, raises an exception, or goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from kcoord.testing.fixture import Exchange, Fault, KcoordServer

WAIT_S: Final = 60.0
PAUSE_S: Final = 0.02
# A consumer that has read nothing for so long after an error will not: all that it may wait for is much shorter.
STUCK_S: Final = 4.0
STUCK: Final = "reads nothing"
REREAD: Final = "forgets the committed offset"
REPLACED: Final = "needs a new producer"
# Heartbeats are frequent, so that a rule for them is hit at once.
SETTINGS: Final = {
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "50",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "100",
}

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
TRANSACTION: Final = "transaction"

CUT_BEFORE: Final = "connection cut before"
CUT_AFTER: Final = "connection cut after"
ANSWER_LOST: Final = "answer lost"
ACCIDENTS: Final = (CUT_BEFORE, CUT_AFTER, ANSWER_LOST)
# The coordinator does not know the member in this state any more: it is enough to say so once.
MEMBER_ERRORS: Final = (
    "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "FENCED_MEMBER_EPOCH", "STALE_MEMBER_EPOCH",
)  # fmt: skip
# When the rule is set: before the client starts, or before one of its steps.
STEPS: Final = {
    "FindCoordinator": "start", "JoinGroup": "start", "SyncGroup": "start", "OffsetFetch": "start",
    "Heartbeat": "poll", "ConsumerGroupHeartbeat": "poll", "OffsetCommit": "commit", "LeaveGroup": "close",
    "InitProducerId": "start", "AddPartitionsToTxn": "send", "AddOffsetsToTxn": "offsets", "TxnOffsetCommit": "offsets",
    "EndTxn": "commit",
}  # fmt: skip
FIRST: Final = " (first)"
# Answered to every first JoinGroup of a member, so it needs no rule (KIP-394).
NATURAL: Final = "MEMBER_ID_REQUIRED"


@dataclass(frozen=True, slots=True)
class Case:
    """`api` may end with FIRST: the heartbeat that joins."""

    client: str
    protocol: str
    api: str
    fault: str

    @property
    def name(self) -> str:
        """For the group, the topic and the client id."""
        text = f"{self.client}-{self.protocol}-{self.api}-{self.fault}"
        return "".join(one if one.isalnum() else "-" for one in text)

    @property
    def api_name(self) -> str:
        return self.api.removesuffix(FIRST)

    @property
    def step(self) -> str:
        return "start" if self.api.endswith(FIRST) else STEPS[self.api]

    @property
    def times(self) -> int:
        return 1 if self.fault in (*MEMBER_ERRORS, *ACCIDENTS) else 2


class Raised(Exception):
    """The client has raised an exception to its user. `name` is that of its class, or of its error code."""

    def __init__(self, name: str, must_abort: bool = False, is_over: bool = False) -> None:
        super().__init__(name)
        self.name = name
        # A transaction must be aborted; a producer must be closed.
        self.must_abort = must_abort
        self.is_over = is_over


class ConsumerDriver(Protocol):
    """One consumer. Its methods raise Raised for what the client raises."""

    async def start(self) -> None: ...
    async def poll(self, seconds: float) -> Sequence[int]:
        """The offsets of the records that were read."""
        ...

    async def commit(self) -> None: ...
    async def close(self) -> None: ...


class ProducerDriver(Protocol):
    """One transactional producer."""

    async def start(self) -> None: ...
    async def init(self) -> None: ...
    async def begin(self) -> None: ...
    async def send(self, topic: str, value: bytes) -> None: ...
    async def offsets(self, topic: str, offset: int, group: str) -> None: ...
    async def commit(self) -> None: ...
    async def abort(self) -> None: ...
    async def close(self) -> None: ...


class Client(Protocol):
    """Creates drivers."""

    def consumer(self, bootstrap: str, name: str, protocol: str) -> ConsumerDriver: ...
    def producer(self, bootstrap: str, name: str) -> ProducerDriver: ...


def set_rule(server: KcoordServer, case: Case) -> Fault:
    conditions: Any = {"transactional_id": case.name} if case.protocol == TRANSACTION else {"group": case.name}
    if case.fault == CUT_BEFORE:
        return server.cut(case.api_name, at="before", **conditions)
    if case.fault == CUT_AFTER:
        return server.cut(case.api_name, at="after", **conditions)
    if case.fault == ANSWER_LOST:
        return server.drop_answer(case.api_name, **conditions)
    return server.fail(case.api_name, error=case.fault, times=case.times, **conditions)


class Run:
    """One case while it runs: the rule, and the first exception that it made the client raise."""

    def __init__(self, server: KcoordServer, case: Case) -> None:
        self.server = server
        self.case = case
        self.fault: Fault | None = None
        self.raised = ""
        # What else the user sees.
        self.seen: list[str] = []
        # How many exchanges there were when the first transaction was through.
        self.first_count = 0
        self._end = time.monotonic() + WAIT_S

    async def arm(self, step: str) -> None:
        if step == self.case.step and self.case.fault != NATURAL:
            self.fault = await asyncio.to_thread(set_rule, self.server, self.case)

    def note(self, error: Raised) -> None:
        if self.is_armed and not self.raised:
            self.raised = error.name

    @property
    def is_armed(self) -> bool:
        return self.fault is not None

    def check_time(self, doing: str) -> None:
        if time.monotonic() > self._end:
            hits = "not set" if self.fault is None else f"{self.fault.hits} hits"
            seen = "\n".join(map(repr, self.exchanges()[-30:]))
            raise AssertionError(
                f"{self.case}: {doing} took too long; {hits}; raised {self.raised or 'nothing'}\n{seen}"
            )

    def exchanges(self) -> list[Exchange]:
        return self.server.requests(client_id=self.case.name)

    async def forget_old_member(self) -> None:
        """The client joins as a new member while the server has the old one: end its session, as its timeout would."""
        while True:
            await asyncio.sleep(0.1)
            if self.fault is None or self.fault.hits == 0:
                continue
            members = [getattr(one.body, "member_id", "") for one in self.exchanges() if one.api == "JoinGroup"]
            ids = [member_id for member_id in members if member_id]
            for old in set(ids) - set(ids[-1:]):
                try:
                    await asyncio.to_thread(self.server.expire_member, self.case.name, member_id=old)
                except LookupError:
                    pass


async def run(server: KcoordServer, client: Client, case: Case) -> str:
    """What the client does. Raises AssertionError if it does not come through, or leaves a wrong offset."""
    state = Run(server, case)
    janitor = asyncio.create_task(state.forget_old_member())
    try:
        if case.protocol == TRANSACTION:
            await _transactions(state, client)
        else:
            await _consume(state, client)
    finally:
        janitor.cancel()
    return _outcome(state)


# --- a consumer


async def _consume(state: Run, client: Client) -> None:
    server, name = state.server, state.case.name
    await asyncio.to_thread(server.create_topic, name)
    await asyncio.to_thread(server.produce, name, [b"0", b"1"])
    await asyncio.to_thread(server.commit, name, {(name, 0): 1})
    await state.arm("start")
    consumer = await _read_first(state, client)
    await state.arm("poll")
    if state.case.step == "poll":
        await _poll_until_hit(state, consumer)
    await state.arm("commit")
    await _commit(state, consumer, 2)
    await asyncio.to_thread(server.produce, name, b"2")
    assert await _read(state, consumer, 2, WAIT_S)
    await _commit(state, consumer, 3)
    await state.arm("close")
    try:
        await consumer.close()
    except Raised as error:
        state.note(error)
    committed = await asyncio.to_thread(server.committed, name)
    assert committed == {(name, 0): 3}, f"{state.case}: {committed}"
    offsets = [at for one in state.exchanges() if one.is_handled for at in _committed_offsets(one)]
    assert offsets == sorted(offsets) and set(offsets) <= {1, 2, 3}, f"{state.case}: committed {offsets}"


async def _read_first(state: Run, client: Client) -> ConsumerDriver:
    """The application creates another consumer if one does not start, or does not read."""
    while True:
        consumer = client.consumer(state.server.bootstrap, state.case.name, state.case.protocol)
        try:
            await consumer.start()
        except Raised as error:
            state.note(error)
        else:
            if await _read(state, consumer, 1, STUCK_S):
                return consumer
            state.seen.append(STUCK)
            if state.fault is not None:
                await asyncio.to_thread(state.fault.remove)
        state.check_time("start")
        await consumer.close()


async def _read(state: Run, consumer: ConsumerDriver, offset: int, stuck_s: float) -> bool:
    """Whether the record was read. A consumer that was refused offsets is given up after `stuck_s`."""
    hits, since = 0, time.monotonic()
    while True:
        state.check_time(f"reading {offset}")
        try:
            found = await consumer.poll(0.1)
        except Raised as error:
            state.note(error)
            await asyncio.sleep(PAUSE_S)
            found = ()
        if 0 in found and REREAD not in state.seen:
            state.seen.append(REREAD)
        if offset in found:
            return True
        if state.fault is not None and state.fault.hits != hits:
            hits, since = state.fault.hits, time.monotonic()
        if state.case.api == "OffsetFetch" and hits and time.monotonic() > since + stuck_s:
            return False


async def _poll_until_hit(state: Run, consumer: ConsumerDriver) -> None:
    """Until the rule has acted as often as it should, and the member has gone on or has joined again."""
    assert state.fault is not None
    while state.fault.hits < state.case.times or not _has_recovered(state):
        state.check_time("waiting for the rule")
        try:
            await consumer.poll(0.05)
        except Raised as error:
            state.note(error)


def _has_recovered(state: Run) -> bool:
    """A heartbeat of a member that has nothing else to do."""
    exchanges = state.exchanges()
    last_hit = max(number for number, one in enumerate(exchanges) if one.rule is not None)
    after = exchanges[last_hit + 1 :]
    beats = [
        one for one in after if one.api == state.case.api_name and not one.errors and one.is_sent and not _is_join(one)
    ]
    joins = [one for one in after if _is_join(one)]
    return bool(beats) and (not joins or any(one.api == "OffsetFetch" for one in after))


async def _commit(state: Run, consumer: ConsumerDriver, offset: int) -> None:
    """Commit, until the server has it. After an exception the member may have to join and to read again."""
    is_first = True
    while is_first or (await asyncio.to_thread(state.server.committed, state.case.name)) != {
        (state.case.name, 0): offset
    }:
        state.check_time(f"committing {offset}")
        if not is_first:
            try:
                await consumer.poll(0.05)
            except Raised as error:
                state.note(error)
        is_first = False
        try:
            await consumer.commit()
        except Raised as error:
            state.note(error)


def _committed_offsets(one: Exchange) -> list[int]:
    if one.api != "OffsetCommit":
        return []
    body: Any = one.body
    return [partition.committed_offset for topic in body.topics for partition in topic.partitions]


# --- a transactional producer


async def _transactions(state: Run, client: Client) -> None:
    server, name = state.server, state.case.name
    await asyncio.to_thread(server.create_topic, name)
    await asyncio.to_thread(server.create_topic, f"{name}-read")
    await state.arm("start")
    producer = await _producer(state, client)
    for number in (1, 2):
        while True:
            state.check_time(f"transaction {number}")
            try:
                await _transaction(state, producer, number)
                state.first_count = state.first_count or len(state.exchanges())
                break
            except Raised as error:
                state.note(error)
                producer = await _abort(state, client, producer, error)
    await producer.close()
    committed = await asyncio.to_thread(server.committed, name)
    assert committed == {(f"{name}-read", 0): 2}, f"{state.case}: {committed}"
    records = await asyncio.to_thread(server.records, name, isolation="read_committed")
    assert [one.value for one in records] == [b"1", b"2"], f"{state.case}: {records}"


async def _producer(state: Run, client: Client) -> ProducerDriver:
    while True:
        producer = client.producer(state.server.bootstrap, state.case.name)
        try:
            await producer.start()
        except Raised as error:
            state.note(error)
            state.check_time("start")
            await producer.close()
            continue
        while True:
            try:
                await producer.init()
                return producer
            except Raised as error:
                state.note(error)
                state.check_time("init")
                if error.is_over:
                    break
        await producer.close()


async def _transaction(state: Run, producer: ProducerDriver, number: int) -> None:
    name = state.case.name
    await producer.begin()
    if not state.is_armed:
        await state.arm("send")
    await producer.send(name, str(number).encode())
    if not state.is_armed:
        await state.arm("offsets")
    await producer.offsets(f"{name}-read", number, name)
    if not state.is_armed:
        await state.arm("commit")
    await producer.commit()


async def _abort(state: Run, client: Client, producer: ProducerDriver, error: Raised) -> ProducerDriver:
    if not error.is_over:
        try:
            await producer.abort()
            return producer
        except Raised as again:
            state.note(again)
    await producer.close()
    state.seen.append(REPLACED)
    return await _producer(state, client)


# --- what the client did


def _outcome(state: Run) -> str:
    case = state.case
    exchanges = state.exchanges()
    hits = [number for number, one in enumerate(exchanges) if _is_hit(case, one)]
    assert hits, f"{case}: the rule was not hit"
    hit = hits[0]
    after = exchanges[hit + 1 : state.first_count or len(exchanges)]
    parts = [f"raises {state.raised}"] if state.raised else []
    if case.protocol != TRANSACTION and (case.step != "start" or case.api == "SyncGroup") and any(map(_is_join, after)):
        parts.append("rejoins")
    elif _is_repeated(case, after) and not parts and not state.seen:
        parts.append("repeats")
    parts += state.seen
    return ", ".join(parts or ["goes on"])


def _is_hit(case: Case, one: Exchange) -> bool:
    return one.errors == [NATURAL] if case.fault == NATURAL else one.rule is not None


def _is_join(one: Exchange) -> bool:
    return one.api == "JoinGroup" or (one.api == "ConsumerGroupHeartbeat" and getattr(one.body, "member_epoch", 1) == 0)


def _is_repeated(case: Case, after: Sequence[Exchange]) -> bool:
    again = [one for one in after if one.api == case.api_name]
    if case.api == "OffsetCommit":
        return any(2 in _committed_offsets(one) for one in again)
    return bool(again)
