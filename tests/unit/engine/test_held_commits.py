"""TxnOffsetCommits of version 1 that may be late: held for a moment, and dropped if their connection ends."""

from __future__ import annotations

from kcoord.core.outcome import Now
from kcoord.core.transactions.held_commits import HOLD_MS
from kcoord.protocol import apis, errors
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from tests.harness.engine import Client, decode_answer, finish_turn, read_answers, take_output
from tests.unit.engine.test_txn_offset_commit import AFTER_HOLD, MISSING, NOW, UNSTABLE, VERSION_1, Rig

JUST_BEFORE = Now(HOLD_MS - 1, NOW.wall_ms)


class HeldRig(Rig):
    """A producer that has aborted a transaction with offsets, and has the next one open."""

    def __init__(self) -> None:
        super().__init__()
        self.begin(self.producers[0])
        self.end(False)
        self.begin(self.producers[0])
        # The connections to the coordinator of the group, the older one first.
        self.older = Client(self.engine)
        self.newer = Client(self.engine)

    def send_commit(self, client: Client, offset: int) -> None:
        client.send(apis.TXN_OFFSET_COMMIT, VERSION_1, self.body(offset), NOW)
        finish_turn(self.engine, NOW)

    def pass_time(self, now: Now = AFTER_HOLD) -> None:
        self.engine.fire_timers(now)
        finish_turn(self.engine, now)

    def error_of(self, client: Client) -> int | None:
        """The error of the commit that a client has sent, None while it has no answer."""
        answers = read_answers(take_output(client.session))
        if not answers:
            return None
        answer = decode_answer(apis.TXN_OFFSET_COMMIT, VERSION_1, answers[0][1])
        code = answer.topics[0].partitions[0].error_code
        assert isinstance(code, int)
        return code


def test_the_first_commit_after_an_abort_is_held() -> None:
    rig = HeldRig()
    rig.send_commit(rig.older, 1)
    rig.pass_time(JUST_BEFORE)
    assert rig.error_of(rig.older) is None
    assert rig.fetch() == MISSING
    rig.pass_time()
    assert rig.error_of(rig.older) == errors.NONE
    assert rig.fetch() == UNSTABLE
    rig.send_commit(rig.older, 2)
    assert rig.error_of(rig.older) == errors.NONE, "only the first one is held"
    rig.end(True)
    assert rig.fetch() == 2


def test_a_late_commit_is_dropped_with_its_connection() -> None:
    rig = HeldRig()
    rig.send_commit(rig.older, 1)
    rig.engine.close_session(rig.older.session, NOW)
    rig.pass_time()
    assert rig.fetch() == MISSING
    # The next one comes on a newer connection, but that may be older than the abort as well.
    rig.send_commit(rig.newer, 2)
    assert rig.error_of(rig.newer) is None
    rig.pass_time(Now(2 * HOLD_MS, NOW.wall_ms))
    assert rig.error_of(rig.newer) == errors.NONE
    rig.end(True)
    assert rig.fetch() == 2


def test_the_end_of_another_connection_changes_nothing() -> None:
    rig = HeldRig()
    rig.send_commit(rig.older, 1)
    rig.engine.close_session(rig.newer.session, NOW)
    rig.pass_time()
    assert rig.error_of(rig.older) == errors.NONE


def test_a_commit_on_a_newer_connection_replaces_a_held_one() -> None:
    rig = HeldRig()
    rig.send_commit(rig.older, 1)
    rig.send_commit(rig.newer, 2)
    assert rig.error_of(rig.older) == errors.INVALID_TXN_STATE
    assert rig.error_of(rig.newer) is None
    rig.pass_time()
    assert rig.error_of(rig.newer) == errors.NONE
    rig.end(True)
    assert rig.fetch() == 2


def test_a_held_commit_does_not_reach_the_next_transaction() -> None:
    rig = HeldRig()
    rig.send_commit(rig.older, 1)
    rig.end(False)
    assert rig.error_of(rig.older) == errors.CONCURRENT_TRANSACTIONS
    rig.begin(rig.producers[0])
    rig.pass_time()
    rig.end(True)
    assert rig.fetch() == MISSING


def test_nothing_is_held_after_a_commit_or_for_a_new_producer() -> None:
    rig = HeldRig()
    assert rig.commit(1) == errors.NONE
    rig.end(True)
    rig.begin(rig.producers[0])
    rig.send_commit(rig.older, 2)
    assert rig.error_of(rig.older) == errors.NONE
    rig.end(False)
    answer = rig.client.ask(apis.INIT_PRODUCER_ID, 4, InitProducerIdRequest("p0", 60_000), NOW)
    rig.producers[0].epoch = answer.producer_epoch
    rig.begin(rig.producers[0])
    rig.send_commit(rig.older, 3)
    assert rig.error_of(rig.older) == errors.NONE


def test_a_restart_forgets_what_was_held() -> None:
    rig = HeldRig()
    rig.send_commit(rig.older, 1)
    rig.restart()
    assert rig.fetch() == MISSING
    assert rig.commit(2) == errors.NONE
    rig.end(True)
    assert rig.fetch() == 2
