"""Logs that `df.write.format("kcoord")` makes, as Kafka's dumper reads them, and as a broker that is started on one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql.types import StructType

from kcoord.cli.main import main
from kcoord.core.hashing import coordinator_partition
from kcoord.spark.source import KcoordDataSource
from tests.harness.real_broker import RealBroker
from tests.interop import tools
from tests.interop.dump import dump

NOW = datetime.now(UTC).replace(microsecond=0)
TIMES = pa.timestamp("us", tz="UTC")
COMPLAINTS = (
    "isvalid: false",
    "mismatch",
    "Mismatch",
    "out of order",
    "Out of order",
    "Exception",
    "corrupt",
)


def save(path: Path, *tasks: pa.RecordBatch, **options: str) -> None:
    schema = StructType()
    for name in tasks[0].schema.names:
        schema = schema.add(name, "string")
    writer: Any = KcoordDataSource({"path": str(path), **options}).writer(schema, False)
    writer.commit([writer.write(iter([task])) for task in tasks])


def commits(count: int) -> pa.RecordBatch:
    numbers = range(count)
    return pa.record_batch(
        {
            "group_id": [f"group-{number % 10}" for number in numbers],
            "topic": ["orders"] * count,
            "partition": pa.array([number % 2 for number in numbers], pa.int32()),
            "committed_offset": pa.array(list(numbers)),
            "leader_epoch": pa.array([None if number % 3 else number for number in numbers], pa.int32()),
            "metadata": ["" if number % 4 else f"note {number}" for number in numbers],
            "commit_timestamp": pa.array([NOW + timedelta(seconds=number) for number in numbers], TIMES),
        }
    )


def messages(first: int, count: int, step: int = 1) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "topic": ["orders"] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array([number * step for number in numbers]),
            "value": [f"value {number} ".encode() * 60 for number in numbers],
            "timestamp": pa.array([NOW + timedelta(milliseconds=number) for number in numbers], TIMES),
        }
    )


def dumped(paths: list[Path], *options: str) -> str:
    shown = tools.run(tools.DUMP_LOG, *options, "--files", ",".join(map(str, paths)))
    assert shown.code == 0, shown
    for complaint in COMPLAINTS:
        assert complaint not in shown.out, shown.out
    return shown.out


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_dumper_decodes_the_commits(tmp_path: Path, compression: str) -> None:
    given = commits(200)
    save(tmp_path / "log", given.slice(0, 90), given.slice(90), compression=compression, offsetsPartitions="3")
    seen = 0
    for partition in range(3):
        path = tmp_path / "log" / f"__consumer_offsets-{partition}" / ("0" * 20 + ".log")
        found = dump("--offsets-decoder", path) if path.stat().st_size else []
        wanted = [row for row in given.to_pylist() if coordinator_partition(row["group_id"], 3) == partition]
        seen += len(found)
        for row, record in zip(wanted, found, strict=True):
            assert record["key"]["data"] == {
                "group": row["group_id"],
                "topic": "orders",
                "partition": row["partition"],
            }
            assert record["payload"]["version"] == "4"
            data = record["payload"]["data"]
            assert data["offset"] == row["committed_offset"]
            assert data["leaderEpoch"] == (-1 if row["leader_epoch"] is None else row["leader_epoch"])
            assert data["metadata"] == row["metadata"]
            assert data["commitTimestamp"] == int(row["commit_timestamp"].timestamp() * 1000)
    assert seen == 200


def test_the_dumper_finds_segments_and_indexes_sound(tmp_path: Path) -> None:
    save(
        tmp_path / "plain",
        messages(0, 3000),
        messages(3000, 1000),
        batchRecords="20",
        segmentBytes=str(1 << 20),
    )
    save(tmp_path / "gaps", messages(100, 300, 3), messages(400, 300, 5), keepOffsets="true", batchRecords="20")
    for root, segments, batches in ((tmp_path / "plain", 3, 200), (tmp_path / "gaps", 2, 1199)):
        paths = sorted(path for path in root.glob("*-0/*") if path.suffix in (".log", ".index", ".timeindex"))
        logs = [path for path in paths if path.suffix == ".log" and path.parent.name == "orders-0"]
        assert len(logs) == segments
        assert dumped(logs, "--deep-iteration").count("isvalid: true") == batches
        indexes = [path for path in paths if path.suffix != ".log" and path.stat().st_size]
        assert dumped(indexes, "--index-sanity-check").count("passed sanity check") == len(indexes) > 2
        shown = dumped(sorted(root.glob("__cluster_metadata-0/*.log")), "--cluster-metadata-decoder")
        assert shown.count("TOPIC_RECORD") == 1 and shown.count("PARTITION_RECORD") == 1


def test_a_broker_starts_on_an_export_of_a_written_log(tmp_path: Path) -> None:
    save(tmp_path / "log", commits(20), topics='{"orders": {"partitions": 2}}')
    done = CliRunner().invoke(main, ["log", "export", str(tmp_path / "broker"), "--data", str(tmp_path / "log")])
    assert done.exit_code == 0, done.output
    with RealBroker({}, data=tmp_path / "broker") as broker:
        shown = tools.run(
            tools.GROUPS,
            "--bootstrap-server",
            broker.bootstrap,
            "--describe",
            "--group",
            "group-7",
            "--offsets",
        )
        assert shown.code == 0, shown
        assert {(row["PARTITION"], row["CURRENT-OFFSET"]) for row in shown.table()} == {("1", "17")}
