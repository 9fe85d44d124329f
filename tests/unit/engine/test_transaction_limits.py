"""A write to more partitions than a transaction may have: the error reaches the producer, and the server's log."""

from __future__ import annotations

from typing import Any

from kcoord.core.config import CoreConfig
from kcoord.protocol import apis, errors
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.wire.record_batch import BatchBuilder
from tests.unit.engine.test_txn_offset_commit import NOW, Producer, Rig


def produce(producer: Producer, partition: int, sequence: int) -> ProduceRequest:
    """A record in the producer's transaction."""
    builder = BatchBuilder()
    builder.append(NOW.wall_ms, None, b"v")
    records = builder.build(0, 0, producer.producer_id, producer.epoch, sequence, transactional=True)
    data = [TopicProduceData("t", partition_data=[PartitionProduceData(partition, records)])]
    return ProduceRequest(producer.transactional_id, -1, 1000, data)


def write(rig: Rig, partition: int) -> Any:
    """Write a record in the transaction of the first producer. Returns the answer for the partition."""
    body = produce(rig.producers[0], partition, 0)
    return rig.client.ask(apis.PRODUCE, 12, body, NOW).responses[0].partition_responses[0]


def test_a_write_to_too_many_partitions_is_refused() -> None:
    config = CoreConfig()
    config.group_events_enable = False
    config.transaction_partitions_max = 2
    rig = Rig(config=config)
    rig.engine.take_facts()
    assert [write(rig, partition).error_code for partition in (0, 1)] == [errors.NONE] * 2
    refused = write(rig, 2)
    assert refused.error_code == errors.TRANSACTION_ABORTABLE
    assert refused.base_offset == -1
    assert [fact.event for fact in rig.engine.take_facts()] == ["transaction_partitions_refused"]
