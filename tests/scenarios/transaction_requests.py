"""The scenario commands of transactional producers.

    init client=p txn=x timeout=60s     InitProducerId; `again=yes` goes on with the producer's id and epoch (KIP-360)
    add-partitions client=p t:0,1       AddPartitionsToTxn, in transaction version 1
    add-offsets client=p group=g        AddOffsetsToTxn, in transaction version 1
    produce client=p t:0=one,two        a batch with these values, in the producer's transaction
    txn-commit client=p t:0=5 of=a      TxnOffsetCommit with the member id and generation or epoch of the client `a`
    end client=p commit                 EndTxn, or `end client=p abort`

`tv=1` in `init` makes a client of transaction version 1 (librdkafka, aiokafka, Java before 4.0); else it is one of
version 2 (KIP-890). The versions of its requests follow from that, unless `version=` says otherwise. `producer=3/7`
names another producer id and epoch than the client was given last. `sequence=` is that of the first record.
"""

from __future__ import annotations

from typing import Final

from kcoord.protocol import apis
from kcoord.protocol.add_offsets_to_txn import AddOffsetsToTxnRequest
from kcoord.protocol.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.protocol.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kcoord.wire.message import Message
from tests.harness.transactions import transactional
from tests.scenarios.actor import Actor, Actors
from tests.scenarios.printing import Printer, milliseconds
from tests.scenarios.requests import Builder
from tests.scenarios.script import Command

ALL_REPLICAS: Final = -1
# Versions of the requests in transaction version 1 and 2.
VERSIONS: Final = {
    apis.INIT_PRODUCER_ID: (4, 5),
    apis.ADD_PARTITIONS_TO_TXN: (3, 3),
    apis.ADD_OFFSETS_TO_TXN: (3, 4),
    apis.PRODUCE: (11, 12),
    apis.TXN_OFFSET_COMMIT: (4, 5),
    apis.END_TXN: (4, 5),
}


def producer_of(command: Command, actor: Actor) -> tuple[int, int]:
    text = command.optional("producer")
    if text is None:
        return actor.producer
    producer_id, _, epoch = text.partition("/")
    return int(producer_id), int(epoch)


def build_init(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    actor.transactional_id = command.text("txn", actor.transactional_id)
    timeout_ms = milliseconds(command.text("timeout", "60s"))
    producer = producer_of(command, actor)
    if not command.flag("again"):
        producer = (-1, -1)
    return InitProducerIdRequest(actor.transactional_id, timeout_ms, *producer)


def build_add_partitions(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    topics = []
    for word in command.words:
        name, _, indexes = word.rpartition(":")
        topics.append(AddPartitionsToTxnTopic(name, [int(index) for index in indexes.split(",")]))
    return AddPartitionsToTxnRequest(None, actor.transactional_id, *producer_of(command, actor), topics)


def build_add_offsets(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    producer = producer_of(command, actor)
    return AddOffsetsToTxnRequest(actor.transactional_id, *producer, command.text("group", "g"))


def build_produce(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    producer_id, epoch = producer_of(command, actor)
    given = command.optional("sequence")
    topics = []
    for word in command.words:
        place, _, values = word.partition("=")
        name, _, index = place.rpartition(":")
        encoded = [value.encode() for value in values.split(",")]
        sequence = actor.sequences.get(place, 0) if given is None else int(given)
        actor.sequences[place] = sequence + len(encoded)
        records = transactional(encoded, producer_id, sequence, epoch)
        topics.append(TopicProduceData(name, partition_data=[PartitionProduceData(int(index), records)]))
    return ProduceRequest(actor.transactional_id, ALL_REPLICAS, 1000, topics)


def build_txn_commit(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    name = command.optional("of")
    member = actor if name is None else actors[name]
    topics = []
    for word in command.words:
        place, _, offset = word.partition("=")
        topic, _, index = place.rpartition(":")
        topics.append(TxnOffsetCommitRequestTopic(topic, [TxnOffsetCommitRequestPartition(int(index), int(offset))]))
    producer = producer_of(command, actor)
    return TxnOffsetCommitRequest(
        actor.transactional_id,
        command.text("group", "g"),
        *producer,
        command.number("generation", member.generation_id),
        printer.lengthen(command.text("member", member.member_id)),
        command.text("instance", member.instance_id or "") or None,
        topics,
    )


def build_end(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    assert command.words in (["commit"], ["abort"]), command.words
    return EndTxnRequest(actor.transactional_id, *producer_of(command, actor), command.words == ["commit"])


TRANSACTION_REQUESTS: Final[dict[str, tuple[int, Builder]]] = {
    "init": (apis.INIT_PRODUCER_ID, build_init),
    "add-partitions": (apis.ADD_PARTITIONS_TO_TXN, build_add_partitions),
    "add-offsets": (apis.ADD_OFFSETS_TO_TXN, build_add_offsets),
    "produce": (apis.PRODUCE, build_produce),
    "txn-commit": (apis.TXN_OFFSET_COMMIT, build_txn_commit),
    "end": (apis.END_TXN, build_end),
}
