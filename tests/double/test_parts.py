"""Errors for single topics and partitions: what clients do with them, and what the server has handled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AiokafkaPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kcoord.client.connection import Connection, ConnectionOptions
from kcoord.protocol import (
    add_partitions_to_txn,
    apis,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_producers,
    describe_topic_partitions,
    errors,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    txn_offset_commit,
)
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kcoord.server.exchange import Answer, Request
from kcoord.testing.double.parts import LAYOUTS, part_errors
from kcoord.testing.double.selector import Selector
from kcoord.testing.fixture import KcoordServer
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter

WAIT_S = 30.0
IDS = {"orders": b"o" * 16, "payments": b"p" * 16}
NAMES = {topic_id: name for name, topic_id in IDS.items()}
ERROR = errors.KAFKA_STORAGE_ERROR


# --- real clients


def test_a_produce_fails_for_one_partition_and_is_repeated_for_it_alone(kcoord: KcoordServer) -> None:
    kcoord.create_topic("orders", 2)
    fault = kcoord.fail("Produce", error="NOT_LEADER_OR_FOLLOWER", topic="orders", partition=1)
    producer = Producer({"bootstrap.servers": kcoord.bootstrap, "linger.ms": 100, "enable.idempotence": True})
    written: dict[int | None, int | None] = {}
    for partition in (0, 1):
        producer.produce(
            "orders", b"1", partition=partition,
            on_delivery=lambda error, message: written.update({message.partition(): message.offset()}),
        )  # fmt: skip
    assert producer.flush(WAIT_S) == 0
    assert fault.hits == 1
    assert written == {0: 0, 1: 0}
    assert [len(kcoord.records("orders", partition)) for partition in (0, 1)] == [1, 1]


def test_a_commit_fails_for_one_partition(kcoord: KcoordServer) -> None:
    kcoord.create_topic("orders", 2)
    consumer = Consumer({"bootstrap.servers": kcoord.bootstrap, "group.id": "billing"})
    offsets = [TopicPartition("orders", partition, 7) for partition in (0, 1)]
    for handled, stored in ((False, {("orders", 0): 7}), (True, {("orders", 0): 7, ("orders", 1): 7})):
        kcoord.fail("OffsetCommit", error="OFFSET_METADATA_TOO_LARGE", partition=1, handled=handled)
        with pytest.raises(KafkaException) as failure:
            consumer.commit(offsets=offsets, asynchronous=False)
        assert failure.value.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE
        assert kcoord.committed("billing") == stored
    answer: Any = kcoord.requests("OffsetCommit")[0].answer
    assert sorted((one.partition_index, one.error_code) for one in answer.topics[0].partitions) == [
        (0, 0), (1, errors.OFFSET_METADATA_TOO_LARGE),
    ]  # fmt: skip
    consumer.close()


def test_offsets_of_an_open_transaction_are_awaited(kcoord: KcoordServer) -> None:
    kcoord.create_topic("orders", 2)
    kcoord.commit("billing", {("orders", 0): 3, ("orders", 1): 4})
    fault = kcoord.fail("OffsetFetch", error="UNSTABLE_OFFSET_COMMIT", topic="orders", partition=1, times=2)
    consumer = Consumer(
        {"bootstrap.servers": kcoord.bootstrap, "group.id": "billing", "isolation.level": "read_committed"}
    )
    found = consumer.committed([TopicPartition("orders", partition) for partition in (0, 1)], WAIT_S)
    assert [one.offset for one in found] == [3, 4]
    assert fault.hits == 2
    assert [one.errors for one in kcoord.requests("OffsetFetch")] == [["UNSTABLE_OFFSET_COMMIT"]] * 2 + [[]]
    consumer.close()


async def test_one_partition_is_fetched_while_another_one_fails(kcoord: KcoordServer) -> None:
    kcoord.create_topic("orders", 2)
    kcoord.produce("orders", "1", partition=0)
    kcoord.produce("orders", "2", partition=1)
    fault = kcoord.fail("Fetch", error="NOT_LEADER_OR_FOLLOWER", topic="orders", partition=1, times=None)
    async with AIOKafkaConsumer(bootstrap_servers=kcoord.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([AiokafkaPartition("orders", partition) for partition in (0, 1)])
        assert (await asyncio.wait_for(consumer.getone(), WAIT_S)).value == b"1"
        await asyncio.to_thread(fault.wait, 2)
        fault.remove()
        assert (await asyncio.wait_for(consumer.getone(), WAIT_S)).value == b"2"


def test_topics_of_a_request_of_an_administrator(kcoord: KcoordServer) -> None:
    admin = AdminClient({"bootstrap.servers": kcoord.bootstrap})
    kcoord.fail("CreateTopics", error="TOPIC_AUTHORIZATION_FAILED", topic="secret")
    results = admin.create_topics([NewTopic("orders", 1), NewTopic("secret", 1)])
    assert results["orders"].result(WAIT_S) is None
    refused: Any = results["secret"].exception(WAIT_S)
    assert refused.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert kcoord.topics() == {"orders": 1}


def test_metadata_of_one_partition(kcoord: KcoordServer) -> None:
    """A producer waits for the leader of its partition, and for that of no other one."""
    kcoord.create_topic("orders", 2)
    kcoord.fail("Metadata", error="LEADER_NOT_AVAILABLE", topic="orders", partition=1, times=None)
    found = AdminClient({"bootstrap.servers": kcoord.bootstrap}).list_topics(timeout=WAIT_S)  # all topics
    partitions: Any = found.topics["orders"].partitions
    assert partitions[0].error is None and partitions[0].leader != -1
    assert partitions[1].error.code() == KafkaError.LEADER_NOT_AVAILABLE and partitions[1].leader == -1


async def test_a_partition_that_cannot_join_a_transaction(kcoord: KcoordServer) -> None:
    """All or nothing: the other partition was not added either, so the transaction is to be aborted."""
    kcoord.create_topic("orders", 2)
    async with AIOKafkaProducer(bootstrap_servers=kcoord.bootstrap, transactional_id="one") as producer:
        kcoord.fail("AddPartitionsToTxn", error="COORDINATOR_LOAD_IN_PROGRESS", topic="orders", partition=0)
        async with producer.transaction():
            await asyncio.gather(*[await producer.send("orders", b"1", partition=number) for number in (0, 1)])
    refused = kcoord.requests("AddPartitionsToTxn")[0]
    assert not refused.is_handled and refused.errors[0] == "COORDINATOR_LOAD_IN_PROGRESS"
    assert len(kcoord.records("orders", isolation="read_committed")) == 2


# --- sessions of fetches


@asynccontextmanager
async def connect(kcoord: KcoordServer) -> AsyncIterator[Connection]:
    connection = await Connection.open(kcoord.host, kcoord.port, ConnectionOptions("raw"))
    try:
        yield connection
    finally:
        await connection.close()


async def test_a_fetch_session_gives_way_to_a_rule(kcoord: KcoordServer) -> None:
    """A later fetch of a session names no partitions. It has to begin again, so that the rule can act on it."""
    kcoord.create_topic("orders", 2)
    everything = [
        FetchTopic("orders", partitions=[FetchPartition(number, partition_max_bytes=1000) for number in (0, 1)])
    ]
    async with connect(kcoord) as connection:

        async def fetch(session_id: int, epoch: int, topics: list[FetchTopic]) -> FetchResponse:
            request = FetchRequest(session_id=session_id, session_epoch=epoch, topics=topics)
            return await connection.ask(apis.FETCH, 12, request, FetchResponse)

        session_id = (await fetch(0, 0, everything)).session_id
        assert session_id
        fault = kcoord.fail("Fetch", error="KAFKA_STORAGE_ERROR", topic="orders", partition=1)
        assert (await fetch(session_id, 1, [])).error_code == errors.FETCH_SESSION_ID_NOT_FOUND
        assert fault.hits == 0
        answer = await fetch(session_id, 0, everything)
        codes = {part.partition_index: part.error_code for topic in answer.responses for part in topic.partitions}
        assert codes == {0: 0, 1: errors.KAFKA_STORAGE_ERROR}
        assert answer.session_id == 0 and fault.hits == 1
        assert (await fetch(0, 0, everything)).session_id


# --- all APIs in all versions


def body_of(api_key: int, version: int) -> Any:
    """A request for two partitions of each of two topics, by name or by id."""
    if api_key == apis.PRODUCE:
        parts = [produce.PartitionProduceData(number, b"") for number in (0, 1)]
        return produce.ProduceRequest(None, -1, 1, [produce.TopicProduceData(one, IDS[one], parts) for one in IDS])
    if api_key == apis.FETCH:
        wanted = [FetchPartition(number) for number in (0, 1)]
        return FetchRequest(topics=[FetchTopic(one, IDS[one], wanted) for one in IDS])
    if api_key == apis.METADATA:
        asked = [metadata.MetadataRequestTopic(name=one) for one in IDS]
        return metadata.MetadataRequest(asked)
    if api_key == apis.DELETE_TOPICS:
        states = [delete_topics.DeleteTopicState(one) for one in IDS]
        return delete_topics.DeleteTopicsRequest(states if version >= 6 else [], [] if version >= 6 else list(IDS))
    if api_key == apis.OFFSET_FETCH:
        if version < 8:
            plain = [offset_fetch.OffsetFetchRequestTopic(one, [0, 1]) for one in IDS]
            return offset_fetch.OffsetFetchRequest("billing", plain)
        topics = [offset_fetch.OffsetFetchRequestTopics(one, IDS[one], [0, 1]) for one in IDS]
        return offset_fetch.OffsetFetchRequest(groups=[offset_fetch.OffsetFetchRequestGroup("billing", topics=topics)])
    if api_key == apis.ADD_PARTITIONS_TO_TXN:
        added = [add_partitions_to_txn.AddPartitionsToTxnTopic(one, [0, 1]) for one in IDS]
        if version < 4:
            return add_partitions_to_txn.AddPartitionsToTxnRequest([], "one", 1, 1, added)
        transaction = add_partitions_to_txn.AddPartitionsToTxnTransaction("one", 1, 1, False, added)
        return add_partitions_to_txn.AddPartitionsToTxnRequest([transaction])
    return _plain_body(api_key)


def _plain_body(api_key: int) -> Any:
    simple: dict[int, tuple[Any, Any, Any]] = {
        apis.LIST_OFFSETS: (
            list_offsets.ListOffsetsRequest, list_offsets.ListOffsetsTopic, list_offsets.ListOffsetsPartition
        ),
        apis.TXN_OFFSET_COMMIT: (
            txn_offset_commit.TxnOffsetCommitRequest, txn_offset_commit.TxnOffsetCommitRequestTopic,
            txn_offset_commit.TxnOffsetCommitRequestPartition,
        ),
        apis.OFFSET_DELETE: (
            offset_delete.OffsetDeleteRequest, offset_delete.OffsetDeleteRequestTopic,
            offset_delete.OffsetDeleteRequestPartition,
        ),
        apis.DELETE_RECORDS: (
            delete_records.DeleteRecordsRequest, delete_records.DeleteRecordsTopic,
            delete_records.DeleteRecordsPartition,
        ),
        apis.OFFSET_FOR_LEADER_EPOCH: (
            offset_for_leader_epoch.OffsetForLeaderEpochRequest, offset_for_leader_epoch.OffsetForLeaderTopic,
            offset_for_leader_epoch.OffsetForLeaderPartition,
        ),
        apis.DESCRIBE_PRODUCERS: (
            describe_producers.DescribeProducersRequest, describe_producers.TopicRequest, lambda number: number
        ),
        apis.CREATE_TOPICS: (create_topics.CreateTopicsRequest, create_topics.CreatableTopic, None),
        apis.CREATE_PARTITIONS: (
            create_partitions.CreatePartitionsRequest, create_partitions.CreatePartitionsTopic, None
        ),
        apis.DESCRIBE_TOPIC_PARTITIONS: (
            describe_topic_partitions.DescribeTopicPartitionsRequest, describe_topic_partitions.TopicRequest, None
        ),
    }  # fmt: skip
    if api_key == apis.OFFSET_COMMIT:
        parts = [offset_commit.OffsetCommitRequestPartition(number) for number in (0, 1)]
        named = [offset_commit.OffsetCommitRequestTopic(one, IDS[one], parts) for one in IDS]
        return offset_commit.OffsetCommitRequest(topics=named)
    request, topic, partition = simple[api_key]
    if partition is None:
        return request(topics=[topic(one) for one in IDS])
    return request(topics=[topic(one, [partition(number) for number in (0, 1)]) for one in IDS])


def request_of(api_key: int, version: int, body: Any) -> Request:
    writer = BytesWriter()
    apis.encode_request(writer, api_key, body, version)
    head = api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\0\1t"
    flexible = b"\0" if apis.APIS[api_key].request_header_version(version) == 2 else b""
    return Request(head + flexible + writer.getvalue(), 0.0, 0)


def named_in(message: Any, found: set[tuple[str, int, int]], topic: str = "") -> set[tuple[str, int, int]]:
    """Topic, partition (-1: the topic itself) and error of everything that a message names."""
    if isinstance(message, int):
        found.add((topic, message, 0))
        return found
    topic = next((getattr(message, each) for each in ("topic", "name") if getattr(message, each, "")), topic)
    topic = NAMES.get(getattr(message, "topic_id", b""), topic)
    number = next(
        (getattr(message, each) for each in ("partition", "partition_index", "index") if each in message.FIELDS), -1
    )
    code = next(
        (getattr(message, each) for each in ("error_code", "partition_error_code") if each in message.FIELDS), 0
    )
    if topic and (number >= 0 or code):
        found.add((topic, number, code))
    for name in message.FIELDS:
        value = getattr(message, name)
        for one in value if isinstance(value, list) else []:
            if isinstance(one, Message) or name in ("partitions", "partition_indexes"):
                named_in(one, found, topic)
            elif name == "topic_names":
                found.add((one, -1, 0))
    return found


@pytest.mark.parametrize("api_key", sorted(LAYOUTS), ids=lambda key: apis.APIS[key].name)
def test_every_version_of_an_api(api_key: int) -> None:
    api = apis.APIS[api_key]
    layout = LAYOUTS[api_key]
    for version in range(api.min_version, api.max_version + 1):
        request = request_of(api_key, version, body_of(api_key, version))
        partition = None if layout.make_partition is None else 1
        selector = Selector(topic="orders", partition=partition)
        assert selector.matches(request, 1, lambda topic_id: NAMES.get(topic_id, ""))
        parts = part_errors(request, selector, ERROR, False, lambda topic_id: NAMES.get(topic_id, ""))
        assert parts is not None
        body = parts.empty_answer(request)
        parts.apply(body)
        writer = BytesWriter()
        apis.encode_response(writer, api_key, body, version)
        flexible = b"\0" if api.response_header_version(version) == 1 else b""
        answer = Answer(request, bytes(4) + flexible + writer.getvalue(), 0.0, 0)
        assert answer.problem == ""
        refused = ("orders", -1 if partition is None else partition, ERROR)
        if layout.only_asks and not (api_key == apis.METADATA and version):
            assert parts.rest is not None and answer.errors() == []
            continue
        others = {name for name in named_in(answer.message, set()) if name != refused}
        assert refused in named_in(answer.message, set()), f"version {version}"
        if api_key == apis.ADD_PARTITIONS_TO_TXN:
            assert parts.rest is None
            assert {code for _, _, code in others} == {errors.OPERATION_NOT_ATTEMPTED} and len(others) == 3
            continue
        assert not others and parts.rest is not None
        left = named_in(Request(parts.rest, 0.0, 0).message, set())
        if partition is not None:
            assert left == {("orders", 0, 0), ("payments", 0, 0), ("payments", 1, 0)}, f"version {version}"
