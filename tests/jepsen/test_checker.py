"""The checker on short histories written by hand: what each anomaly is, and what is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jepsen import anomalies
from tests.jepsen.checker import check, describe, errors
from tests.jepsen.history import History, Kind, Name, Operation, Poll, Send, Step, load, renumber, save
from tests.jepsen.simulation import Simulation

K = "topic-0"
L = "topic-1"


def op(process: str, name: Name, kind: Kind, *steps: Step, **fields: Any) -> list[Operation]:
    """An operation with its invocation; nothing else happens between them."""
    sends = tuple(step._replace(offset=None) for step in steps if isinstance(step, Send))
    return [Operation(0, process, "invoke", name, sends), Operation(0, process, kind, name, steps, **fields)]


def poll(*values: int, key: str = K) -> Poll:
    """Each value at the offset of its own number."""
    return Poll({key: [(value, value) for value in values]})


def history(*operations: list[Operation]) -> History:
    return renumber(one for pair in operations for one in pair)


def found(*operations: list[Operation]) -> set[str]:
    return {one.kind for one in check(history(*operations))}


def written(*values: int, key: str = K) -> list[Operation]:
    """Plain sends of another process, acknowledged."""
    return [one for value in values for one in op(f"writer-{key}", "send", "ok", Send(key, value, value))]


def test_nothing_is_wrong_with_nothing() -> None:
    assert check([]) == []


def test_two_values_at_one_offset() -> None:
    other = op("p", "send", "ok", Send(K, 7, 1))
    assert found(written(1), other, op("r", "poll", "ok", poll(1))) == {
        anomalies.INCONSISTENT_OFFSETS, anomalies.LOST_WRITE, anomalies.UNSEEN, anomalies.REALTIME_ORDER,
    }  # fmt: skip


def test_one_value_at_two_offsets() -> None:
    twice = Poll({K: [(1, 1), (2, 1)]})
    assert found(written(1), op("r", "poll", "ok", twice)) == {anomalies.DUPLICATE, anomalies.INT_NONMONOTONIC_POLL}


def test_a_value_that_nobody_sent() -> None:
    assert found(written(1), op("r", "poll", "ok", poll(1, 2))) == {anomalies.UNWRITTEN_READ}


def test_a_read_of_an_aborted_write() -> None:
    aborted = op("p", "txn", "fail", Send(K, 1, 1))
    assert found(aborted, op("r", "poll", "ok", poll(1))) == {anomalies.ABORTED_READ}
    assert found(aborted, op("r", "poll", "ok", poll())) == set()


@pytest.mark.parametrize("kind", ["ok", "info", "fail"])
def test_a_read_of_its_own_write(kind: Kind) -> None:
    assert anomalies.PRECOMMITTED_READ in found(op("p", "txn", kind, Send(K, 1, 1), poll(1)))


def test_a_read_before_the_commit() -> None:
    def case(read_at: int) -> set[str]:
        read = Poll({K: [(1, 1)]}, read_at)
        return found(op("p", "txn", "ok", Send(K, 1, 1), commit_ns=500), op("r", "poll", "ok", read))

    assert case(499) == {anomalies.PRECOMMITTED_READ}
    assert case(500) == set()


def test_a_lost_write() -> None:
    reader = op("r", "poll", "ok", poll(1)), op("s", "poll", "ok", poll(3))
    assert found(written(1, 2, 3), *reader) == {anomalies.LOST_WRITE, anomalies.UNSEEN}


def test_the_last_value_is_unseen_and_not_lost() -> None:
    assert found(written(1, 2), op("r", "poll", "ok", poll(1))) == {anomalies.UNSEEN}


def test_a_write_without_result_may_be_missing() -> None:
    unknown = op("p", "txn", "info", Send(K, 2, 2))
    assert found(written(1), unknown, written(3), op("r", "poll", "ok", poll(1, 3))) == set()


def test_a_part_of_a_transaction_without_result_proves_the_rest() -> None:
    torn = op("p", "txn", "info", Send(K, 2, 2), Send(L, 5, 5))
    readers = op("r", "poll", "ok", poll(1, 3)), op("s", "poll", "ok", poll(5, key=L))
    kinds = {anomalies.LOST_WRITE, anomalies.UNSEEN, anomalies.INT_POLL_SKIP}
    assert found(written(1), torn, written(3), *readers) == kinds


def test_plain_sends_without_result_prove_nothing() -> None:
    unknown = op("p", "send", "info", Send(K, 2, 2), Send(L, 5, 5))
    readers = op("r", "poll", "ok", poll(1, 3)), op("s", "poll", "ok", poll(5, key=L))
    assert found(written(1), unknown, written(3), *readers) == set()


def test_polls_that_skip_or_go_back() -> None:
    everything = op("s", "poll", "ok", poll(1, 2, 3))
    assert found(written(1, 2, 3), everything, op("r", "poll", "ok", poll(1, 3))) == {anomalies.INT_POLL_SKIP}
    assert found(written(1, 2, 3), everything, op("r", "poll", "ok", poll(2), poll(1))) == {
        anomalies.INT_NONMONOTONIC_POLL
    }
    for values, kind in (
        ((1, 3), anomalies.POLL_SKIP),
        ((2, 1), anomalies.NONMONOTONIC_POLL),
        ((2, 2), "nonmonotonic-poll"),
    ):
        two = [op("r", "poll", "ok", poll(value)) for value in values]
        assert found(written(1, 2, 3), everything, *two) == {kind}


def test_a_gap_without_values_is_no_skip() -> None:
    assert found(written(1, 5), op("r", "poll", "ok", poll(1, 5))) == set()


def test_what_may_move_a_reader() -> None:
    everything = written(1, 2, 3), op("s", "poll", "ok", poll(1, 2, 3))
    first, third = op("r", "poll", "ok", poll(1)), op("r", "poll", "ok", poll(3))
    rebalanced = op("r", "poll", "ok", poll(3), rebalanced=frozenset({K}))
    assert found(*everything, first, rebalanced) == set()
    assert found(*everything, first, op("r", "assign", "ok", keys=(L,)), third) == set()
    assert found(*everything, first, op("r", "assign", "ok", keys=(K, L)), third) == {anomalies.POLL_SKIP}
    # After a failed operation the client goes back; after one without result it may have gone on, or not.
    assert found(*everything, first, op("r", "txn", "fail", poll(2)), third) == {anomalies.POLL_SKIP}
    assert found(*everything, first, op("r", "txn", "info", poll(2)), third) == set()
    assert found(*everything, first, op("r", "txn", "info", poll(2)), op("r", "poll", "ok", poll(2))) == set()


def test_sends_that_go_back() -> None:
    reader = op("r", "poll", "ok", poll(1, 2))
    assert found(op("p", "txn", "ok", Send(K, 2, 2), Send(K, 1, 1)), reader) == {anomalies.INT_NONMONOTONIC_SEND}
    second, first = op("p", "send", "ok", Send(K, 2, 2)), op("p", "send", "ok", Send(K, 1, 1))
    assert found(second, first, reader) == {anomalies.NONMONOTONIC_SEND, anomalies.REALTIME_ORDER}


def test_offsets_against_time_are_found_between_processes() -> None:
    late, early = op("p", "send", "ok", Send(K, 2, 2)), op("q", "send", "ok", Send(K, 1, 1))
    reader = op("r", "poll", "ok", poll(1, 2))
    assert found(late, early, reader) == {anomalies.REALTIME_ORDER}
    overlapping = [early[0], late[0], late[1], early[1]]
    assert found(overlapping, reader) == set()


def test_transactions_may_interleave() -> None:
    p, q = op("p", "txn", "ok", Send(K, 1, 1), Send(K, 3, 3)), op("q", "txn", "ok", Send(K, 2, 2))
    reader = op("r", "poll", "ok", poll(1, 2, 3))
    interleaved = check(history([p[0], q[0], q[1], p[1]], reader))
    assert {one.kind for one in interleaved} == {anomalies.INT_SEND_SKIP, anomalies.WRITE_CYCLE}
    assert errors(interleaved) == []


def test_transactions_that_read_from_each_other() -> None:
    p = op("p", "txn", "ok", Send(K, 1, 1), poll(2, key=L))
    q = op("q", "txn", "ok", Send(L, 2, 2), poll(1))
    mutual = check(history([p[0], q[0], q[1], p[1]]))
    assert [one.kind for one in mutual] == [anomalies.READ_CYCLE]
    assert mutual[0].detail == "2 wr -> 3 wr -> 2"
    assert "(2 q ok txn; 3 p ok txn)" in str(mutual[0])


def test_a_read_from_the_future() -> None:
    assert found(op("r", "poll", "ok", poll(1)), written(1)) == {anomalies.READ_CYCLE}
    # As long as they overlap, one may have come before the other.
    reader, writer = op("r", "poll", "ok", poll(1)), written(1)
    assert found([reader[0], writer[0], reader[1], writer[1]]) == set()


def test_a_value_that_two_transactions_of_a_group_consumed() -> None:
    def consumed(kind: Kind, group: str) -> set[str]:
        first = op("p", "txn", "ok", poll(1), group="g")
        return found(written(1, 2), first, op("q", "txn", kind, poll(1, 2), group=group))

    assert consumed("ok", "g") == {anomalies.CONSUMED_TWICE}
    assert consumed("ok", "other") == set()
    assert consumed("info", "g") == set()
    assert consumed("fail", "g") == set()


def test_a_value_that_a_group_passed() -> None:
    def passed(*between: list[Operation]) -> set[str]:
        parts = op("p", "txn", "ok", poll(1), group="g"), *between, op("q", "txn", "ok", poll(3), group="g")
        return found(written(1, 2, 3), op("r", "poll", "ok", poll(1, 2, 3)), *parts)

    assert passed() == {anomalies.CONSUMED_NEVER}
    assert passed(op("s", "txn", "fail", poll(2), group="g")) == {anomalies.CONSUMED_NEVER}
    assert passed(op("s", "txn", "info", poll(2), group="g")) == set()
    assert passed(op("s", "txn", "info", group="g")) == set()


def test_a_process_does_one_thing_at_a_time() -> None:
    first, second = op("p", "txn", "ok"), op("p", "txn", "ok")
    with pytest.raises(ValueError, match="is not complete"):
        check(history([first[0], second[0]]))
    with pytest.raises(ValueError, match="without an invocation"):
        check(history([first[1]]))


def test_a_history_survives_its_file(tmp_path: Path) -> None:
    whole = Simulation(1).run()
    save(whole, tmp_path / "history.jsonl")
    assert load(tmp_path / "history.jsonl") == whole


def test_the_report_shows_errors_and_counts_the_rest() -> None:
    report = describe(check(history(written(1), op("r", "poll", "ok", poll(1, 2)))))
    assert report.splitlines() == [
        "1 unwritten-read: a value that nobody sent",
        "  unwritten-read: topic-0 [2]: nobody sent it (3 r ok poll)",
    ]
