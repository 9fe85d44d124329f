"""DescribeProducers: producers and their open transactions, of as many as a turn has time for."""

from __future__ import annotations

import pytest

from kcoord.engine.budget import TURN_COST_MAX
from kcoord.engine.producer_states import PROBLEM_CHARS_MAX, PRODUCER_COST, DescribeProducersHandler
from kcoord.protocol.describe_producers import DescribeProducersRequest, DescribeProducersResponse, TopicRequest
from kcoord.protocol.errors import INVALID_TOPIC_EXCEPTION, NONE, UNKNOWN_TOPIC_OR_PARTITION
from kcoord.wire.record_batch import parse_header
from tests.harness.batches import BASE_TIME_MS, batch
from tests.harness.present import present
from tests.unit.engine.test_transactional_data import Transactions


class Rig(Transactions):
    def __init__(self) -> None:
        super().__init__()
        self.create("t", 2)
        self.states = DescribeProducersHandler(self.table)

    def ask(self, *wanted: tuple[str, list[int]], connection_id: int = 1) -> DescribeProducersResponse | None:
        body = DescribeProducersRequest([TopicRequest(name, indexes) for name, indexes in wanted])
        return self.states.handle_describe_producers(self.request(61, 0, body, connection_id), body, self.now)


def test_producers_are_described_with_their_transactions() -> None:
    rig = Rig()
    rig.put("t", batch([b"plain"], producer_id=5, producer_epoch=3, base_sequence=8))
    rig.write(7, b"a", b"b")
    rig.write(8, b"c")
    rig.end(8, True)
    topic = present(rig.ask(("t", [0, 1]))).topics[0]
    assert [(one.partition_index, one.error_code) for one in topic.partitions] == [(0, NONE), (1, NONE)]
    assert topic.partitions[1].active_producers == []
    found = [
        (
            one.producer_id,
            one.producer_epoch,
            one.last_sequence,
            one.last_timestamp,
            one.coordinator_epoch,
            one.current_txn_start_offset,
        )
        for one in topic.partitions[0].active_producers
    ]
    assert found == [
        (5, 3, 8, BASE_TIME_MS, -1, -1),
        (7, 0, 1, BASE_TIME_MS + 1000, -1, 1),
        (8, 0, 0, rig.now.wall_ms, 0, -1),
    ]


def test_what_does_not_exist() -> None:
    response = present(Rig().ask(("t", [2, -1]), ("gone", [0]), ("bad/name", [0])))
    found = [(one.error_code, one.error_message) for topic in response.topics for one in topic.partitions]
    assert found[:3] == [
        (UNKNOWN_TOPIC_OR_PARTITION, None),
        (UNKNOWN_TOPIC_OR_PARTITION, None),
        (UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."),
    ]
    assert found[3][0] == INVALID_TOPIC_EXCEPTION and "bad/name" in present(found[3][1])


def test_a_name_that_is_too_long_for_a_message() -> None:
    """The message would have more bytes than a string may, and each partition repeats it."""
    rig = Rig()
    response = present(rig.ask(("/" * 32767, [0, 1])))
    for one in response.topics[0].partitions:
        assert one.error_code == INVALID_TOPIC_EXCEPTION and len(present(one.error_message)) == PROBLEM_CHARS_MAX


def test_a_partition_is_described_once() -> None:
    response = present(Rig().ask(("t", [0, 0, 1]), ("t", [1, 0])))
    assert [[one.partition_index for one in topic.partitions] for topic in response.topics] == [[0, 1], []]


def fill(rig: Rig, partition: int, count: int) -> None:
    header = parse_header(batch([b"x"], producer_id=0, producer_epoch=0, base_sequence=0))
    for number in range(count):
        header.producer_id = number
        rig.partition("t", partition).producers.note(header, number, rig.now.wall_ms)


@pytest.mark.parametrize("leaves", [False, True])
def test_many_producers_take_several_turns(leaves: bool) -> None:
    rig = Rig()
    for partition in (0, 1):
        fill(rig, partition, TURN_COST_MAX // PRODUCER_COST)
    assert rig.ask(("t", [0, 1, 2]), connection_id=3) is None
    assert rig.states.has_due()
    rig.states.budget.end_turn()
    rig.states.on_disconnect(3 if leaves else 4)
    if leaves:
        assert not rig.states.has_due()
        return
    assert rig.states.answer_next() is None and rig.states.budget.is_spent
    rig.states.budget.end_turn()
    reply = present(rig.states.answer_next())
    assert isinstance(reply.response, DescribeProducersResponse)
    counts = [len(one.active_producers) for one in reply.response.topics[0].partitions]
    assert counts == [TURN_COST_MAX // PRODUCER_COST] * 2 + [0]
    assert not rig.states.has_due()
