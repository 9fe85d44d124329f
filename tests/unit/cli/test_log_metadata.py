"""The tools know that a snapshot may stand for the beginning of the metadata log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcoord.engine.metadata_snapshot import UNLIMITED
from kcoord.log.metadata_checkpoint import CheckpointName, CheckpointWriter, read_checkpoint_file
from kcoord.log.serde import encode_metadata_record
from kcoord.log.storage import DiskStorage
from kcoord.protocol import apis
from kcoord.protocol.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kcoord.protocol.records.topic_record import TopicRecord
from tests.harness.engine import open_engine
from tests.harness.metadata import shorten, take_snapshot
from tests.unit.cli.rig import METADATA, LogRig, at, run, run_json


def make(path: Path, retention_bytes: int = 0) -> int:
    """A directory of a server that was stopped, whose metadata log begins at a snapshot; where that is."""
    rig = LogRig(path)
    rig.history()
    rig.create("gone", 1, 10)
    request = DeleteTopicsRequest(topics=[DeleteTopicState("gone")])
    assert rig.client.ask(apis.DELETE_TOPICS, 6, request, at(11)).responses[0].error_code == 0
    take_snapshot(rig.engine, at(20))
    shorten(rig.engine, at(20), UNLIMITED, retention_bytes)
    rig.create("later", 1, 30)
    assert rig.engine.metadata is not None
    start = rig.engine.metadata.end_offset
    rig.stop()
    return start


def checkpoints(path: Path) -> list[Path]:
    return sorted((path / METADATA).glob("*.checkpoint"))


def digest(path: Path) -> str:
    engine = open_engine(DiskStorage(str(path)), at(100))
    found = engine.core.digest()
    engine.stop()
    return found


def row(document: Any) -> Any:
    [found] = [part for part in document["partitions"] if part["log"] == METADATA]
    return found


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# --- ls, dump


def test_ls(tmp_path: Path) -> None:
    start = make(tmp_path)
    [path] = checkpoints(tmp_path)
    found = row(run_json("ls", tmp_path))
    assert found["start_offset"] == start and found["state"] == "clean"
    size = path.stat().st_size
    assert found["snapshots"] == [{"file": path.name, "end_offset": start, "size_bytes": size}]
    assert path.name in run("ls", tmp_path, "--segments").output


def test_dump_of_the_log_knows_topics_of_the_snapshot(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    rig.create("orders", 2, 0)
    take_snapshot(rig.engine, at(1))
    shorten(rig.engine, at(1))
    request = DeleteTopicsRequest(topics=[DeleteTopicState("orders")])
    assert rig.client.ask(apis.DELETE_TOPICS, 6, request, at(2)).responses[0].error_code == 0
    rig.stop()
    result = run("dump", tmp_path, METADATA, "-t", "orders", "-o", "json")
    assert result.exit_code == 0 and '"remove_topic_record"' in result.output
    assert result.output.count("\n") == 1


def test_dump_of_a_snapshot(tmp_path: Path) -> None:
    make(tmp_path)
    [path] = checkpoints(tmp_path)
    result = run("dump", path)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert "snapshot_header" in lines[1] and "snapshot_footer" in result.output.rpartition("producer_ids")[2]
    assert any("topic_record" in line and "orders" in line for line in lines)
    assert not any("gone" in line for line in lines)
    assert run("dump", path, "--type", "partition_record", "-t", "orders").output.endswith("2 records\n")
    flip(path)
    assert run("dump", path).exit_code == 7


# --- verify


@pytest.mark.parametrize("retention_bytes", [0, 1 << 20])
def test_verify_finds_nothing_wrong(tmp_path: Path, retention_bytes: int) -> None:
    make(tmp_path, retention_bytes)
    document = run_json("verify", tmp_path, "--strict")
    assert document["problems"] == [] and document["replayed"]["topics"] == 3
    assert run_json("verify", tmp_path, "__consumer_offsets")["problems"] == []


def problems(path: Path) -> list[tuple[str, str]]:
    result = run("verify", path, "-o", "json")
    return [(found["check"], found["message"]) for found in json.loads(result.stdout)["problems"]]


@pytest.mark.parametrize("retention_bytes", [0, 1 << 20])
def test_verify_of_a_damaged_snapshot(tmp_path: Path, retention_bytes: int) -> None:
    make(tmp_path, retention_bytes)
    flip(checkpoints(tmp_path)[0])
    found = problems(tmp_path)
    assert found[0][0] == "metadata snapshot" and "it cannot be read" in found[0][1]
    assert ("no snapshot has the earlier records" in str(found)) == (retention_bytes == 0)


def test_verify_of_a_snapshot_that_contradicts_the_log(tmp_path: Path) -> None:
    make(tmp_path, 1 << 20)
    storage = DiskStorage(str(tmp_path))
    name = CheckpointName(int(checkpoints(tmp_path)[0].name[:20]), 0)
    found = read_checkpoint_file(storage, METADATA, name)
    writer = CheckpointWriter(storage, METADATA, name, found.last_timestamp, 0)
    writer.append(encode_metadata_record(TopicRecord("another", b"a" * 16)))
    for value in found.values[:-1]:
        writer.append(value)
    writer.finish()
    texts = [text for check, text in problems(tmp_path) if check == "metadata snapshot"]
    assert any("it has a record that is not in the log: topic another" in text for text in texts)
    assert any("it lacks a record of the log: config" in text for text in texts)


def test_verify_of_a_snapshot_that_is_ahead(tmp_path: Path) -> None:
    make(tmp_path, 1 << 20)
    [path] = checkpoints(tmp_path)
    path.rename(path.with_name(f"{999:020d}-{0:010d}.checkpoint"))
    assert any("the log ends at" in text for check, text in problems(tmp_path) if check == "metadata snapshot")


# --- state, export, snapshot and restore


def test_state_of_a_time_before_the_log_begins(tmp_path: Path) -> None:
    make(tmp_path)
    now = run_json("state", tmp_path)
    assert {topic["topic"] for topic in now["topics"]} >= {"orders", "later"}
    before = run("state", tmp_path, "--as-of", f"@{at(5).wall_ms}")
    assert before.exit_code == 1 and "the topics of that time are unknown" in before.stderr
    left = run("state", tmp_path, "--as-of", f"@{at(5).wall_ms}", "--inexact", "-o", "json")
    assert left.exit_code == 0
    after = run_json("state", tmp_path, "--as-of", f"@{at(25).wall_ms}")
    names = {topic["topic"] for topic in after["topics"]}
    assert "orders" in names and "later" not in names and "gone" not in names


def test_state_of_a_time_that_the_log_still_holds(tmp_path: Path) -> None:
    make(tmp_path, 1 << 20)
    then = run_json("state", tmp_path, "--as-of", f"@{at(10).wall_ms}")
    assert "gone" in {topic["topic"] for topic in then["topics"]}


def test_a_snapshot_is_restored_with_the_metadata_snapshot(tmp_path: Path) -> None:
    make(tmp_path)
    before = digest(tmp_path)
    assert run("snapshot", "one", "--data", tmp_path).exit_code == 0
    [kept] = (tmp_path / "snapshots" / "one" / METADATA).glob("*.checkpoint")
    assert kept.read_bytes() == checkpoints(tmp_path)[0].read_bytes()
    rig = LogRig(tmp_path)
    rig.create("undone", 1, 200)
    rig.stop()
    result = run("restore", "one", "--data", tmp_path)
    assert result.exit_code == 0, result.output
    assert run_json("verify", tmp_path)["problems"] == []
    engine = open_engine(DiskStorage(str(tmp_path)), at(300))
    topics = engine.core.topics
    assert sorted(topics.topics) == ["__consumer_offsets", "later", "orders"]
    assert topics.topics["orders"].leader_epochs == [1, 1]
    assert engine.core.digest() != before
    engine.stop()


def test_export_and_import_read_the_snapshot(tmp_path: Path) -> None:
    make(tmp_path / "data")
    assert run("export", tmp_path / "broker", "--data", tmp_path / "data").exit_code == 0
    assert run("import", tmp_path / "broker", "--data", tmp_path / "new", "--topics").exit_code in (0, 2)
    flip(checkpoints(tmp_path / "data")[0])
    refused = run("export", tmp_path / "other", "--data", tmp_path / "data")
    assert refused.exit_code == 7 and ".checkpoint is damaged" in refused.stderr


# --- compact


@pytest.mark.parametrize("roll", [True, False])
def test_compact_shortens_the_log(tmp_path: Path, roll: bool) -> None:
    rig = LogRig(tmp_path)
    rig.history()
    end = rig.engine.core.topics.end_offset
    rig.stop()
    before = digest(tmp_path)
    found = run_json("compact", tmp_path, "--history", "0", *(["--roll"] if roll else []))["metadata"]
    assert (found["start_offset"], found["end_offset"], found["reason"]) == (end, end, None)
    [path] = checkpoints(tmp_path)
    assert found["snapshot"] == path.name == f"{end:020d}-{0:010d}.checkpoint"
    assert (found["bytes_after"] == 0) == roll
    assert [p.name for p in (tmp_path / METADATA).glob("*.log")] == [f"{end if roll else 0:020d}.log"]
    assert run_json("verify", tmp_path)["problems"] == []
    assert digest(tmp_path) == before
    # Nothing came since.
    assert run_json("compact", tmp_path, "--history", "0")["metadata"]["snapshot"] is None


def test_compact_leaves_history_alone(tmp_path: Path) -> None:
    make(tmp_path, 1 << 20)
    assert "begins at offset 0" in run("compact", tmp_path, "--history", "1000000d").output
    assert len(checkpoints(tmp_path)) == 2
    assert run_json("compact", tmp_path, "-t", "__consumer_offsets")["metadata"] is None


def test_a_server_completes_a_compaction_that_crashed(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    rig.history()
    rig.kill()
    for _ in range(2):
        found = run_json("compact", tmp_path, "--history", "0")["metadata"]
        assert found["snapshot"] is None and "not stopped cleanly" in found["reason"]
    assert not checkpoints(tmp_path)
    digest(tmp_path)
    assert run_json("compact", tmp_path, "--history", "0")["metadata"]["snapshot"]


# --- repair


def repairs(path: Path, *arguments: str) -> list[tuple[str, int]]:
    result = run("repair", path, "-o", "json", *arguments)
    return [(found["action"], found["offset"]) for found in json.loads(result.stdout)["repairs"]]


def test_nothing_to_repair(tmp_path: Path) -> None:
    make(tmp_path)
    assert repairs(tmp_path) == []


def test_repair_puts_a_damaged_snapshot_aside(tmp_path: Path) -> None:
    start = make(tmp_path, 1 << 20)
    before = digest(tmp_path)
    [path] = checkpoints(tmp_path)
    flip(path)
    assert repairs(tmp_path, "--execute") == [("put aside", start)]
    assert not checkpoints(tmp_path) and path.with_name(path.name + ".cut-0").exists()
    assert repairs(tmp_path) == [] and digest(tmp_path) == before


def test_no_repair_of_a_snapshot_without_a_replacement(tmp_path: Path) -> None:
    start = make(tmp_path)
    flip(checkpoints(tmp_path)[0])
    assert repairs(tmp_path, "--execute") == [("put back", start)]
    assert len(checkpoints(tmp_path)) == 1
    assert run("repair", tmp_path).exit_code == 1


@pytest.mark.parametrize("kind", ["flip", "short"])
@pytest.mark.parametrize("roll", [True, False])
def test_damage_below_a_snapshot_costs_nothing(tmp_path: Path, roll: bool, kind: str) -> None:
    rig = LogRig(tmp_path)
    rig.history()
    end = rig.engine.core.topics.end_offset
    take_snapshot(rig.engine, at(20), roll)
    if roll:
        rig.create("later", 1, 30)
    rig.stop()
    before = digest(tmp_path)
    log = tmp_path / METADATA / f"{0:020d}.log"
    if kind == "flip":
        flip(log)
    else:
        log.write_bytes(log.read_bytes()[:-5])
    assert ("begin at snapshot", end) in repairs(tmp_path, "--execute")
    assert repairs(tmp_path) == []
    assert run_json("verify", tmp_path)["problems"] == []
    assert digest(tmp_path) == before
    assert list((tmp_path / METADATA).glob("*.log.cut-0"))


def test_damage_above_a_snapshot_is_cut(tmp_path: Path) -> None:
    start = make(tmp_path)
    log = tmp_path / METADATA / f"{start:020d}.log"
    flip(log)
    assert repairs(tmp_path, "--execute") == [("cut", start)]
    engine = open_engine(DiskStorage(str(tmp_path)), at(100))
    assert sorted(name for name in engine.core.topics.topics if name[0] != "_") == ["orders"]
    engine.stop()
