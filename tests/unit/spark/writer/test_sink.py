"""The writer without a Spark session: batches in, and what the log then says to the reader and the log's own tools."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql.types import StructType

from kcoord.cli.main import main
from kcoord.core.hashing import coordinator_partition
from kcoord.log.cluster_image import read_cluster_image, sound_batches
from kcoord.log.directory import open_directory
from kcoord.log.errors import DirectoryLocked, LogDamaged
from kcoord.log.log_config import LogConfig
from kcoord.log.reader import segment_files
from kcoord.log.serde import encode_record
from kcoord.log.storage import DiskStorage
from kcoord.protocol.records.group_metadata import GroupMetadataKey
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue
from kcoord.spark.reader.batch_reader import plan_tasks
from kcoord.spark.reader.options import BadOption, parse_options
from kcoord.spark.reader.row_filter import RowFilter
from kcoord.spark.reader.tasks import read_task
from kcoord.spark.source import KcoordDataSource
from kcoord.spark.tables.arrow import HEADERS
from kcoord.spark.tables.schemas import arrow_schema
from kcoord.spark.writer.assembly import NotWritten
from kcoord.spark.writer.options import BadColumns
from kcoord.spark.writer.pack import BadRow, Pack, Packer, RecordRows
from kcoord.spark.writer.sink import KcoordWriter
from kcoord.wire.record_batch import parse_header

TIME = datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=UTC)
TOPIC_ID = "WmE0mRTmSJCCjRVcOnmyWA"
UTC_US = pa.timestamp("us", tz="UTC")


def writer(path: Path, columns: Sequence[str], overwrite: bool = False, **options: Any) -> KcoordWriter:
    """As Spark gets it: from the data source, and pickled on its way."""
    schema = StructType()
    for name in columns:
        schema = schema.add(name, "string")
    given = {"path": str(path), **{name: str(value) for name, value in options.items()}}
    made = KcoordDataSource(given).writer(schema, overwrite)
    assert isinstance(made, KcoordWriter)
    copied: KcoordWriter = pickle.loads(pickle.dumps(made))
    return copied


def save(path: Path, *tasks: pa.RecordBatch | list[pa.RecordBatch], **options: Any) -> None:
    """One task for each batch, or list of batches."""
    first = tasks[0] if isinstance(tasks[0], pa.RecordBatch) else tasks[0][0]
    made = writer(path, first.schema.names, options.pop("overwrite", False), **options)
    messages = [
        pickle.loads(pickle.dumps(made.write(iter([task] if isinstance(task, pa.RecordBatch) else task))))
        for task in tasks
    ]
    made.commit(messages)


def read(path: Path, table: str, **options: str) -> list[dict[str, Any]]:
    parsed = parse_options({"path": str(path), "table": table, **options})
    rows = RowFilter()
    found: list[dict[str, Any]] = []
    for task in plan_tasks(parsed, rows):
        for batch in read_task(task, parsed, rows):
            found += batch.to_pylist()
    return found


def log(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["log", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def commits(count: int, groups: int = 7, first: int = 0) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "group_id": [f"group-{i % groups}" for i in numbers],
            "topic": [f"topic-{i % 3}" for i in numbers],
            "partition": pa.array([i % 5 for i in numbers], pa.int32()),
            "committed_offset": pa.array(list(numbers), pa.int64()),
            "commit_timestamp": pa.array([TIME + timedelta(seconds=i) for i in numbers], UTC_US),
        }
    )


def messages(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema("messages"))


def message(number: int | None, partition: int = 0, topic: str = "orders", **more: Any) -> dict[str, Any]:
    number = 0 if number is None else number
    return {
        "topic": topic,
        "partition": partition,
        "key": b"key %d" % number,
        "value": b"value %d" % number,
        "timestamp": TIME + timedelta(milliseconds=number),
        **more,
    }


def records(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    names = ["log_topic", "log_partition", "key", "value", "headers", "log_timestamp"]
    kinds = [pa.string(), pa.int32(), pa.binary(), pa.binary(), HEADERS, UTC_US]
    columns = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
    return pa.RecordBatch.from_arrays(columns, names)


def left_beside(path: Path) -> list[str]:
    return [name for name in os.listdir(path.parent) if name != path.name]


# --- commits


def test_commits_come_back_as_they_were_written(tmp_path: Path) -> None:
    row = {
        "group_id": "billing", "topic": "orders", "partition": 4, "committed_offset": 2**40, "leader_epoch": 3,
        "metadata": "größer", "commit_timestamp": TIME, "topic_id": TOPIC_ID,
        "log_timestamp": TIME + timedelta(seconds=1),
    }  # fmt: skip
    plain = {
        "group_id": "b", "topic": "t", "partition": 0, "committed_offset": 0, "commit_timestamp": TIME,
        "log_timestamp": TIME,
    }  # fmt: skip
    expiring = {**plain, "expire_timestamp": TIME + timedelta(days=1), "metadata": "old client"}
    gone = {"group_id": "b", "topic": "t", "partition": 0, "is_tombstone": True, "log_timestamp": TIME}
    given = [row, plain, expiring, gone]
    save(tmp_path / "log", pa.RecordBatch.from_pylist(given, schema=arrow_schema("offset_commits")))
    found = read(tmp_path / "log", "offset_commits")
    nothing = dict.fromkeys(arrow_schema("offset_commits").names)
    place = {"log": ".", "log_topic": "__consumer_offsets", "log_partition": 0}
    for offset, (wanted, got) in enumerate(zip(given, found, strict=True)):
        is_tombstone = wanted.get("is_tombstone", False)
        more = {"log_offset": offset, "is_tombstone": is_tombstone}
        if not is_tombstone:
            more["metadata"] = wanted.get("metadata", "")
        assert got == {**nothing, **place, **wanted, **more}


def test_groups_lie_where_kafka_looks_for_them(tmp_path: Path) -> None:
    save(tmp_path / "log", commits(100, groups=30), offsetsPartitions=9)
    found = read(tmp_path / "log", "offset_commits")
    assert len(found) == 100
    for row in found:
        assert row["log_partition"] == coordinator_partition(row["group_id"], 9)
    assert len({row["log_partition"] for row in found}) > 4


def test_tasks_follow_each_other_in_order(tmp_path: Path) -> None:
    tasks = [commits(25, first=0), [commits(10, first=25), commits(5, first=35)], commits(30, first=40)]
    save(tmp_path / "log", *tasks, batchRecords=4)
    found = read(tmp_path / "log", "offset_commits")
    assert [row["committed_offset"] for row in found] == list(range(70))
    assert [row["log_offset"] for row in found] == list(range(70))


def test_commits_without_times_are_of_now(tmp_path: Path) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    save(tmp_path / "log", commits(3).drop_columns(["commit_timestamp"]))
    for row in read(tmp_path / "log", "offset_commits"):
        assert row["commit_timestamp"] == row["log_timestamp"]
        assert before <= row["commit_timestamp"] <= datetime.now(UTC)


def test_no_rows_make_a_log_without_any(tmp_path: Path) -> None:
    save(tmp_path / "log", commits(0))
    assert read(tmp_path / "log", "offset_commits") == []
    made = writer(tmp_path / "other", commits(0).schema.names)
    made.commit([])
    image = read_cluster_image(str(tmp_path / "other"))
    assert image is not None
    assert [topic.name for topic in image.topics.values()] == ["__consumer_offsets"]


# --- messages


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_messages_come_back_as_they_were_written(tmp_path: Path, compression: str) -> None:
    headers = [{"key": "trace", "value": b"\x00\x01"}, {"key": "empty", "value": None}]
    rows = [message(i, i % 3) for i in range(100)]
    rows[3] = {**rows[3], "key": None, "headers": headers}
    rows[4] = {**rows[4], "value": None, "timestamp": None}
    save(tmp_path / "log", messages(rows), compression=compression, batchRecords=7)
    found = read(tmp_path / "log", "messages")
    for partition in range(3):
        wanted = [row for row in rows if row["partition"] == partition]
        got = [row for row in found if row["partition"] == partition]
        for offset, (one, other) in enumerate(zip(wanted, got, strict=True)):
            more = {"offset": offset, "timestampType": 0, "log": ".", "headers": one.get("headers")}
            assert other == {**one, **more}
    assert read(tmp_path / "log", "_corrupt") == []


def test_text_counts_as_bytes_and_the_names_of_columns_have_no_case(tmp_path: Path) -> None:
    batch = pa.record_batch(
        {"Topic": ["a"], "PARTITION": pa.array([0], pa.int64()), "key": pa.nulls(1), "Value": ["text"]}
    )
    save(tmp_path / "log", batch)
    (row,) = read(tmp_path / "log", "messages")
    assert (row["topic"], row["key"], row["value"], row["timestamp"]) == ("a", None, b"text", None)


def test_topics_have_the_partitions_there_are_and_those_asked_for(tmp_path: Path) -> None:
    rows = [message(0, 2), message(1, 0, topic="clicks"), message(2, topic=".hidden")]
    plan = '{"clicks": {"partitions": 4, "configs": {"retention.ms": "-1"}}, "empty": {"partitions": 1}}'
    save(tmp_path / "log", messages(rows), topics=plan)
    image = read_cluster_image(str(tmp_path / "log"))
    assert image is not None
    counts = {topic.name: topic.partition_count for topic in image.topics.values()}
    assert counts == {"orders": 3, "clicks": 4, "empty": 1, ".hidden": 1}
    assert len(read(tmp_path / "log", "messages")) == len(read(tmp_path, "messages")) == 3
    assert image.configs_of(2, "clicks") == {"retention.ms": "-1"}
    assert (tmp_path / "log" / "orders-1" / ("0" * 20 + ".log")).stat().st_size == 0


def test_segments_are_rolled_and_indexed(tmp_path: Path) -> None:
    value = os.urandom(1000)
    rows = [message(i, value=value) for i in range(5000)]
    save(tmp_path / "log", messages(rows), segmentBytes=1 << 20, batchRecords=10)
    files = segment_files(str(tmp_path / "log" / "orders-0"))
    sizes = [os.path.getsize(file) for file in files]
    assert len(files) == 5
    assert all((1 << 20) - 12_000 < size <= 1 << 20 for size in sizes[:-1])
    assert all(os.path.getsize(file.replace(".log", ".index")) > 700 for file in files)
    directory = open_directory(
        DiskStorage(str(tmp_path / "log")), 1, "unused", "unused", config=LogConfig(1 << 20), verify=True
    )
    opened = directory.get("orders", 0)
    assert opened is not None and directory.was_clean and not directory.events
    assert opened.end_offset == 5000
    at = opened.find_by_timestamp(int(TIME.timestamp() * 1000) + 3333)
    assert at is not None and at[1] == 3333
    directory.close(False)


def test_offsets_are_kept_on_request(tmp_path: Path) -> None:
    offsets = [[1000, 1001, 1005], [1006, 2**33], [2**33 + 1]]
    tasks = [messages([message(i, offset=i) for i in some]) for some in offsets]
    # Where nothing is compacted, verify takes gaps for what they would be in a server's log.
    compacted = '{"orders": {"configs": {"cleanup.policy": "compact"}}}'
    save(tmp_path / "log", *tasks, keepOffsets=True, topics=compacted)
    found = read(tmp_path / "log", "messages")
    assert [row["offset"] for row in found] == [i for some in offsets for i in some]
    assert [row["value"] for row in found] == [b"value %d" % i for some in offsets for i in some]
    directory = open_directory(DiskStorage(str(tmp_path / "log")), 1, "unused", "unused", verify=True)
    opened = directory.get("orders", 0)
    assert opened is not None
    assert (opened.log_start_offset, opened.end_offset) == (1000, 2**33 + 2)
    directory.close(False)
    # What a crash leaves is looked at batch by batch, and a hole would be damage.
    directory = open_directory(DiskStorage(str(tmp_path / "log")), 1, "unused", "unused")
    assert not directory.was_clean and not directory.events
    directory.close(False)
    assert "no problems found" in log("verify", str(tmp_path / "log"))


@pytest.mark.parametrize("tasks", [[[5, 4]], [[5], [5]], [[5], [3]], [[None]], [[-1]], [[0], [2**60]]])
def test_kept_offsets_have_to_ascend(tmp_path: Path, tasks: list[list[int | None]]) -> None:
    batches = [messages([message(0, offset=i) for i in some]) for some in tasks]
    with pytest.raises((BadRow, NotWritten), match=r"offset"):
        save(tmp_path / "log", *batches, keepOffsets=True)


# --- records


def committed(group: str, offset: int) -> tuple[Any, ...]:
    key, value = encode_record(OffsetCommitKey(group, "orders", 0), OffsetCommitValue(offset, commit_timestamp=1))
    return ("__consumer_offsets", 33, key, value, None, TIME)


def test_records_keep_their_bytes_and_coordinators_theirs_by_hash(tmp_path: Path) -> None:
    tombstone, _ = encode_record(GroupMetadataKey("billing"), None)
    state, status = encode_record(TransactionLogKey("tx"), TransactionLogValue(producer_id=77, producer_epoch=1))
    cause = [{"key": "kcoord.cause", "value": b"{}"}]
    rows = [
        committed("a", 1),
        committed("b", 2),
        ("__consumer_offsets", 12, tombstone, None, cause, TIME),
        ("__transaction_state", 40, state, status, None, TIME),
        ("orders", 1, b"k", b"v", cause, None),
    ]
    save(tmp_path / "log", records(rows), offsetsPartitions=2)
    found = read(tmp_path / "log", "records")
    places = {row["key"]: (row["log_topic"], row["log_partition"], row["value"], row["headers"]) for row in found}
    key, value = rows[0][2:4]
    assert places[key] == ("__consumer_offsets", coordinator_partition("a", 2), value, None)
    key, value = rows[1][2:4]
    assert places[key] == ("__consumer_offsets", coordinator_partition("b", 2), value, None)
    assert places[tombstone] == ("__consumer_offsets", coordinator_partition("billing", 2), None, cause)
    assert places[state][:3] == ("__transaction_state", 0, status)
    (row,) = read(tmp_path / "log", "messages")
    assert (row["partition"], row["key"], row["value"], row["headers"]) == (1, b"k", b"v", cause)
    image = read_cluster_image(str(tmp_path / "log"))
    assert image is not None and image.next_producer_id == 78
    assert "no problems found" in log("verify", str(tmp_path / "log"))


@pytest.mark.parametrize(
    ("row", "match"),
    [
        (("__consumer_offsets", 0, None, b"v", None, TIME), "without a key"),
        (("__consumer_offsets", 0, b"\x00", b"v", None, TIME), "none of a coordinator"),
        (("__transaction_state", 0, b"\x00\x00\x00\x01t", b"\x00\x63", None, TIME), "transaction_state"),
        (("__cluster_metadata", 0, None, b"v", None, TIME), "leave its records out"),
        (("orders", -1, None, b"v", None, TIME), "partition -1"),
        (("orders", 10_000, None, b"v", None, TIME), "partition 10000"),
        (("../up", 0, None, b"v", None, TIME), "Topic name is invalid"),
        ((".", 0, None, b"v", None, TIME), "Topic name is invalid"),
        ((None, 0, None, b"v", None, TIME), "log_topic is null in 1 of 1 rows"),
        (("orders", 0, None, b"v", [{"key": None, "value": b""}], TIME), "without a key"),
        (("orders", 0, None, b"v", None, datetime(1960, 1, 1, tzinfo=UTC)), "timestamp"),
    ],
)
def test_bad_records_fail_the_task(tmp_path: Path, row: tuple[Any, ...], match: str) -> None:
    batch = records([row])
    made = writer(tmp_path / "log", batch.schema.names)
    with pytest.raises(BadRow, match=match):
        made.write(iter([batch]))
    made.abort([None])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"committed_offset": pa.array([None], pa.int64())}, "committed_offset is null"),
        ({"group_id": pa.array([None], pa.string())}, "group_id is null"),
        ({"group_id": pa.array(["g" * 40_000])}, "group"),
        ({"topic_id": pa.array(["abc"])}, "topic_id abc"),
        ({"partition": pa.array([2**31], pa.int64())}, "partition"),
    ],
)
def test_bad_commits_fail_the_task(tmp_path: Path, change: dict[str, Any], match: str) -> None:
    columns = {name: commits(1).column(name) for name in commits(1).schema.names}
    batch = pa.record_batch({**columns, **change})
    with pytest.raises(BadRow, match=match):
        writer(tmp_path / "log", batch.schema.names).write(iter([batch]))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"timestamp": pa.array([1])}, "timestamp is a timestamp"),
        ({"partition": pa.array(["0"])}, "partition is an integer"),
        ({"value": pa.array([1.5])}, "value is binary or a string"),
        ({"headers": pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string()))}, "headers is array<struct"),
    ],
)
def test_columns_of_another_type_are_refused(tmp_path: Path, change: dict[str, Any], match: str) -> None:
    batch = messages([message(0)])
    columns = {name: batch.column(name) for name in batch.schema.names}
    with pytest.raises(BadColumns, match=match):
        save(tmp_path / "log", pa.record_batch({**columns, **change}))


@pytest.mark.parametrize("columns", [[], ["key", "value"], ["topic", "partition", "value", "VALUE"]])
def test_other_columns_are_refused(tmp_path: Path, columns: list[str]) -> None:
    with pytest.raises(BadColumns):
        writer(tmp_path / "log", columns)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "brotli"}, {"batchRecords": 0}, {"segmentBytes": 1000}, {"segmentBytes": 1 << 31},
        {"offsetsPartitions": "many"}, {"keepOffsets": "yes"}, {"table": "messages"}, {"topics": "[1]"},
        {"topics": '{"a": {"partition": 1}}'}, {"topics": '{"a/b": {"partitions": 1}}'},
        {"topics": '{"a": {"configs": {"retention.ms": "long"}}}'}, {"path": ""}, {"path": "s3://bucket/log"},
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        KcoordDataSource({"path": str(tmp_path / "log"), **options}).writer(
            StructType().add("topic", "string").add("partition", "integer").add("value", "binary"), False
        )


def test_keeping_offsets_needs_them(tmp_path: Path) -> None:
    with pytest.raises(BadColumns, match="log_offset"):
        writer(tmp_path / "log", commits(1).schema.names, keepOffsets=True)


# --- the target


def test_nothing_is_there_before_the_commit_and_nothing_else_after_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    made = writer(path, commits(1).schema.names)
    message = made.write(iter([commits(10)]))
    assert not path.exists()
    with pytest.raises(ValueError, match="no segments"):
        read(tmp_path, "offset_commits")
    made.commit([message])
    assert left_beside(path) == []
    assert len(read(tmp_path, "offset_commits")) == 10
    # As a driver that is killed leaves it: no second log beside the first one.
    path.rename(tmp_path / ".log.staging-1")
    save(path, commits(5))
    assert len(read(tmp_path, "offset_commits")) == 5


def test_a_failed_task_leaves_nothing(tmp_path: Path) -> None:
    made = writer(tmp_path / "log", commits(1).schema.names)
    message = made.write(iter([commits(10)]))

    def broken() -> Iterator[pa.RecordBatch]:
        yield commits(5)
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError):
        made.write(broken())
    made.abort([message, None])
    assert os.listdir(tmp_path) == []


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("harm", [remove, cut, damage])
def test_staged_files_that_are_not_whole_are_not_taken(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    made = writer(tmp_path / "log", commits(1).schema.names, batchRecords=5)
    message = made.write(iter([commits(20)]))
    (file,) = [file for file in tmp_path.rglob("*") if file.is_file()]
    harm(file)
    with pytest.raises((NotWritten, LogDamaged)) as raised:
        made.commit([message])
    assert str(file) in str(raised.value)
    assert os.listdir(tmp_path) == []


def test_a_task_without_a_message_is_not_passed_over(tmp_path: Path) -> None:
    made = writer(tmp_path / "log", commits(1).schema.names)
    with pytest.raises(NotWritten, match="1 tasks"):
        made.commit([made.write(iter([commits(1)])), None])
    assert os.listdir(tmp_path) == []


def test_a_log_is_replaced_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.mkdir()
    save(path, commits(3))
    with pytest.raises(NotWritten, match="overwrite"):
        save(path, commits(4))
    assert len(read(path, "offset_commits")) == 3
    save(path, commits(5), overwrite=True)
    assert len(read(path, "offset_commits")) == 5
    assert left_beside(path) == []


def test_other_directories_are_never_replaced(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work")
    with pytest.raises(NotWritten, match="not a log directory of kcoord"):
        save(home, commits(1), overwrite=True)
    broker = tmp_path / "broker"
    broker.mkdir()
    (broker / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\n")
    with pytest.raises(NotWritten, match="not a log directory of kcoord"):
        save(broker, commits(1), overwrite=True)
    with pytest.raises(NotWritten, match="not a directory"):
        save(home / "thesis.txt", commits(1), overwrite=True)
    assert (home / "thesis.txt").read_text() == "years of work"


def test_a_log_that_a_server_runs_on_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "log"
    save(path, commits(3))
    running = DiskStorage(str(path))
    running.lock()
    with pytest.raises(DirectoryLocked):
        save(path, commits(5), overwrite=True)
    running.unlock()
    assert len(read(path, "offset_commits")) == 3
    assert left_beside(path) == []


def test_paths_may_be_uris_of_files(tmp_path: Path) -> None:
    given = {"path": f"file://{tmp_path}/a%20log"}
    schema = StructType().add("topic", "string").add("partition", "integer").add("value", "binary")
    made = KcoordDataSource(given).writer(schema, False)
    made.commit([made.write(iter([messages([message(0)])]))])
    assert len(read(tmp_path / "a log", "messages")) == 1


# --- limits


def test_memory_is_bounded_where_batches_never_fill() -> None:
    """Many partitions with a few records each: all are handed on together when they take too much."""
    written: list[tuple[int, int]] = []

    def write(one: Pack, batch: bytes) -> None:
        written.append((one.partition, int(parse_header(batch).count)))

    packer = Packer(write, 0, 1000, 1, 1, False, 99, pending_bytes_max=20_000)
    held = []
    for number in range(400):
        row = RecordRows(["orders"], [number % 40], [number], [None], [b"x" * 300], [], [-1])
        packer.add_records(row)
        held.append(packer.pending_bytes)
    packer.flush()
    assert packer.pending_bytes == 0
    assert 15_000 < max(held) <= 20_000
    by_partition = {partition: sum(n for p, n in written if p == partition) for partition, _ in written}
    assert by_partition == dict.fromkeys(range(40), 10)
    assert len(written) > 100


def test_batches_stay_below_a_megabyte(tmp_path: Path) -> None:
    sizes = [300_000] * 8 + [3_000_000, 10]
    save(tmp_path / "log", messages([message(i, value=b"x" * size) for i, size in enumerate(sizes)]))
    found = [(int(b.header.count), b.header.size) for b in sound_batches(str(tmp_path / "log" / "orders-0"))]
    assert [count for count, _ in found] == [3, 3, 2, 1, 1]
    assert all(size < 1_048_588 for count, size in found if count > 1)
    assert [len(row["value"]) for row in read(tmp_path / "log", "messages")] == sizes
