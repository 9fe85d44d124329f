"""What a job's session is started with, and the archive of classes that it may start with."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcoord.cli.pipeline import spark_session
from kcoord.spark import class_archive
from kcoord.spark.java import Java

JAVA = Java(Path("/launcher"), 17, "PATH", "17.0.15+6 in /java")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without options in the environment, and with an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("kcoord.spark.java.find_java", lambda: JAVA)
    # Other tests in this process may have one.
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    for name in spark_session.JVM_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def make_archive(java: Java = JAVA) -> Path:
    path = class_archive.archive_path(java, spark_session.short_options({}))
    assert path is not None
    path.write_bytes(b"classes")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[3]", 3), ("local[4,2]", 4), ("local[*]", os.cpu_count())]
)
def test_cores_of_a_master(master: str, cores: int) -> None:
    assert spark_session.cores_of(master) == cores


def settings(
    monkeypatch: pytest.MonkeyPatch,
    size_bytes: int,
    master: str = "local[2]",
    one_compiler_bytes: int = spark_session.SHORT_BYTES_MAX,
    **conf: str,
) -> dict[str, Any]:
    """What a session is asked for. `conf` has options of the JVM."""
    found: dict[str, Any] = {}
    given = {spark_session.JVM_OPTIONS: conf["jvm"]} if "jvm" in conf else {}
    monkeypatch.setattr("kcoord.spark.session.bare_session", lambda name, master, java, **asked: found.update(asked))
    spark_session.open_session("lag", master, given, size_bytes, one_compiler_bytes)
    return found


def test_a_short_log_is_read_without_the_second_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(monkeypatch, 1000)
    assert found == {
        "spark.sql.shuffle.partitions": 2,
        spark_session.JVM_OPTIONS: f"{spark_session.SHORT_JVM} -XX:+UseSerialGC",
    }


@pytest.mark.parametrize(("size_bytes", "is_kept"), [(1000, False), (1001, True)])
def test_a_job_may_need_the_second_compiler_sooner(
    monkeypatch: pytest.MonkeyPatch, size_bytes: int, is_kept: bool
) -> None:
    """The JVM takes the last one of two options."""
    found = settings(monkeypatch, size_bytes, one_compiler_bytes=1000)
    assert found[spark_session.JVM_OPTIONS].endswith(f" {spark_session.SECOND_COMPILER}") is is_kept
    assert found["spark.sql.shuffle.partitions"] == 2


@pytest.mark.parametrize("size_bytes", [spark_session.SHORT_BYTES_MAX + 1, spark_session.UNKNOWN_SIZE])
def test_a_long_log_is_read_with_sparks_own_settings(monkeypatch: pytest.MonkeyPatch, size_bytes: int) -> None:
    found = settings(monkeypatch, size_bytes)
    assert spark_session.JVM_OPTIONS not in found
    assert found["spark.sql.shuffle.partitions"] == 2 * spark_session.SHUFFLES_PER_CORE


def test_a_cluster_keeps_its_own_number_of_shuffle_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(monkeypatch, 1000, master="yarn")
    assert not {spark_session.JVM_OPTIONS, "spark.sql.shuffle.partitions"} & set(found)


def test_a_users_options_of_the_jvm_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(monkeypatch, 1000, jvm="-XX:TieredStopAtLevel=4")
    assert found[spark_session.JVM_OPTIONS] == f"{spark_session.SHORT_JVM} -XX:+UseSerialGC -XX:TieredStopAtLevel=4"


def test_a_chosen_collector_has_no_other_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(monkeypatch, 1000, jvm="-XX:+UseG1GC")
    assert found[spark_session.JVM_OPTIONS] == f"{spark_session.SHORT_JVM} -XX:+UseG1GC"


def test_a_short_log_is_read_with_the_archive_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_archive()
    options = settings(monkeypatch, 1000)[spark_session.JVM_OPTIONS]
    assert options.startswith(f"{spark_session.SHORT_JVM} -XX:+UseSerialGC ")
    assert f'"-XX:SharedArchiveFile={path}"' in options
    assert class_archive.archives() == [path]
    assert spark_session.JVM_OPTIONS not in settings(monkeypatch, spark_session.UNKNOWN_SIZE)


@pytest.mark.parametrize(
    "chosen", ["-XX:SharedArchiveFile=mine", "-Xshare:off", "-XX:ArchiveClassesAtExit=new", "-XX:AOTCache=mine"]
)
def test_a_users_own_archive_is_the_only_one(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    make_archive()
    options = settings(monkeypatch, 1000, jvm=chosen)[spark_session.JVM_OPTIONS]
    assert options == f"{spark_session.SHORT_JVM} -XX:+UseSerialGC {chosen}"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", chosen)
    assert "spark-classes" not in settings(monkeypatch, 1000)[spark_session.JVM_OPTIONS]


@pytest.mark.parametrize("java", [replace(JAVA, runtime=one) for one in ("17.0.16+8 in /java", "17.0.15+6 in /other")])
def test_the_archive_of_another_java_is_not_used(monkeypatch: pytest.MonkeyPatch, java: Java) -> None:
    make_archive(java)
    assert "SharedArchiveFile" not in settings(monkeypatch, 1000)[spark_session.JVM_OPTIONS]


def test_with_another_collector_there_is_no_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    make_archive()
    assert "SharedArchiveFile" not in settings(monkeypatch, 1000, jvm="-XX:+UseG1GC")[spark_session.JVM_OPTIONS]


def test_what_others_may_write_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = make_archive()
    path.chmod(0o622)
    assert "SharedArchiveFile" not in settings(monkeypatch, 1000)[spark_session.JVM_OPTIONS]
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(b"classes")
    assert "SharedArchiveFile" not in settings(monkeypatch, 1000)[spark_session.JVM_OPTIONS]
    path.unlink()
    make_archive()
    path.parent.chmod(0o777)
    assert "SharedArchiveFile" not in settings(monkeypatch, 1000)[spark_session.JVM_OPTIONS]
    assert os.path.exists(path)


def test_the_end_of_a_session_does_not_wait_for_the_thread_of_its_counters() -> None:
    is_waiting, may_end, done = threading.Event(), threading.Event(), []

    class Counters:
        def shutdown(self) -> None:
            is_waiting.set()
            may_end.wait(30)
            done.append("counters")

    class Context:
        _accumulatorServer: Counters | None = Counters()

    class Session:
        sparkContext = Context()

        def stop(self) -> None:
            assert self.sparkContext._accumulatorServer is None
            done.append("session")

    spark_session.end_session(Session())  # type: ignore[arg-type]
    assert done == ["session"]
    assert is_waiting.wait(30)
    may_end.set()
