"""`kcoord log timeline`: the same story from the topic and from the log, in a table that fits, and its errors."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from kcoord.core.config import CoreConfig
from kcoord.log.reader import StoredBatch, read_batches
from kcoord.log.storage import DiskStorage
from tests.data.known import LOGS as BROKER_LOGS
from tests.harness.engine import Client, open_engine
from tests.unit.cli.rig import OFFSETS, LogRig, at, run, run_json

FIELDS = ("epoch", "cause", "duration_ms", "members_before", "members_after", "partitions_before", "partitions_after")


def rig_with_events(path: Path) -> LogRig:
    rig = LogRig(path)
    rig.engine.stop()
    rig.engine = open_engine(DiskStorage(str(path)), at(0), random.Random(5), config=CoreConfig())
    rig.client = Client(rig.engine)
    return rig


def story(rig: LogRig) -> None:
    """`workers` gets a member twice, and another group only commits."""
    rig.history()
    rig.join(8)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    rig = rig_with_events(tmp_path)
    story(rig)
    rig.stop()
    return tmp_path


def rows(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in FIELDS) for row in document["epochs"]]


EXPECTED = [
    (1, "member_joined", 0, 0, 1, 0, 2),
    (2, "member_left", 0, 1, 0, 2, 0),
    (3, "member_joined", 0, 0, 1, 0, 2),
]


def test_the_topic_and_the_log_have_the_same_events(stopped: Path) -> None:
    by_topic = run_json("timeline", stopped, "--group", "workers")
    by_log = run_json("timeline", stopped, "--group", "workers", "--source", "log")
    assert by_topic["source"] == "__group_events-0"
    assert by_log["source"] == "__consumer_offsets-0"
    assert rows(by_topic) == rows(by_log) == EXPECTED
    assert by_topic["epochs"] == by_log["epochs"]


def test_a_log_without_the_topic(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    story(rig)
    rig.stop()
    document = run_json("timeline", tmp_path, "-g", "workers")
    assert document["source"] == "__consumer_offsets-0"
    assert rows(document) == EXPECTED


def test_the_table_fits(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = run("timeline", stopped, "--group", "workers")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "workers: 3 epochs, from __group_events-0"
    assert lines[1].split() == ["EPOCH", "TIME", "TOOK", "MEMBERS", "PARTITIONS"]
    assert lines[2].split() == ["1", "2025-10-09T08:53:22.000Z", "0.000", "s", "0", "->", "1", "0", "->", "2"]
    assert lines[3].startswith("    (classic) member_joined test-")
    assert all(len(line) <= 80 for line in lines), result.stdout


def test_since_until_and_limit(stopped: Path) -> None:
    assert [row[0] for row in rows(run_json("timeline", stopped, "-g", "workers", "-n", "1"))] == [3]
    since = run_json("timeline", stopped, "-g", "workers", "--since", "2025-10-09T08:53:26")
    assert [row[0] for row in rows(since)] == [2, 3]
    until = run_json("timeline", stopped, "-g", "workers", "--until", "2025-10-09T08:53:26")
    assert [row[0] for row in rows(until)] == [1, 2]


def test_history_that_compaction_removed_is_reported(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    story(rig)
    log = rig.engine.directory.get("__consumer_offsets", 0)
    assert log is not None
    rig.engine.journal.roll(log)
    rig.leave(9)
    rig.stop()
    before = run("timeline", tmp_path, "-g", "workers")
    assert "4 epochs" in before.stdout and "complete" not in before.stderr
    whole = run_json("timeline", tmp_path, "-g", "workers")
    assert (whole["history_complete_from"], whole["history_complete_from_offset"]) == (None, 0)
    run("compact", tmp_path, "--history", "0")
    after = run("timeline", tmp_path, "-g", "workers")
    assert "2 epochs" in after.stdout
    assert "__consumer_offsets-0 is complete only from offset" in after.stderr
    assert "compaction removed records" in after.stderr
    document = run_json("timeline", tmp_path, "-g", "workers")
    # What is left of the closed segment ends with the tombstones of the group `report` and the third epoch.
    assert document["history_complete_from"] == "2025-10-09T08:53:27.000Z"
    assert 0 < document["history_complete_from_offset"] < document["epochs"][0]["offset"]
    assert rows(document) == [(3, "member_joined", 0, None, 1, None, 2), (4, "member_left", 0, 1, 0, 2, 0)]


def test_events_that_retention_removed_are_reported(stopped: Path) -> None:
    assert "complete" not in run("timeline", stopped, "-g", "workers").stderr
    (stopped / "log-start-offset-checkpoint").write_text("0\n1\n__group_events 0 2\n")
    result = run("timeline", stopped, "-g", "workers")
    assert "2 epochs, from __group_events-0" in result.stdout
    assert "__group_events-0 is complete only from offset 2" in result.stderr
    assert "retention removed records" in result.stderr


def test_a_broker_s_classic_rebalance_has_no_duration() -> None:
    result = run("timeline", BROKER_LOGS, "-g", "classic")
    took = [line.split()[2] for line in result.stdout.splitlines()[2:] if not line.startswith("    ")]
    assert len(took) >= 3 and {*took} == {"?"}, result.stdout
    document = run_json("timeline", BROKER_LOGS, "-g", "classic")
    assert {row["duration_ms"] for row in document["epochs"]} == {None}
    assert all(row["finished_ms"] == row["time_ms"] for row in document["epochs"])


def test_groups_that_never_rebalanced(stopped: Path) -> None:
    for group in ("report", "nobody"):
        result = run("timeline", stopped, "--group", group)
        assert result.exit_code == 2
        assert f"has no rebalance of group {group}" in result.stderr


def test_a_running_server_is_read_up_to_its_mark(tmp_path: Path) -> None:
    rig = rig_with_events(tmp_path)
    story(rig)
    rig.marks()
    result = run("timeline", tmp_path, "--group", "workers")
    assert result.exit_code == 0
    assert "a server is running" in result.stderr
    assert "workers: 3 epochs" in result.stdout
    rig.stop()


def test_dump_shows_the_cause(stopped: Path) -> None:
    result = run("dump", stopped, "--group", "workers", "--type", "group_metadata")
    text = " ".join(result.stdout.split())
    assert "cause member_joined test-" in text
    assert "cause member_left test-" in text
    lines = run("dump", stopped, "-g", "workers", "--type", "group_metadata", "-o", "json").stdout
    assert '"cause":{"kind":"member_left","member":"test-' in lines


def causes(path: Path) -> dict[bytes, bytes]:
    """The causes in the log, by the value of their record."""
    found: dict[bytes, bytes] = {}
    for item in read_batches(str(path / OFFSETS)):
        assert isinstance(item, StoredBatch)
        for record in item.records(1 << 20):
            for name, value in record.headers:
                assert name == "kcoord.cause" and value is not None
                found[record.value or b""] = value
    return found


def test_compaction_export_and_import_keep_causes(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    rig = LogRig(ours)
    story(rig)
    rig.stop()
    before = causes(ours)
    assert len(before) == 3
    assert run("export", tmp_path / "theirs", "--data", ours).exit_code == 0
    assert run("import", tmp_path / "theirs", "--data", tmp_path / "back").exit_code == 0
    last = before.popitem()
    for path in (tmp_path / "theirs", tmp_path / "back"):
        assert last in causes(path).items()
    # Of a log that is compacted the last record of each group is left.
    again = LogRig(ours)
    log = again.engine.directory.get("__consumer_offsets", 0)
    assert log is not None
    again.engine.journal.roll(log)
    again.commit("later", 20, orders_0=1)
    again.stop()
    assert run("compact", ours, "--history", "0").exit_code == 0
    assert causes(ours) == dict([last])


def test_the_topic_is_sound(stopped: Path) -> None:
    result = run("verify", stopped, "--strict")
    assert result.exit_code == 0, result.output
    assert run("state", stopped, "--group", "workers").exit_code == 0
