"""The coordinator's own topics: fetchable like any, closed to writes, and the metadata log nobody's to see."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import InvalidTopicError
from confluent_kafka.admin import AdminClient

from kcoord.log.serde import decode_record
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from tests.e2e.process import ServerProcess


async def commit_and_watch(bootstrap: str) -> list[tuple[object, object]]:
    """Commit offset 1 of t-0 for group g while another consumer watches `__consumer_offsets`."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    await producer.send_and_wait("t", b"x")
    with pytest.raises(InvalidTopicError):
        await producer.send_and_wait("__consumer_offsets", b"x", partition=0)
    await producer.stop()
    watcher = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await watcher.start()
    watcher.assign([TopicPartition("__consumer_offsets", 0)])
    member = AIOKafkaConsumer("t", bootstrap_servers=bootstrap, group_id="g", auto_offset_reset="earliest")
    await member.start()
    await member.getone()
    await member.commit()
    seen: list[tuple[object, object]] = []
    while not any(isinstance(key, OffsetCommitKey) for key, _ in seen):
        for records in (await watcher.getmany(timeout_ms=200)).values():
            seen += [decode_record(record.key, record.value) for record in records]
    await member.stop()
    await watcher.stop()
    return seen


async def test_clients_can_read_the_offsets_topic_and_not_write_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        seen = await commit_and_watch(server.bootstrap)
        commits = [(key, value) for key, value in seen if isinstance(key, OffsetCommitKey)]
        key, value = commits[0]
        assert (key.group, key.topic, key.partition) == ("g", "t", 0)
        assert isinstance(value, OffsetCommitValue) and value.offset == 1
        topics = AdminClient({"bootstrap.servers": server.bootstrap}).list_topics(timeout=60).topics
        assert sorted(topics) == ["__consumer_offsets", "__group_events", "t"]
        assert server.stop() == 0
