"""Thousands of transactions end at once: each turn handles only so many steps, and other requests in between."""

from __future__ import annotations

import random
from typing import Final

import pytest

from kcoord.core.outcome import Now
from kcoord.core.transactions.state import COMPLETE_ABORT, ONGOING, PREPARE_ABORT
from kcoord.engine.engine import Engine
from kcoord.log.storage import MemoryStorage
from kcoord.protocol import apis, errors
from kcoord.protocol.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kcoord.protocol.find_coordinator import FindCoordinatorRequest
from kcoord.protocol.heartbeat import HeartbeatRequest
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from tests.harness.engine import Client, finish_turn, open_engine, read_answers, take_output
from tests.unit.engine.test_engine_limits import NOW, create

COUNT: Final = 1500
TIMEOUT_MS: Final = 60_000
LATER: Final = Now(NOW.mono_ms + 2 * TIMEOUT_MS, NOW.wall_ms + 2 * TIMEOUT_MS)
# Timeouts, markers and ends of one turn, with their shares: each kind alone is about ten milliseconds of compiled code.
STEPS_MAX: Final = 800
TURNS_MAX: Final = 200


def open_transactions(engine: Engine, count: int) -> None:
    """Transactions that time out at the same moment, each with a record to be in one partition."""
    client = Client(engine)
    create(client, "t")
    client.ask(apis.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=1, coordinator_keys=["x"]), NOW)
    for number in range(count):
        name = f"x{number}"
        begun = client.ask(apis.INIT_PRODUCER_ID, 4, InitProducerIdRequest(name, TIMEOUT_MS), NOW)
        assert begun.error_code == errors.NONE
        topics = [AddPartitionsToTxnTopic("t", [0])]
        body = AddPartitionsToTxnRequest([], name, begun.producer_id, begun.producer_epoch, topics)
        client.ask(apis.ADD_PARTITIONS_TO_TXN, 3, body, NOW)


def counts(engine: Engine) -> dict[int, int]:
    """Transactions by their state."""
    found = {ONGOING: 0, PREPARE_ABORT: 0, COMPLETE_ABORT: 0}
    for txn in engine.core.transactions.by_id.values():
        found[txn.status] += 1
    return found


def end_turn(engine: Engine, now: Now) -> None:
    """One turn, and the sync of what it wrote."""
    if 0 <= engine.next_deadline_ms() <= now.mono_ms:
        engine.fire_timers(now)
    ticket = engine.end_turn(now)
    if ticket is not None:
        ticket.sync()
        engine.commit_done(ticket, now)


@pytest.mark.parametrize("sync", ["memory", "always"])
def test_transactions_that_time_out_at_once_take_many_turns(sync: str) -> None:
    engine = open_engine(MemoryStorage(), NOW, random.Random(7), sync)
    open_transactions(engine, COUNT)
    other = Client(engine)
    table = engine.data_plane.table
    data = table.find("t", 0)
    assert data is not None
    turns = 0
    while counts(engine)[COMPLETE_ABORT] < COUNT:
        before, markers_before = counts(engine), data.log.end_offset
        asked = other.send(apis.HEARTBEAT, 4, HeartbeatRequest("g", 1, "m"), LATER)
        end_turn(engine, LATER)
        assert [answer[0] for answer in read_answers(take_output(other.session))] == [asked]
        after = counts(engine)
        assert before[ONGOING] - after[ONGOING] <= STEPS_MAX
        assert data.log.end_offset - markers_before <= STEPS_MAX
        assert after[COMPLETE_ABORT] - before[COMPLETE_ABORT] <= STEPS_MAX
        turns += 1
        assert turns < TURNS_MAX, "every transaction ends"
    assert data.log.end_offset == COUNT, "one marker for each"


def test_ends_that_a_restart_continues_take_many_turns() -> None:
    storage = MemoryStorage()
    engine = open_engine(storage, NOW, random.Random(7), "always")
    open_transactions(engine, COUNT)
    # A crash when all are decided and have no markers.
    while counts(engine)[PREPARE_ABORT] < COUNT:
        engine.fire_timers(LATER)
        engine.budget.end_turn()
    ticket = engine.end_turn(LATER)
    assert ticket is not None
    ticket.sync()
    engine.journal.complete(ticket)
    storage.unlock()
    engine = open_engine(storage, LATER, random.Random(8), "always", finish=False)
    turns = 0
    while counts(engine)[COMPLETE_ABORT] < COUNT:
        before = counts(engine)
        end_turn(engine, LATER)
        assert counts(engine)[COMPLETE_ABORT] - before[COMPLETE_ABORT] <= STEPS_MAX
        turns += 1
        assert turns < TURNS_MAX, "every transaction ends"
    finish_turn(engine, LATER)
