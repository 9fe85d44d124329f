"""A crash at any point: each transaction ends as it was decided, in all of its partitions."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kcoord.core.outcome import TRANSACTION_TOPIC, Marker
from kcoord.protocol import apis, errors
from kcoord.protocol.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue
from tests.unit.core.transactions.transaction_rig import Item, Rig

ONGOING, PREPARE_COMMIT, PREPARE_ABORT = 1, 2, 3
NAMES = ("a", "b")


def log_of(item: Item) -> tuple[str, int]:
    if isinstance(item, Marker):
        return item.topic, item.partition
    return item[0].topic, item[0].partition


def torn(commit: list[Item], rng: random.Random) -> list[Item]:
    """A commit of which each log has kept a beginning."""
    kept = {log: rng.randint(0, sum(log_of(item) == log for item in commit)) for log in map(log_of, commit)}
    found = []
    for item in commit:
        if kept[log_of(item)] > 0:
            kept[log_of(item)] -= 1
            found.append(item)
    return found


def crashes(rig: Rig, rng: random.Random) -> Iterator[list[list[Item]]]:
    """What a crash leaves: whole commits, and something of the one in flight."""
    for end in range(1, len(rig.commits) + 1):
        yield rig.commits[:end]
        for _ in range(3):
            yield [*rig.commits[: end - 1], torn(rig.commits[end - 1], rng)]


def decisions(commits: list[list[Item]]) -> dict[str, list[tuple[int, int, bool, set[tuple[str, int]]]]]:
    """By transactional id: producer id, epoch, result and partitions of all ends that were decided."""
    found: dict[str, list[tuple[int, int, bool, set[tuple[str, int]]]]] = {name: [] for name in NAMES}
    for commit in commits:
        for item in commit:
            if isinstance(item, Marker) or item[0].topic != TRANSACTION_TOPIC:
                continue
            key, value = item[1].key, item[1].value
            assert isinstance(key, TransactionLogKey)
            assert isinstance(value, TransactionLogValue)
            if value.transaction_status in (PREPARE_COMMIT, PREPARE_ABORT):
                partitions = {
                    (schema.topic, index)
                    for schema in value.transaction_partitions or []
                    for index in schema.partition_ids
                }
                is_commit = value.transaction_status == PREPARE_COMMIT
                found[key.transactional_id].append((value.producer_id, value.producer_epoch, is_commit, partitions))
    return found


def in_order(markers: list[tuple[str, int, int, int, bool]]) -> dict[tuple[str, int, int], list[tuple[int, bool]]]:
    """Epochs and results by partition and producer, without repetitions."""
    found: dict[tuple[str, int, int], list[tuple[int, bool]]] = {}
    for topic, partition, producer_id, epoch, is_commit in markers:
        ends = found.setdefault((topic, partition, producer_id), [])
        if not ends or ends[-1] != (epoch, is_commit):
            ends.append((epoch, is_commit))
    return found


def random_history(rng: random.Random) -> Rig:
    """Two producers, of both versions, that begin, end, are replaced and time out."""
    rig = Rig(producer_id_block_size=2)
    for _ in range(25):
        name = rng.choice(NAMES)
        txn = rig.core.transactions.by_id.get(name)
        producer = (0, 0) if txn is None else (txn.producer_id, txn.producer_epoch)
        what = rng.randrange(7)
        partition = rng.randrange(3)
        if what == 0 or txn is None:
            rig.send(apis.INIT_PRODUCER_ID, 5, InitProducerIdRequest(name, 60000))
        elif what <= 2:
            topics = [AddPartitionsToTxnTopic("t", [partition])]
            rig.send(apis.ADD_PARTITIONS_TO_TXN, 3, AddPartitionsToTxnRequest([], name, *producer, topics))
        elif what == 3:
            rig.write(producer, ("t", partition), name=name)
        elif what == 4:
            rig.advance(rng.choice((1000, 61000)))
        else:
            rig.send(apis.END_TXN, rng.choice((3, 5)), EndTxnRequest(name, *producer, rng.random() < 0.6))
        if rng.random() < 0.5:
            rig.commit()
    return rig


@pytest.mark.parametrize("seed", range(30))
def test_every_end_is_as_decided(seed: int) -> None:
    rng = random.Random(seed)
    rig = random_history(rng)
    rig.check_replay()
    for commits in crashes(rig, rng):
        again = Rig.__new__(Rig)
        again.config, again.mono_ms, again.wall_ms, again.last_request = rig.config, 5, rig.wall_ms, 1000
        again.open(commits)
        again.settle()
        again.check_replay()
        # All markers are there in the order of the decisions, and no others. A restart may have repeated some.
        assert in_order(again.markers()) == in_order(
            [
                (*partition, producer_id, epoch, is_commit)
                for ends in decisions(again.commits).values()
                for producer_id, epoch, is_commit, partitions in ends
                for partition in sorted(partitions)
            ]
        )
        producers = [txn.producer_id for txn in again.core.transactions.by_id.values()]
        assert len(set(producers)) == len(producers)
        for txn in again.core.transactions.by_id.values():
            assert not txn.is_ending
            if txn.status == ONGOING:
                assert any(timer.group_id == txn.transactional_id for _, _, timer in again.timers)


def test_a_decision_that_was_not_durable_is_none() -> None:
    rig = Rig()
    producer = rig.begin()
    rig.add(producer, ("t", 0))
    number = rig.send(apis.END_TXN, 3, EndTxnRequest("x", *producer, True))
    rig.open(rig.commits[:-1])
    assert rig.txn().status == ONGOING
    assert number not in rig.answers
    # The client repeats it, or does something else.
    assert rig.end(producer, False)[0] == errors.NONE
    assert rig.markers() == [("t", 0, *producer, False)]


def test_a_client_repeats_its_request_after_a_restart() -> None:
    for version in (3, 5):
        rig = Rig()
        producer = rig.begin()
        rig.write(producer, ("t", 0))
        rig.send(apis.END_TXN, version, EndTxnRequest("x", *producer, True))
        rig.commit()
        rig.open()
        assert rig.end(producer, version=version)[0] == errors.CONCURRENT_TRANSACTIONS
        rig.settle()
        assert rig.end(producer, version=version)[0] == errors.NONE
