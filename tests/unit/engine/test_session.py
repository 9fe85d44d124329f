"""The life of a session: every change that its table allows, and changes that it refuses."""

from __future__ import annotations

import random

import pytest

from kcoord.core.outcome import LIMIT, PEER, Now
from kcoord.core.transitions import IllegalTransition
from kcoord.engine.backlogs import hold_back, must_wait
from kcoord.engine.session import CLOSED, ENDING, OPEN, SPARE_BYTES_MAX, STATE_NAMES, TRANSITIONS, Session
from kcoord.server.listen.limits import frame_limits
from kcoord.server.settings.load import load as load_config
from tests.harness.engine import open_memory_engine

NOW = Now(1000, 1_700_000_000_000)


def session_in(state: int) -> Session:
    session = Session(7, "127.0.0.1", "127.0.0.1", 9092, frame_limits(load_config().server))
    if state == ENDING:
        session.end("its request cannot be read")
    elif state == CLOSED:
        session.close()
    return session


@pytest.mark.parametrize("before", TRANSITIONS)
@pytest.mark.parametrize("after", [ENDING, CLOSED])
def test_a_session_follows_its_table_of_transitions(before: int, after: int) -> None:
    session = session_in(before)
    if after in TRANSITIONS[before]:
        if after == ENDING:
            session.end("why")
            assert session.close_reason == "why"
        else:
            session.close()
        assert session.state == after
        return
    with pytest.raises(IllegalTransition) as refused:
        if after == ENDING:
            session.end("again")
        else:
            session.close()
    assert str(refused.value) == f"session 7 cannot go from {STATE_NAMES[before]} to {STATE_NAMES[after]}"
    assert session.state == before and session.close_reason != "again"


def test_no_state_of_a_session_leads_back_to_an_earlier_one() -> None:
    for before, allowed in TRANSITIONS.items():
        assert all(after > before for after in allowed)


def test_only_an_open_session_handles_further_requests() -> None:
    assert not must_wait(session_in(OPEN))
    assert must_wait(session_in(ENDING)) and must_wait(session_in(CLOSED))


def test_a_closed_session_keeps_nothing() -> None:
    session = session_in(ENDING)
    hold_back(session, [b"frame"])
    session.owe(10)
    session.close()
    assert not session.backlog and session.owed_bytes == 0 and session.pool.held_bytes == 0


def test_a_session_that_ends_keeps_its_first_reason_and_is_closed_once() -> None:
    engine = open_memory_engine(NOW)
    session = engine.open_session("127.0.0.1", "127.0.0.1", 9092)
    engine.outbox.close(session, "first", PEER)
    engine.outbox.close(session, "second", LIMIT)
    assert session.state == ENDING and session.close_reason == "first"
    engine.close_session(session, NOW)
    engine.close_session(session, NOW)
    assert session.state == CLOSED and session.id not in engine.sessions


@pytest.mark.parametrize("seed", range(30))
def test_answers_leave_whole_in_order_and_not_before_their_commit(seed: int) -> None:
    rng = random.Random(seed)
    session = session_in(OPEN)
    durable = 0
    # The answers that were not taken, each with the commit that it or one before it waits for.
    waiting: list[tuple[int, bytes]] = []
    released = 0
    has_kept = False
    for number in range(400):
        step = rng.random()
        if step < 0.5:
            answer = bytes([number % 256]) * rng.choice((1, 20, SPARE_BYTES_MAX, SPARE_BYTES_MAX + 1))
            wait_seq = rng.choice((0, 0, durable, durable + 1, durable + 2))
            session.chunk_for(wait_seq).writer.write(answer)
            session.owe(len(answer))
            before = waiting[-1][0] if waiting[released:] else 0
            waiting.append((max(wait_seq, before), answer))
        elif step < 0.8:
            durable += rng.choice((0, 1, 2))
            had_more = released
            while released < len(waiting) and waiting[released][0] <= durable:
                released += 1
            assert session.release(durable) == (released > had_more)
            assert session.has_output() == (released > 0)
        else:
            taken = session.take_answer() if rng.random() < 0.5 else b""
            taken += b"" if taken else session.take_bytes()
            assert taken == b"".join(answer for _, answer in waiting[:released])
            del waiting[:released]
            released = 0
        assert session.owed_bytes == session.pool.held_bytes == sum(len(answer) for _, answer in waiting)
        has_kept = has_kept or session.spare is not None
        assert session.spare is None or (session.spare.size_bytes() == 0 and session.spare not in session.chunks)
    assert has_kept


def test_a_session_that_is_closed_drops_an_answer_that_was_not_taken() -> None:
    session = session_in(OPEN)
    session.chunk_for(0).writer.write(b"answer")
    session.owe(6)
    assert session.release(0)
    session.close()
    assert not session.has_output() and session.take_answer() == b"" and session.owed_bytes == 0
