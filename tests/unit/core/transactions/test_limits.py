"""Limits of transactional ids, and of partitions in one transaction."""

from __future__ import annotations

from kcoord.core.outcome import LIMIT, OFFSETS_TOPIC
from kcoord.core.transactions.partitions import produce_error
from kcoord.protocol import errors
from tests.unit.core.transactions.transaction_rig import Rig

PARTITIONS = [("t", 0), ("t", 1), ("t", 2)]


def test_further_transactional_ids_are_refused() -> None:
    rig = Rig(transactional_ids_max=2)
    rig.begin("x")
    rig.begin("y")
    assert rig.init("z") == (errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1, -1)
    fact = rig.facts[-1]
    assert (fact.event, fact.kind) == ("transactional_id_refused", LIMIT)
    assert fact.fields == {"transactional_id": "z", "transactional.ids.max": 2}
    assert rig.init("x")[0] == errors.NONE, "known ones are served"
    rig.check_replay()


def test_older_clients_abort_a_transaction_with_too_many_partitions() -> None:
    rig = Rig(transaction_partitions_max=2)
    producer = rig.begin()
    assert rig.add(producer, *PARTITIONS) == errors.TOPIC_AUTHORIZATION_FAILED, "at once"
    assert rig.states() == [0], "nothing is stored"
    assert rig.add(producer, *PARTITIONS[:2], PARTITIONS[0]) == errors.NONE, "the same one does not count twice"
    assert rig.add(producer, PARTITIONS[2]) == errors.TOPIC_AUTHORIZATION_FAILED
    assert rig.add(producer, PARTITIONS[1]) == errors.NONE, "it has this one"
    assert rig.add_offsets(producer) == errors.NONE
    assert rig.txn().partition_list() == [*PARTITIONS[:2], (OFFSETS_TOPIC, 0)]
    assert rig.facts[-1].fields == {"transactional_id": "x", "transaction.partitions.max": 2}
    assert rig.end(producer, commit=False)[0] == errors.NONE
    assert rig.add(producer, PARTITIONS[2]) == errors.NONE, "the next one"
    rig.check_replay()


def test_newer_clients_abort_a_transaction_with_too_many_partitions() -> None:
    rig = Rig(transaction_partitions_max=2)
    producer = rig.begin()
    assert rig.write(producer, *PARTITIONS[:2]) == errors.NONE
    error = rig.write(producer, PARTITIONS[2])
    assert error == produce_error(error, 12) == errors.TRANSACTION_ABORTABLE
    assert rig.write(producer, (OFFSETS_TOPIC, 0)) == errors.NONE
    assert [fact.event for fact in rig.facts] == ["transaction_partitions_refused"]
    rig.check_replay()
