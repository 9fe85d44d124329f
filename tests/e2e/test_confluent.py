"""confluent-kafka (librdkafka) against a server process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.e2e.process import ServerProcess
from tests.harness.present import present

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
WAIT_S = 60.0


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data: Path = tmp_path_factory.mktemp("confluent") / "data"
    with ServerProcess(data) as server:
        yield server.bootstrap
        assert server.stop() == 0


def consumer(bootstrap: str, group: str, **settings: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "session.timeout.ms": 30_000, "heartbeat.interval.ms": 100, **settings,
        }
    )  # fmt: skip


def produce(bootstrap: str, topic: str, values: list[bytes], **settings: object) -> list[int]:
    offsets: list[int] = []
    errors: list[object] = []

    def delivered(error: object, message: object) -> None:
        errors.extend([error] if error else [])
        offsets.append(message.offset())  # type: ignore[attr-defined]

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, **settings})
    for value in values:
        producer.produce(topic, value, key=b"k", on_delivery=delivered)
    assert producer.flush(WAIT_S) == 0
    assert errors == []
    return offsets


def read(one: Consumer, count: int, seconds: float = WAIT_S) -> list[bytes]:
    values: list[bytes] = []
    end = time.monotonic() + seconds
    while len(values) < count:
        assert time.monotonic() < end, f"read {len(values)} of {count}"
        message = one.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            values.append(present(message.value()))
    return values


@pytest.mark.parametrize("codec", CODECS)
def test_produce_and_consume(bootstrap: str, codec: str) -> None:
    values = [f"value {number} ".encode() * 20 for number in range(500)]
    settings = {"compression.type": codec}
    assert produce(bootstrap, f"codec-{codec}", values, **settings) == list(range(500))
    one = consumer(bootstrap, f"reads-{codec}")
    one.subscribe([f"codec-{codec}"])
    assert read(one, 500) == values
    one.close()


def test_a_group_resumes_where_it_was(bootstrap: str) -> None:
    produce(bootstrap, "resume", [str(number).encode() for number in range(10)])
    one = consumer(bootstrap, "resuming")
    one.subscribe(["resume"])
    assert read(one, 4) == [b"0", b"1", b"2", b"3"]
    one.commit(offsets=[TopicPartition("resume", 0, 4, "note")], asynchronous=False)
    one.close()
    one = consumer(bootstrap, "resuming")
    (committed,) = one.committed([TopicPartition("resume", 0)], timeout=WAIT_S)
    assert (committed.offset, committed.metadata) == (4, "note")
    one.subscribe(["resume"])
    assert read(one, 6) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    one.close()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_come_and_go(bootstrap: str, strategy: str) -> None:
    topic, group = f"crowd-{strategy}", f"crowd-{strategy}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 6)])[topic].result(WAIT_S)
    members: list[Consumer] = []

    def settle() -> None:
        end = time.monotonic() + WAIT_S
        while True:
            for one in members:
                one.poll(0.02)
            owned = sorted(tp.partition for one in members for tp in one.assignment())
            if owned == list(range(6)):
                return
            assert time.monotonic() < end, owned

    for _ in range(5):
        one = consumer(bootstrap, group, **{"partition.assignment.strategy": strategy})
        one.subscribe([topic])
        members.append(one)
        settle()
    for _ in range(4):
        members.pop(0).close()
        settle()
    described = admin.describe_consumer_groups([group])[group].result(WAIT_S)
    assert described.state.name == "STABLE"
    assert [len(member.assignment.topic_partitions) for member in described.members] == [6]
    members.pop().close()


def test_a_static_member_keeps_its_partitions_over_a_restart(bootstrap: str) -> None:
    produce(bootstrap, "static", [b"0"])
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def member_ids() -> list[str]:
        described = admin.describe_consumer_groups(["static"])["static"].result(WAIT_S)
        return [member.member_id for member in described.members]

    one = consumer(bootstrap, "static", **{"group.instance.id": "one"})
    one.subscribe(["static"])
    assert read(one, 1) == [b"0"]
    before = member_ids()
    one.close()  # a static member does not leave
    assert member_ids() == before
    again = consumer(bootstrap, "static", **{"group.instance.id": "one"})
    again.subscribe(["static"])
    assert read(again, 1) == [b"0"]
    assert len(member_ids()) == 1 and member_ids() != before
    again.close()


def test_admin(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("admin", 2, config={"retention.ms": "1234"})])["admin"].result(WAIT_S)
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([NewTopic("admin", 2)])["admin"].result(WAIT_S)
    admin.create_partitions([NewPartitions("admin", 4)])["admin"].result(WAIT_S)
    assert len(admin.list_topics(timeout=WAIT_S).topics["admin"].partitions) == 4
    resource = ConfigResource(ResourceType.TOPIC, "admin")
    assert admin.describe_configs([resource])[resource].result(WAIT_S)["retention.ms"].value == "1234"
    change = ConfigEntry("retention.ms", "99", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, "admin", incremental_configs=[change])
    admin.incremental_alter_configs([changed])[changed].result(WAIT_S)
    assert admin.describe_configs([resource])[resource].result(WAIT_S)["retention.ms"].value == "99"

    produce(bootstrap, "admin", [b"x"] * 5)
    cluster = admin.describe_cluster().result(WAIT_S)
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [bootstrap]
    wanted = {TopicPartition("admin", number): OffsetSpec.latest() for number in range(4)}
    ends = {tp.partition: future.result(WAIT_S).offset for tp, future in admin.list_offsets(wanted).items()}
    assert sum(ends.values()) == 5
    (full,) = [partition for partition, end in ends.items() if end]
    deleted = admin.delete_records([TopicPartition("admin", full, 2)])
    assert [future.result(WAIT_S).low_watermark for future in deleted.values()] == [2]

    one = consumer(bootstrap, "admins")
    one.commit(offsets=[TopicPartition("admin", full, 3)], asynchronous=False)
    one.close()
    listed = admin.list_consumer_groups().result(WAIT_S)
    assert "admins" in [group.group_id for group in listed.valid]
    request = [ConsumerGroupTopicPartitions("admins")]
    answer = admin.list_consumer_group_offsets(request)["admins"].result(WAIT_S)
    assert [(tp.partition, tp.offset) for tp in answer.topic_partitions] == [(full, 3)]
    altered = [ConsumerGroupTopicPartitions("admins", [TopicPartition("admin", full, 5)])]
    admin.alter_consumer_group_offsets(altered)["admins"].result(WAIT_S)
    answer = admin.list_consumer_group_offsets(request)["admins"].result(WAIT_S)
    assert [(tp.partition, tp.offset) for tp in answer.topic_partitions] == [(full, 5)]
    admin.delete_consumer_groups(["admins"])["admins"].result(WAIT_S)
    with pytest.raises(KafkaException, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups(["admins"])["admins"].result(WAIT_S)
    admin.delete_topics(["admin"])["admin"].result(WAIT_S)
    assert "admin" not in admin.list_topics(timeout=WAIT_S).topics
