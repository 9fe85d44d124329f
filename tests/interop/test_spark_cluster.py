"""The data source on a standalone cluster of Spark with two workers, whose environment has nothing of kcoord's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kcoord
from tests.harness.spark_cluster import SparkCluster, pack_environment
from tests.unit.spark.log_rig import LogRig, commit

ROOT = Path(kcoord.__file__).parent.parent
TIMEOUT_S = 600
pytestmark = pytest.mark.nightly

PARTITIONS = 4
SETTINGS = {
    "spark.driver.memory": "600m", "spark.executor.memory": "512m", "spark.executor.cores": "1",
    "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "2",
}  # fmt: skip
# Prints the offsets, and the files of the kcoord that executors use.
READ = """
import json, sys
from kcoord.spark.session import session

spark = session("read", sys.argv[1], **json.loads(sys.argv[2]))
rows = spark.read.format("kcoord").load(sys.argv[3]).select("committed_offset").collect()

def where(batches):
    import kcoord, os, pyarrow
    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"file": [kcoord.__file__]})

files = spark.range(4, numPartitions=4).mapInArrow(where, "file string").collect()
print(json.dumps([sorted(row[0] for row in rows), sorted({row[0] for row in files})]))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark") / "cluster", workers=2) as running:
        yield running


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs")
    for partition in range(PARTITIONS):
        LogRig(path, "__consumer_offsets", partition).append(commit("g", "t", partition, partition))
    return path


def python(*words: str | Path, folder: Path, interpreter: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    if interpreter:
        environment["PYSPARK_PYTHON"] = interpreter
    command = [sys.executable, "-P", *map(str, words)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)


def test_the_same_interpreter_on_all_machines(cluster: SparkCluster, data: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, "spark.executorEnv.PYTHONPATH": str(ROOT)}
    words = [f"--conf={name}={value}" for name, value in settings.items()]
    done = python(
        "-m", "kcoord.cli.main", "pipeline", "offsets-history", data, "--master", cluster.url, *words,
        "--output", "json", folder=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    rows = json.loads(done.stdout)["tables"]["offsets_history"]["rows"]
    assert sorted(row["committed_offset"] for row in rows) == list(range(PARTITIONS))


def test_an_archive_with_the_environment(cluster: SparkCluster, data: Path, tmp_path: Path) -> None:
    pack_environment(tmp_path / "environment.tar.gz")
    settings = {**SETTINGS, "spark.archives": f"{tmp_path / 'environment.tar.gz'}#environment"}
    # In client mode the driver plans with this interpreter, too.
    (tmp_path / "environment").symlink_to(sys.prefix)
    done = python(
        "-c", READ, cluster.url, json.dumps(settings), data, folder=tmp_path, interpreter="./environment/bin/python"
    )
    assert done.returncode == 0, done.stderr
    offsets, files = json.loads(done.stdout)
    assert offsets == list(range(PARTITIONS))
    packed = "/environment/lib/python{}.{}/site-packages/kcoord/__init__.py".format(*sys.version_info)
    # Each worker has its own copy.
    assert files and all(file.endswith(packed) for file in files), files


def test_workers_without_kcoord_are_named_in_one_line(cluster: SparkCluster, data: Path, tmp_path: Path) -> None:
    words = [f"--conf={name}={value}" for name, value in SETTINGS.items()]
    done = python(
        "-m", "kcoord.cli.main", "pipeline", "offsets-history", data, "--master", cluster.url, *words,
        folder=tmp_path, interpreter="/usr/bin/python3",
    )  # fmt: skip
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "Spark's workers lack kcoord" in done.stderr and "docs/spark-cluster.md" in done.stderr
