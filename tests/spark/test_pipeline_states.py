"""`kcoord pipeline verify|snapshot|compact|migrate`, as typed, on logs of kcoord and of a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from kcoord.cli.main import main
from kcoord.cli.pipeline import run as running
from tests.data.known import LOGS
from tests.unit.cli.rig import START_MS, LogRig


def run(job: str, *words: str) -> Result:
    # The session is shared: what is set here stays.
    few = ("--conf", "spark.sql.shuffle.partitions=2")
    return CliRunner().invoke(main, ["pipeline", job, *words, *few], catch_exceptions=False)


def answer(job: str, *words: str) -> Any:
    done = run(job, *words, "--output", "json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of them, `east` and `west`, with the same history."""
    root = tmp_path_factory.mktemp("clusters")
    for name in ("east", "west"):
        rig = LogRig(root / name)
        rig.history()
        rig.stop()
    return root


def test_verify(spark: SparkSession, clusters: Path) -> None:
    found = answer("verify", str(LOGS), "--offsets-partitions", "3")
    assert (found["violations"], found["tables"]["violations"]["rows"]) == (0, [])
    wrong = run("verify", str(clusters), "--offsets-partitions", "2", "--group", "workers")
    assert wrong.exit_code == 1
    assert "placement" in wrong.stdout and wrong.stdout.endswith(" violations\n")


@pytest.mark.parametrize("arguments", [(), ("--group", "workers"), ("--offsets-partitions", "2")])
def test_long_logs_have_the_same_violations(
    spark: SparkSession, clusters: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """Spark sorts their records by keys; the others are read in the order of the log."""
    short = run("verify", str(clusters), *arguments)
    monkeypatch.setattr(running, "is_short", lambda *_: False)
    long = run("verify", str(clusters), *arguments)
    assert (long.exit_code, long.stdout) == (short.exit_code, short.stdout)


def test_a_damaged_log_is_verified_as_far_as_it_can_be_read(spark: SparkSession, tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    rig.history()
    rig.stop()
    file = tmp_path / "__consumer_offsets-0" / f"{0:020}.log"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    assert run("verify", str(tmp_path)).exit_code == 7
    done = run("verify", str(tmp_path), "--option", "onCorrupt=collect", "--output", "json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert (found["violations"], found["corrupt"]) == (0, 1)
    assert found["tables"]["corrupt"]["rows"][0]["file"] == str(file)


def test_snapshot(spark: SparkSession, clusters: Path, tmp_path: Path) -> None:
    words = (
        str(clusters),
        "--as-of",
        f"@{START_MS + 4500}",
        "--to",
        str(tmp_path / "out"),
        "--limit",
        "9",
    )
    tables = answer("snapshot", *words)["tables"]
    offsets = [
        (row["log"], row["group_id"], row["partition"], row["committed_offset"]) for row in tables["offsets"]["rows"]
    ]
    of_each = [("report", 0, 10), ("workers", 0, 9), ("workers", 1, 7)]
    assert offsets == [(log, *row) for log in ("east", "west") for row in of_each]
    assert [row["group_id"] for row in tables["members"]["rows"]] == ["workers", "workers"]
    assert spark.read.parquet(str(tmp_path / "out" / "groups")).count() == 2


def test_compact(spark: SparkSession, clusters: Path, tmp_path: Path) -> None:
    refused = run("compact", str(clusters), "--to", str(tmp_path / "new"))
    assert refused.exit_code == 2 and "has 2 data directories (east, west)" in refused.stderr
    assert run("compact", str(clusters)).exit_code == 2
    found = answer("compact", str(clusters / "east"), "--to", str(tmp_path / "new"))
    assert (found["records"], found["open"]) == (3, 0)
    words = ("--one-cluster", "--group", "workers", "--to", str(tmp_path / "both"))
    found = answer("compact", str(clusters), *words)
    assert (found["records"], found["open"]) == (3, 0)


def test_migrate(spark: SparkSession, clusters: Path, tmp_path: Path) -> None:
    conflict = run("migrate", str(clusters), "--to", str(tmp_path / "new"))
    assert conflict.exit_code == 2 and "2 groups would be workers" in conflict.stderr
    assert not (tmp_path / "new").exists()
    rules = tmp_path / "rules.toml"
    rules.write_text("[[group]]\nmatch = 'workers'\ncluster = 'west'\nrename = 'west.workers'\n")
    lines = tmp_path / "offsets.csv"
    found = answer("migrate", str(clusters), "--rules", str(rules), "--csv", str(lines))
    assert found["offsets"] == 4
    assert lines.read_text().splitlines() == [
        "west.workers,orders,0,2", "west.workers,orders,1,7", "workers,orders,0,2", "workers,orders,1,7",
    ]  # fmt: skip
    plan = found["tables"]["plan"]["rows"]
    assert [(row["action"], row["cluster"], row["new_group"]) for row in plan] == [
        ("renamed", "west", "west.workers"), ("kept", "east", "workers"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("verify", "--since", "1h"), "this job does not support --since"),
        (("migrate", "--csv", "-", "--to", "x"), "give --to or --csv, not both"),
        (("migrate", "--rules", "none.toml"), "none.toml"),
    ],
)
def test_what_is_refused_before_spark_starts(words: tuple[str, ...], message: str, clusters: Path) -> None:
    done = CliRunner().invoke(main, ["pipeline", words[0], str(clusters), *words[1:]])
    assert done.exit_code == 2
    assert message in done.stderr
