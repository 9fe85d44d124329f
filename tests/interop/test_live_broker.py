"""A broker that compacts every three seconds while clients commit, and batches and streams read its files.

Each exchange of files may come at any moment of a read. Nothing may fail, come twice or be invented, and a commit that
no later one of its key replaced is always there. `--live-seconds` says for how long; `make nightly` does it for ten
minutes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from kcoord.spark.reader.batch_reader import plan_tasks
from kcoord.spark.reader.options import parse_options
from kcoord.spark.reader.row_filter import RowFilter
from kcoord.spark.reader.tasks import read_task
from tests.harness.real_broker import RealBroker

pytestmark = pytest.mark.nightly

TOPIC = "t"
PARTITIONS = 10
GROUPS = ("red", "green", "blue")
# A broker's smallest segments are of 1 MiB; with texts of this size one is full each second.
TEXT_BYTES = 1000
COMMIT_PAUSE_S = 0.02
# Longer than the cleaner's pause: files that were planned are exchanged before they are read.
WAIT_S = 4.0
DEADLINE_S = 120
SLOW_START = "Python worker failed to connect back"
RESTARTS_MAX = 10
COMPACTING = {
    "log.cleaner.backoff.ms": "3000",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "offsets.topic.segment.bytes": str(1 << 20),
    # Inodes of removed files are given to new ones.
    "log.segment.delete.delay.ms": "2000",
    "replica.high.watermark.checkpoint.interval.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "500",
}
COLUMNS = "log_offset,group_id,topic,partition,committed_offset"
Key = tuple[str, int]
# log_offset, group, partition, committed offset
Row = tuple[int, str, int, int]


class Committer(threading.Thread):
    """One group that commits one offset after the other, of all partitions at once."""

    def __init__(self, bootstrap: str, group: str) -> None:
        super().__init__(daemon=True)
        self.group = group
        self.acknowledged = 0
        self.failure: Exception | None = None
        self.stopping = threading.Event()
        self.consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})

    def run(self) -> None:
        try:
            while not self.stopping.wait(COMMIT_PAUSE_S):
                offset = self.acknowledged + 1
                text = "x" * (TEXT_BYTES - offset % 97)
                wanted = [TopicPartition(TOPIC, number, offset, text) for number in range(PARTITIONS)]
                for done in self.consumer.commit(offsets=wanted, asynchronous=False) or ():
                    if done.error is not None:
                        raise RuntimeError(str(done.error))
                self.acknowledged = offset
        except Exception as error:
            self.failure = error

    def committed(self) -> dict[Key, int]:
        """What the broker answers."""
        asked = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        return {(self.group, one.partition): one.offset for one in self.consumer.committed(asked, timeout=30)}

    def stop(self) -> None:
        self.stopping.set()
        self.join(30)


@pytest.fixture(scope="module")
def broker() -> Iterator[RealBroker]:
    with RealBroker(COMPACTING) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        yield running


@pytest.fixture
def committers(broker: RealBroker) -> Iterator[list[Committer]]:
    found = [Committer(broker.bootstrap, group) for group in GROUPS]
    for one in found:
        one.start()
    yield found
    for one in found:
        one.stop()
        one.consumer.close()


class Exchanges(threading.Thread):
    """Counts how often the broker put another file in the place of the first segment."""

    def __init__(self, data: Path) -> None:
        super().__init__(daemon=True)
        self.path = data / "__consumer_offsets-0" / f"{0:020d}.log"
        self.count = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        before = None
        while not self.stopping.wait(0.05):
            try:
                now = self.path.stat()
            except FileNotFoundError:
                continue
            # A rename changes it as well, and is what every exchange ends with.
            if before is not None and (now.st_ino, now.st_ctime_ns) != before and now.st_size:
                self.count += 1
            before = (now.st_ino, now.st_ctime_ns)


def rows_of(frame: DataFrame) -> list[Row]:
    return [(row.log_offset, row.group_id, row.partition, row.committed_offset) for row in frame.collect()]


def commit_once(bootstrap: str, group: str, offset: int) -> dict[Key, int]:
    """A group that commits and never comes back."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    wanted = [TopicPartition(TOPIC, number, offset) for number in range(PARTITIONS)]
    assert all(done.error is None for done in consumer.commit(offsets=wanted, asynchronous=False) or ())
    consumer.close()
    return {(group, number): offset for number in range(PARTITIONS)}


def check(rows: list[Row], still: dict[Key, int], most: dict[str, int]) -> None:
    """No offset twice, commits of each key in their order, none that was not made, and those that stay as they are.

    What a group that goes on committed may be gone, if its next commit came after the read was planned.
    """
    rows = sorted(rows)
    assert len({row[0] for row in rows}) == len(rows), "an offset came twice"
    newest: dict[Key, int] = {}
    for offset, group, partition, committed in rows:
        key = (group, partition)
        assert committed > newest.get(key, 0), f"offset {offset}: {key} commits {committed} after {newest.get(key)}"
        newest[key] = committed
        # One commit more may be on its way.
        assert committed <= (still[key] if key in still else most[group] + 1)
    missing = {key: offset for key, offset in still.items() if newest.get(key) != offset}
    assert not missing, f"{len(rows)} rows, and none of {missing}"


def acknowledged(committers: list[Committer]) -> dict[str, int]:
    assert [one.failure for one in committers] == [None] * len(committers)
    return {one.group: one.acknowledged for one in committers}


def read_late(data: Path, committers: list[Committer], still: dict[Key, int]) -> bool:
    """A batch with a long wait between plan and read; whether a planned file was exchanged meanwhile."""
    options = parse_options({"path": str(data), "table": "offset_commits", "columns": COLUMNS})
    tasks = plan_tasks(options, RowFilter())
    time.sleep(WAIT_S)
    is_other = any(_inode(task.part.segment.path) != task.part.segment.inode for task in tasks)
    found = [row for task in tasks for batch in read_task(task, options) for row in batch.to_pylist()]
    rows = [(row["log_offset"], row["group_id"], row["partition"], row["committed_offset"]) for row in found]
    check(rows, still, acknowledged(committers))
    return is_other


def _inode(path: str) -> int:
    try:
        return Path(path).stat().st_ino
    except FileNotFoundError:
        return 0


def read_at_once(spark: SparkSession, data: Path, committers: list[Committer], still: dict[Key, int]) -> None:
    frame = spark.read.format("kcoord").options(table="offset_commits", columns=COLUMNS).load(str(data))
    check(rows_of(frame), still, acknowledged(committers))
    assert spark.read.format("kcoord").options(table="_corrupt").load(str(data)).collect() == []


class Stream:
    """A stream of all commits from the earliest on."""

    def __init__(self, spark: SparkSession, data: Path, checkpoint: Path, **trigger: Any) -> None:
        # By number: a batch that was under way when the stream ended comes again.
        self.batches: dict[int, list[Row]] = {}
        self.restarts = 0
        frame = (
            spark.readStream.format("kcoord")
            .options(table="offset_commits", columns=COLUMNS, startingOffsets="earliest")
            .load(str(data))
        )
        writer = frame.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(checkpoint))
        self.writer = writer.trigger(**trigger) if trigger else writer
        self.query = self.writer.start()

    def _keep(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = rows_of(frame)

    @property
    def rows(self) -> list[Row]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    def check_runs(self) -> None:
        """Spark gives a Python process ten seconds to start, which a busy machine may not manage: then it goes on from
        its checkpoint."""
        if not self.query.isActive:
            reason = str(self.query.exception())
            assert SLOW_START in reason, f"the stream ended by itself: {reason}"
            self.restarts += 1
            assert self.restarts <= RESTARTS_MAX
            self.query = self.writer.start()

    def wait_for_end(self) -> None:
        while True:
            try:
                assert self.query.awaitTermination(DEADLINE_S)
                return
            except StreamingQueryException:
                self.check_runs()

    def wait_for(self, expected: dict[str, int]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            self.check_runs()
            newest = {(group, partition): committed for _, group, partition, committed in self.rows}
            if all(newest.get((group, 0), 0) >= committed for group, committed in expected.items()):
                return
            assert time.monotonic() < deadline, f"{expected} is waited for, {newest} was seen"
            time.sleep(0.2)


def test_a_compacting_broker_is_read_while_it_works(
    spark: SparkSession, broker: RealBroker, committers: list[Committer], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    deadline = time.monotonic() + request.config.getoption("--live-seconds")
    exchanges = Exchanges(broker.data)
    exchanges.start()
    while exchanges.count == 0:
        acknowledged(committers)
        time.sleep(0.1)
    followed = Stream(spark, broker.data, tmp_path / "followed")
    still: dict[Key, int] = {}
    rounds = exchanged = 0
    while time.monotonic() < deadline:
        rounds += 1
        still |= commit_once(broker.bootstrap, f"still-{rounds}", rounds)
        exchanged += read_late(broker.data, committers, still)
        read_at_once(spark, broker.data, committers, still)
        # A stream ends at the high watermark, which the broker writes twice a second.
        once = Stream(spark, broker.data, tmp_path / f"once-{rounds}", availableNow=True)
        once.wait_for_end()
        check(once.rows, still, acknowledged(committers))
        followed.check_runs()
    for one in committers:
        one.stop()
    last = acknowledged(committers)
    followed.wait_for(last)
    followed.query.stop()
    exchanges.stopping.set()
    check(followed.rows, still, last)
    answered = still | {key: offset for one in committers for key, offset in one.committed().items()}
    newest = {(group, partition): committed for _, group, partition, committed in sorted(followed.rows)}
    assert newest == answered
    print(
        f"{rounds} rounds, {exchanged} of {rounds} batches met exchanged files, {exchanges.count} exchanges, "
        f"{sum(last.values()) * PARTITIONS} commits, {len(followed.rows)} rows in the stream"
    )
    assert exchanged > 0 and exchanges.count >= rounds
