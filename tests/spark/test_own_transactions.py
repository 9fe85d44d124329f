"""Tables of logs that our own engine wrote with transactional producers, next to what the engine serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from kcoord.cli.pipeline import short_run
from kcoord.core.transactions.state import state_name
from kcoord.wire.record_batch import decode_records, parse_header
from tests.crash.transaction_workload import TransactionWorkload
from tests.explore.transaction_checks import fetch_committed
from tests.explore.transaction_client import PARTITIONS, TOPIC
from tests.harness.faulty_storage import FaultyStorage
from tests.harness.log import batches_of
from tests.spark.test_short import no_spark
from tests.spark.test_short import run as run_job
from tests.unit.cli.rig import run, run_json

SEEDS = (4, 8)
STEPS = 110

Values = set[tuple[int, int, bytes]]


class Written(NamedTuple):
    """A data directory, and what its engine showed at the end. Values are (partition, offset, value)."""

    path: Path
    committed: Values
    everything: Values
    offsets: dict[tuple[str, int], int]
    pending: int
    states: dict[str, str]


def write_log(seed: int, path: Path) -> Written:
    """Stop in the middle, so that transactions are open."""
    storage = FaultyStorage()
    workload = TransactionWorkload(storage, seed)
    for number in range(STEPS):
        if workload.remotes:
            workload._step(number)
    workload._drain()
    engine = workload.engine
    committed: Values = set()
    everything: Values = set()
    for partition in range(PARTITIONS):
        values, _ = fetch_committed(engine, partition, 0, workload.now())
        committed |= {(partition, offset, value) for offset, value in values}
        log = engine.directory.get(TOPIC, partition)
        assert log is not None
        for position, data in batches_of(log, 0, log.end_offset):
            header = parse_header(data, position)
            if not header.is_control:
                records = decode_records(data, position, header, 1 << 20)
                everything |= {(partition, record.offset, record.value or b"") for record in records}
    transactions = engine.core.transactions.by_id
    written = Written(
        path,
        committed,
        everything,
        workload.shown()[1],
        sum(len(offsets) for offsets in engine.core.offsets.pending.by_producer.values()),
        {name: state_name(txn.status) for name, txn in transactions.items()},
    )
    engine.stop()
    for name, content in storage.image().items():
        if content is not None:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
    return written


def load(spark: SparkSession, written: Written, table: str, **options: str) -> DataFrame:
    return spark.read.format("kcoord").options(table=table, **options).load(str(written.path))


def values_of(frame: DataFrame) -> Values:
    rows = frame.where(F.col("topic") == TOPIC).select("partition", "offset", "value").collect()
    return {(row.partition, row.offset, bytes(row.value)) for row in rows}


def newest(frame: DataFrame, *keys: str) -> list[Any]:
    """The last row of each key."""
    window = Window.partitionBy(*keys).orderBy(F.col("log_offset").desc())
    return frame.withColumn("rank", F.row_number().over(window)).where("rank = 1").collect()


@pytest.mark.parametrize("seed", SEEDS)
def test_tables_show_what_the_engine_serves(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    written = write_log(seed, tmp_path / "data")
    assert written.committed < written.everything, "nothing is open or aborted"
    assert values_of(load(spark, written, "messages")) == written.committed
    all_of_them = load(spark, written, "messages", isolationLevel="read_uncommitted")
    assert values_of(all_of_them) == written.everything
    commits = newest(load(spark, written, "offset_commits"), "group_id", "topic", "partition")
    assert {(row.group_id, row.partition): row.committed_offset for row in commits} == written.offsets
    states = newest(load(spark, written, "transactions"), "transactional_id")
    assert {row.transactional_id: row.status for row in states} == written.states
    assert load(spark, written, "_corrupt").count() == 0
    commits_rows = load(spark, written, "records").where(F.col("log_topic") == "__consumer_offsets")
    assert {row.log_offset for row in commits_rows.collect()} >= {row.log_offset for row in commits}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_log_tools_agree(tmp_path: Path, seed: int) -> None:
    written = write_log(seed, tmp_path / "data")
    verified = run("verify", written.path)
    assert (verified.exit_code, verified.stdout.splitlines()[-1]) == (0, "no problems found")
    state = run_json("state", written.path)
    found = {
        (group["group"], offset["partition"]): offset["offset"]
        for group in state["groups"]
        for offset in group["offsets"]
    }
    assert found == written.offsets
    for name, status in written.states.items():
        history = run_json("timeline", written.path, "--transactional-id", name)["transactions"]
        is_open = status in ("Ongoing", "PrepareCommit", "PrepareAbort")
        assert (history[-1]["event"] == "open") == is_open


def test_the_logs_have_all_kinds_of_transactions(tmp_path: Path) -> None:
    logs = [write_log(seed, tmp_path / str(seed)) for seed in SEEDS]
    assert any("Ongoing" in written.states.values() for written in logs)
    assert any("CompleteCommit" in written.states.values() for written in logs)
    assert any(written.pending for written in logs)
    assert all(written.offsets for written in logs)


@pytest.mark.parametrize("seed", SEEDS)
def test_offsets_at_a_time_are_those_of_the_state(
    spark: SparkSession, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write_log(seed, tmp_path / "data")
    records = load(spark, written, "records", isolationLevel="read_uncommitted")
    times = records.where("log_topic = '__consumer_offsets'").selectExpr("unix_millis(log_timestamp) as at").distinct()
    points = sorted(row["at"] for row in times.collect())
    for is_short in (False, True):
        if is_short:
            monkeypatch.setattr(short_run, "_has_session", lambda: False)
            monkeypatch.setattr("kcoord.cli.pipeline.run.Run.__enter__", no_spark)
        for at_ms in points[-1:] if not is_short else points[:: max(len(points) // 12, 1)]:
            state = run_json("state", written.path, "--as-of", f"@{at_ms}")
            expected = {
                (group["group"], offset["partition"]): offset["offset"]
                for group in state["groups"]
                for offset in group["offsets"]
            }
            words = [str(written.path), "--at", f"@{at_ms}", "-n", "9999"]
            rows = run_job("offsets-history", *words)["tables"]["offsets_history"]["rows"]
            assert {(row["group_id"], row["partition"]): row["committed_offset"] for row in rows} == expected, at_ms
