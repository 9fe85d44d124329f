"""Bad input through Spark: a query fails and says where, or what is left out is in `_corrupt`."""

from __future__ import annotations

import gzip
import random
import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kcoord.wire.record_batch import encode_batch
from tests.unit.spark.log_rig import LogRig, commit


def test_bad_input_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Noise, a bomb, a record of no known version, a foreign file, a link in a circle, and good commits around them."""
    # The link leads to what is above, where nothing else may be.
    data = tmp_path / "data"
    log = LogRig(data, "__consumer_offsets")
    log.append(commit("g", "t", 0, 0))
    log.write(random.Random(1).randbytes(5000))
    log.append(commit("g", "t", 0, 1))
    bomb = gzip.compress(bytes(1 << 26))
    log.write(encode_batch(2, 0, 1, 0, 0, 0, -1, -1, -1, 1, bomb))
    log.next_offset = 3
    log.append((commit("g", "t", 0, 3)[0], b"\x00\x63later"))
    log.append(commit("g", "t", 0, 4))
    (log.path / f"{99:020d}.log").write_bytes(b"\xff\xd8\xff\xe0JFIF" + bytes(range(256)))
    (data / "up").symlink_to("..")
    reader = spark.read.format("kcoord").option("decompressedBytesMax", 1 << 20)
    with pytest.raises(PySparkException, match=r"at byte \d+, offset \d+: .*onCorrupt=collect"):
        reader.load(str(data)).count()
    kept = reader.option("onCorrupt", "collect").load(str(data))
    assert sorted(row["committed_offset"] for row in kept.collect()) == [0, 1, 4]
    corrupt = reader.option("table", "_corrupt").load(str(data)).orderBy("log_offset", "position").collect()
    assert [row["log_offset"] for row in corrupt] == [1, 2, 3, 99]
    assert [Path(row["file"]).name for row in corrupt] == [f"{0:020d}.log"] * 3 + [f"{99:020d}.log"]
    assert "1048576" in corrupt[1]["reason"] and "version 99" in corrupt[2]["reason"]


def test_a_stream_reports_it_as_well(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    log = LogRig(data)
    log.append((b"k", b"v"))
    log.write(b"not a batch" * 9)
    log.append((b"k", b"v"))

    def read(**options: str) -> int:
        shutil.rmtree(tmp_path / "checkpoint", ignore_errors=True)
        query = (
            spark.readStream.format("kcoord").options(table="messages", startingOffsets="earliest", **options)
            .load(str(data)).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(120)
        return sum(int(progress["numInputRows"]) for progress in query.recentProgress)

    with pytest.raises(PySparkException, match="at byte 70, offset 1: "):
        read()
    assert read(onCorrupt="collect") == 2
