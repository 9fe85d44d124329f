"""kafka-python against a server process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.structs import OffsetAndMetadata

from tests.e2e.process import ServerProcess

CODECS = [None, "gzip"]  # the others need libraries that aiokafka and confluent-kafka bring along
WAIT_S = 60.0


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data: Path = tmp_path_factory.mktemp("kafka-python") / "data"
    with ServerProcess(data) as server:
        yield server.bootstrap
        assert server.stop() == 0


def consumer(bootstrap: str, *topics: str, group: str | None, **settings: object) -> KafkaConsumer:
    made = KafkaConsumer(
        *topics, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest",
        enable_auto_commit=False, heartbeat_interval_ms=100, session_timeout_ms=30_000,
        # A leader that does not know the topic yet assigns nothing, and asks for the topic again after this time.
        metadata_max_age_ms=1000, **settings,
    )  # fmt: skip
    for topic in topics:
        # Otherwise kafka-python 3.0 may join before it knows the topic, and then stay without partitions.
        made.partitions_for_topic(topic)
    return made


def produce(bootstrap: str, topic: str, values: list[bytes], **settings: object) -> list[int]:
    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=5, **settings)
    futures = [producer.send(topic, value, key=b"k", headers=[("h", b"1")]) for value in values]
    offsets = [future.get(WAIT_S).offset for future in futures]
    producer.close()
    return offsets


def read(one: KafkaConsumer, count: int) -> list[bytes]:
    values: list[bytes] = []
    end = time.monotonic() + WAIT_S
    while len(values) < count:
        assert time.monotonic() < end, f"read {len(values)} of {count}"
        for records in one.poll(100, max_records=count - len(values)).values():
            values += [record.value for record in records]
    return values


@pytest.mark.parametrize("codec", CODECS)
def test_produce_and_consume(bootstrap: str, codec: str | None) -> None:
    topic = f"codec-{codec}"
    values = [f"value {number} ".encode() * 20 for number in range(200)]
    assert produce(bootstrap, topic, values, compression_type=codec) == list(range(200))
    one = consumer(bootstrap, topic, group=None)
    assert read(one, 200) == values
    one.close()


def test_a_group_resumes_where_it_was(bootstrap: str) -> None:
    produce(bootstrap, "resume", [str(number).encode() for number in range(10)], acks=1)
    one = consumer(bootstrap, "resume", group="resuming")
    assert read(one, 4) == [b"0", b"1", b"2", b"3"]
    one.commit({TopicPartition("resume", 0): OffsetAndMetadata(4, "note", -1)})
    one.close()
    one = consumer(bootstrap, "resume", group="resuming")
    assert read(one, 6) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    # Asked before the first poll, kafka-python 3.0 may join before it knows the topic and then stay without partitions.
    assert one.committed(TopicPartition("resume", 0), metadata=True).metadata == "note"
    one.close()


def test_positions(bootstrap: str) -> None:
    partition = TopicPartition("positions", 0)
    produce(bootstrap, "positions", [b"0", b"1", b"2"])
    one = consumer(bootstrap, group=None)
    one.assign([partition])
    assert one.beginning_offsets([partition]) == {partition: 0}
    assert one.end_offsets([partition]) == {partition: 3}
    assert one.offsets_for_times({partition: 0})[partition].offset == 0
    one.seek(partition, 1)
    assert read(one, 2) == [b"1", b"2"]
    one.close()


class Member(threading.Thread):
    """A consumer on a thread of its own: kafka-python rejoins in poll, and short polls in turns confuse it."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.consumer = consumer(bootstrap, "crowd", group="crowd")
        self.owned: list[int] = []
        self.leaving = threading.Event()
        self.start()

    def run(self) -> None:
        while not self.leaving.is_set():
            self.consumer.poll(200)
            self.owned = [partition.partition for partition in self.consumer.assignment()]
        self.consumer.close()

    def leave(self) -> None:
        self.leaving.set()
        self.join(WAIT_S)
        assert not self.is_alive()


def test_members_come_and_go(bootstrap: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic("crowd", 6, 1)])
    admin.close()
    members: list[Member] = []

    def settle() -> None:
        end = time.monotonic() + WAIT_S
        while True:
            shares = [member.owned for member in members]
            if sorted(number for share in shares for number in share) == list(range(6)) and all(shares):
                return
            assert time.monotonic() < end, shares
            time.sleep(0.02)

    for _ in range(5):
        members.append(Member(bootstrap))
        settle()
    for _ in range(4):
        members.pop(0).leave()
        settle()
    members.pop().leave()


def test_admin(bootstrap: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic("admin", 2, 1)])
    assert "admin" in admin.list_topics()
    admin.create_partitions({"admin": 3})
    (described,) = admin.describe_topics(["admin"])
    assert len(described["partitions"]) == 3
    one = consumer(bootstrap, group="admins")
    one.assign([TopicPartition("admin", 1)])
    one.commit({TopicPartition("admin", 1): OffsetAndMetadata(7, "", -1)})
    one.close()
    assert "admins" in str(admin.list_groups())
    assert "offset=7" in str(admin.list_group_offsets(["admins"]))
    assert "EMPTY" in str(admin.describe_groups(["admins"])).upper()
    admin.delete_groups(["admins"])
    assert "admins" not in str(admin.list_groups())
    admin.delete_topics(["admin"])
    assert "admin" not in admin.list_topics()
    admin.close()
