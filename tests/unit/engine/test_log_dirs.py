"""DescribeLogDirs: one directory, the sizes of what it holds, and the space on its volume."""

from __future__ import annotations

import os
from pathlib import Path

from kcoord.core.outcome import Now
from kcoord.log.storage import DiskStorage
from kcoord.protocol import apis, errors
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResult,
)
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.wire.record_batch import BatchBuilder
from tests.harness.engine import Client, open_engine, open_memory_engine

NOW = Now(1_000, 1_700_000_000_000)
NEWEST = 5


def create(client: Client, name: str, partitions: int) -> None:
    client.ask(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic(name, partitions, 1)], 1000, False), NOW)


def produce(client: Client, name: str, index: int) -> int:
    """The size of the batch that was appended."""
    builder = BatchBuilder()
    builder.append(NOW.wall_ms, b"key", b"value")
    batch = builder.build(0, 0)
    topic = TopicProduceData(name, partition_data=[PartitionProduceData(index, batch)])
    answer = client.ask(apis.PRODUCE, 9, ProduceRequest(None, -1, 1000, [topic]), NOW)
    assert answer.responses[0].partition_responses[0].error_code == errors.NONE
    return len(batch)


def describe(
    client: Client, topics: list[tuple[str, list[int]]] | None, version: int = NEWEST
) -> DescribeLogDirsResult:
    asked = None if topics is None else [DescribableLogDirTopic(name, indexes) for name, indexes in topics]
    answer = client.ask(apis.DESCRIBE_LOG_DIRS, version, DescribeLogDirsRequest(asked), NOW)
    assert answer.error_code == errors.NONE
    (result,) = answer.results
    assert result.error_code == errors.NONE and not result.is_cordoned
    assert all(p.offset_lag == 0 and not p.is_future_key for topic in result.topics for p in topic.partitions)
    return result  # type: ignore[no-any-return]


def sizes(result: DescribeLogDirsResult) -> dict[str, dict[int, int]]:
    return {topic.name: {p.partition_index: p.partition_size for p in topic.partitions} for topic in result.topics}


def test_sizes_are_those_of_the_files(tmp_path: Path) -> None:
    engine = open_engine(DiskStorage(str(tmp_path)), NOW)
    client = Client(engine)
    create(client, "orders", 2)
    size = produce(client, "orders", 1) + produce(client, "orders", 1)
    assert sizes(describe(client, [("orders", [0, 1])])) == {"orders": {0: 0, 1: size}}
    assert os.stat(tmp_path / "orders-1" / f"{0:020}.log").st_size == size
    engine.stop()


def test_null_asks_for_all_topics_and_an_empty_list_for_none() -> None:
    client = Client(open_memory_engine(NOW))
    create(client, "orders", 2)
    create(client, "bills", 1)
    found = sizes(describe(client, None))
    # Internal topics are among them; the metadata log is not a topic of the broker.
    assert sorted(found) == ["__consumer_offsets", "bills", "orders"]
    assert sorted(found["orders"]) == [0, 1]
    assert sizes(describe(client, [])) == {}


def test_what_does_not_exist_is_left_out_and_repeats_are_listed_once() -> None:
    client = Client(open_memory_engine(NOW))
    create(client, "orders", 2)
    asked = [("nothing", [0]), ("orders", [1, 7, -1, 1]), ("orders", [0, 1])]
    assert describe(client, asked).topics == describe(client, [("orders", [1, 0])]).topics
    assert describe(client, [("orders", [2]), ("orders", [])]).topics == []


def test_every_version_has_the_directory_and_the_newer_ones_the_space() -> None:
    engine = open_memory_engine(NOW)
    client = Client(engine)
    for version in range(1, NEWEST + 1):
        result = describe(client, None, version)
        assert (result.log_dir, result.total_bytes, result.usable_bytes) == ("memory", -1, -1)
    engine.data_plane.volume.measured("/data/kcoord", 1000, 400)
    for version, space in ((3, (-1, -1)), (4, (1000, 400)), (5, (1000, 400))):
        result = describe(client, None, version)
        assert (result.log_dir, result.total_bytes, result.usable_bytes) == ("/data/kcoord", *space)
