"""A data plane in memory: the handlers over real logs, with commits that a test makes happen."""

from __future__ import annotations

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import Now, Reply, Request
from kcoord.core.producers import PartitionProducers
from kcoord.core.topics.registry import RESOURCE_TOPIC, TopicRegistry
from kcoord.engine.budget import TurnBudget
from kcoord.engine.delete_records import DeleteRecordsHandler
from kcoord.engine.fetch import FetchHandler
from kcoord.engine.leader_epochs import LeaderEpochsHandler
from kcoord.engine.list_offsets import ListOffsetsHandler
from kcoord.engine.partitions import PartitionTable, TopicPartition
from kcoord.engine.produce import ProduceHandler
from kcoord.log.directory import open_directory
from kcoord.log.journal import Journal
from kcoord.log.storage import MemoryStorage
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from kcoord.protocol.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from kcoord.protocol.records.config_record import ConfigRecord
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.remove_topic_record import RemoveTopicRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.wire.message import Message
from kcoord.wire.primitives import ZERO_UUID
from kcoord.wire.record_batch import decode_records
from tests.harness.present import present
from tests.harness.record_batches import parse_batches

WALL_MS = 1_600_000_000_000


def answer_due(handler: FetchHandler, now: Now) -> list[Reply]:
    """What waiting fetches get after a commit."""
    handler.note_durable()
    replies: list[Reply] = []
    while handler.has_due():
        replies.append(handler.answer_next(now))
    return replies


def topic_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Plane:
    """Topics by name, requests by version; `commit` makes durable what was appended."""

    def __init__(self, config: CoreConfig | None = None, **sizes: int) -> None:
        self.config = config or CoreConfig()
        for name, value in sizes.items():
            setattr(self.config, name, value)
        self.now = Now(1000, WALL_MS)
        self.topics = TopicRegistry(self.config)
        self.directory = open_directory(MemoryStorage(), 1, "cluster", "directory")
        self.journal = Journal(self.directory, "always")
        self.table = PartitionTable(self.topics, self.config.decompressed_bytes_max)
        self.produce_handler = ProduceHandler(self.config, self.table, self.journal, TurnBudget())
        self.fetch_handler = FetchHandler(self.config, self.table, 7)
        self.offsets_handler = ListOffsetsHandler(self.table)
        self.delete_handler = DeleteRecordsHandler(self.table, self.directory)
        self.epochs_handler = LeaderEpochsHandler(self.table)
        self.next_request = 0
        self.next_topic = 0
        self.replies: dict[int, Message | None] = {}

    # Topics.

    def create(self, name: str, partitions: int = 1, **configs: str) -> bytes:
        self.next_topic += 1
        uuid = topic_id(self.next_topic)
        self.topics.replay_metadata(TopicRecord(name, uuid), 0)
        for key, value in configs.items():
            record = ConfigRecord(RESOURCE_TOPIC, name, key.replace("_", "."), value)
            self.topics.replay_metadata(record, 0)
        topic = self.topics.topics[name]
        self.table.add_topic(topic)
        for index in range(partitions):
            self.topics.replay_metadata(PartitionRecord(index, uuid), 0)
            log = self.directory.create_log(name, index, uuid)
            self.table.add_partition(topic, log, PartitionProducers(self.config.producer_id_expiration_ms))
        return uuid

    def configure(self, name: str, key: str, value: str) -> None:
        self.topics.replay_metadata(ConfigRecord(RESOURCE_TOPIC, name, key, value), 0)
        self.table.refresh_settings(self.topics.topics[name])

    def delete(self, name: str) -> None:
        self.topics.replay_metadata(RemoveTopicRecord(self.topics.topics[name].topic_id), 0)
        self.fetch_handler.note_deleted(self.table.drop_topic(name))
        while self.fetch_handler.has_due():
            reply = self.fetch_handler.answer_next(self.now)
            self.replies[reply.request_id] = reply.response

    def partition(self, name: str, index: int = 0) -> TopicPartition:
        found = self.table.find(name, index)
        assert found is not None
        return found

    # Time and disk.

    def commit(self) -> None:
        """Everything appended becomes durable, and waiting fetches hear of it."""
        self.journal.commit()
        for reply in answer_due(self.fetch_handler, self.now):
            self.replies[reply.request_id] = reply.response

    def sleep(self, ms: int) -> None:
        """Let time pass; the fetches whose time is up are answered."""
        self.now = Now(self.now.mono_ms + ms, self.now.wall_ms + ms)
        due = [t for t in self.fetch_handler.timers if t.deadline_ms <= self.now.mono_ms]
        self.fetch_handler.timers = [t for t in self.fetch_handler.timers if t.deadline_ms > self.now.mono_ms]
        for timer in due:
            for reply in self.fetch_handler.on_timer(timer, self.now):
                self.replies[reply.request_id] = reply.response

    # Requests.

    def request(self, api_key: int, version: int, body: Message, connection_id: int = 1) -> Request:
        self.next_request += 1
        return Request(
            self.next_request,
            connection_id,
            api_key,
            version,
            "client",
            "127.0.0.1",
            body,
            host="localhost",
            port=9092,
        )

    def produce(
        self,
        topic: str,
        records: bytes | None,
        partition: int = 0,
        version: int = 9,
        acks: int = -1,
        transactional_id: str | None = None,
        uuid: bytes | None = None,
    ) -> PartitionProduceResponse:
        """Produce to one partition; its answer."""
        if uuid is None:
            known = self.table.topic(topic)
            uuid = known.topic_id if known is not None and version >= 13 else ZERO_UUID
        data = TopicProduceData(topic if version < 13 else "", uuid, [PartitionProduceData(partition, records)])
        body = ProduceRequest(transactional_id, acks, 5000, [data])
        response = present(self.produce_handler.handle_produce(self.request(0, version, body), body, self.now))
        return response.responses[0].partition_responses[0]

    def put(self, topic: str, records: bytes, partition: int = 0) -> int:
        """Produce and commit; the base offset."""
        answer = self.produce(topic, records, partition)
        assert answer.error_code == 0, answer
        self.commit()
        return answer.base_offset

    def fetch_body(self, *wanted: tuple[str, int, int], version: int = 11, **fields: int) -> FetchRequest:
        """A fetch of (topic, partition, offset) triples; `partition_max_bytes` goes to all of them."""
        limit = fields.pop("partition_max_bytes", 1 << 20)
        topics = []
        for topic, index, offset in wanted:
            known = self.table.topic(topic)
            uuid = known.topic_id if known is not None and version >= 13 else ZERO_UUID
            part = FetchPartition(index, fetch_offset=offset, partition_max_bytes=limit)
            topics.append(FetchTopic(topic if version < 13 else "", uuid, [part]))
        body = FetchRequest(topics=topics)
        for name, value in fields.items():
            assert hasattr(body, name)
            setattr(body, name, value)
        return body

    def send_fetch(
        self, body: FetchRequest, version: int = 11, connection_id: int = 1
    ) -> tuple[int, FetchResponse | None]:
        """Hand in a fetch: its request id, and the answer unless it was parked."""
        request = self.request(1, version, body, connection_id)
        return request.request_id, self.fetch_handler.handle_fetch(request, body, self.now)

    def fetch_all(self, *wanted: tuple[str, int, int], version: int = 11, **fields: int) -> FetchResponse:
        """Fetch without waiting."""
        body = self.fetch_body(*wanted, version=version, **fields)
        _, response = self.send_fetch(body, version)
        assert response is not None
        return response

    def fetch(self, topic: str, offset: int, partition: int = 0, version: int = 11, **fields: int) -> PartitionData:
        """Fetch from one partition without waiting; its answer."""
        response = self.fetch_all((topic, partition, offset), version=version, **fields)
        assert response.error_code == 0
        return response.responses[0].partitions[0]


def values(records: bytes | None) -> list[bytes | None]:
    """The values of all records in what a fetch gave."""
    assert records is not None
    found: list[bytes | None] = []
    for header in parse_batches(records):
        for record in decode_records(records, header.pos, header, 1 << 24):
            found.append(record.value)
    return found


def offsets(records: bytes | None) -> list[int]:
    assert records is not None
    found: list[int] = []
    for header in parse_batches(records):
        for record in decode_records(records, header.pos, header, 1 << 24):
            found.append(record.offset)
    return found


def answered(response: FetchResponse) -> list[tuple[str, int, int]]:
    """(topic, partition, error code) of every partition in the answer, in order."""
    found = []
    for topic in response.responses:
        for partition in topic.partitions:
            found.append((topic.topic, partition.partition_index, partition.error_code))
    return found
