"""Which partitions a Produce request of transaction version 2 adds to its transaction."""

from __future__ import annotations

from kcoord.core.transactions.state import EMPTY, ONGOING
from kcoord.protocol import apis, errors
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.harness.batches import batch
from tests.harness.transactions import transactional
from tests.unit.engine.test_txn_offset_commit import NOW, Rig


def write(rig: Rig, records: dict[int, bytes], transactional_id: str | None) -> list[int]:
    """The error codes of the partitions."""
    data = [PartitionProduceData(partition, batch) for partition, batch in records.items()]
    body = ProduceRequest(transactional_id, -1, 1000, [TopicProduceData("t", partition_data=data)])
    response = rig.client.ask(apis.PRODUCE, 12, body, NOW).responses[0]
    return [one.error_code for one in response.partition_responses]


def test_a_partition_that_knows_a_later_epoch_is_not_added() -> None:
    """The end of the transaction writes no marker there, as on a broker."""
    rig = Rig()
    producer = rig.producers[0]
    later = batch([b"v"], producer_id=producer.producer_id, producer_epoch=producer.epoch + 1, base_sequence=0)
    assert write(rig, {0: later}, None) == [errors.NONE]
    both = dict.fromkeys((0, 1), transactional([b"v"], producer.producer_id, 0, producer.epoch))
    assert write(rig, both, producer.transactional_id) == [errors.INVALID_PRODUCER_EPOCH, errors.NONE]
    txn = rig.engine.core.transactions.by_id[producer.transactional_id]
    assert (txn.status, txn.partition_list()) == (ONGOING, [("t", 1)])


def test_a_request_with_several_producers_adds_nothing() -> None:
    rig = Rig()
    producer = rig.producers[0]
    records = {number: transactional([b"v"], producer.producer_id, 0, producer.epoch - number) for number in (1, 0)}
    assert write(rig, records, producer.transactional_id) == [errors.INVALID_PRODUCER_ID_MAPPING] * 2
    assert rig.engine.core.transactions.by_id[producer.transactional_id].status == EMPTY
