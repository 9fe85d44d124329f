"""Logs in HDFS: tables, a stream and a job read them there as they do on a disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from click.testing import CliRunner
from hdfs_native.fsspec import HdfsFileSystem
from pyspark.sql import SparkSession

from kcoord.cli.main import main
from kcoord.spark.tables.registry import TABLES
from tests.data.known import LOGS
from tests.harness import java
from tests.unit.spark.log_rig import LogRig, rows

pytestmark = pytest.mark.nightly

START_S = 180
WAIT_S = 120


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Addresses (host:port) of HDFS and of its web server."""
    jars = Path(pyspark.__file__).parent / "jars"
    classpath = os.pathsep.join(f"{place}/*" for place in (java.hdfs_libs(), jars))
    source = java.SOURCES / "hdfs" / "MiniHdfs.java"
    base = tmp_path_factory.mktemp("hdfs")
    command = [
        java.tool("java"),
        "-Xmx512m",
        *java.JVM_FLAGS,
        "-cp",
        classpath,
        str(source),
        str(base),
        str(LOGS),
    ]
    with open(base / "errors", "w") as errors:
        running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
    too_late = threading.Timer(START_S, running.kill)
    too_late.start()
    try:
        assert running.stdout is not None
        ready_line = next((line for line in running.stdout if line.startswith("READY ")), "")
        too_late.cancel()
        assert ready_line, (base / "errors").read_text()[-3000:]
        _, port, address = ready_line.split()
        yield f"127.0.0.1:{port}", address.removeprefix("http://")
    finally:
        too_late.cancel()
        running.kill()
        running.wait()


@pytest.fixture(scope="module")
def hdfs(cluster: tuple[str, str], spark: SparkSession) -> HdfsFileSystem:
    """The session is first: a process that has used hdfs-native hangs where Spark forks it to start the JVM."""
    host, port = cluster[0].split(":")
    return HdfsFileSystem(host=host, port=int(port))


@pytest.fixture(scope="module")
def broker(cluster: tuple[str, str], spark: SparkSession) -> str:
    """The URI of a broker's data directory."""
    return f"hdfs://{cluster[0]}/broker"


@pytest.mark.parametrize("table", TABLES)
def test_tables_are_those_of_the_disk(broker: str, table: str) -> None:
    here = rows(LOGS, table)
    assert rows(broker, table) == here
    assert here or table == "_corrupt"


def test_through_the_web(cluster: tuple[str, str], broker: str) -> None:
    assert rows(f"webhdfs://{cluster[1]}/broker", subscribe="payments") == rows(LOGS, subscribe="payments")


def test_what_is_not_there(cluster: tuple[str, str]) -> None:
    with pytest.raises(FileNotFoundError):
        rows(f"hdfs://{cluster[0]}/nothing")
    with pytest.raises(ConnectionRefusedError):
        rows("hdfs://127.0.0.1:1/broker")


def test_in_spark(spark: SparkSession, broker: str) -> None:
    there, here = (spark.read.format("kcoord").option("table", "messages").load(path) for path in (broker, str(LOGS)))
    assert there.exceptAll(here).count() == here.exceptAll(there).count() == 0
    assert there.count() == len(rows(LOGS))


def test_a_job_as_a_command(spark: SparkSession, broker: str) -> None:
    """In a process of its own, which looks at the directory before and after it starts Spark."""
    words = ["pipeline", "snapshot", "--as-of", "end", "--master", "local[2]", "--output", "json"]
    words += ["--limit", "1000"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kcoord.cli.main", *words, broker], capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr[-3000:]
    here = CliRunner().invoke(main, [*words, str(LOGS)], catch_exceptions=False)
    assert here.exit_code == 0, here.output
    assert tables(done.stdout) == tables(here.stdout)


def tables(document: str) -> dict[str, list[str]]:
    """Of a job: each table's rows, as JSON."""
    found = json.loads(document)["tables"]
    return {name: sorted(map(json.dumps, one["rows"])) for name, one in found.items()}


def test_a_stream_in_spark(spark: SparkSession, cluster: tuple[str, str], hdfs: HdfsFileSystem, tmp_path: Path) -> None:
    """What is new is in a segment that was not there."""
    log = LogRig(tmp_path / "data")
    seen = []
    for _ in range(2):
        log.append(*[(b"%d" % number, None) for number in range(log.next_offset, log.next_offset + 10)])
        hdfs.put(str(log.file(".log")), f"/stream/t-0/{log.file('.log').name}")
        log.roll()
        query = (
            spark.readStream.format("kcoord").options(table="messages", startingOffsets="earliest")
            .load(f"hdfs://{cluster[0]}/stream").writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )  # fmt: skip
        assert query.awaitTermination(WAIT_S)
        seen.append(sum(int(progress["numInputRows"]) for progress in query.recentProgress))
    assert seen == [10, 10]
    found = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(int(row["key"]) for row in found) == list(range(20))
