"""A data directory that an older kcoord wrote, before record format 2: tools, servers and exports read it as meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcoord.engine.engine import Engine
from kcoord.log.directory import open_directory
from kcoord.log.inspect import inspect_directory
from kcoord.log.journal import Journal
from kcoord.log.snapshot import begin_snapshot, restore_snapshot
from kcoord.log.storage import DiskStorage
from kcoord.protocol import apis
from kcoord.protocol.consumer_group_describe import ConsumerGroupDescribeRequest
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kcoord.protocol.records.consumer_group_member_metadata import ClassicMemberMetadata
from tests.harness.engine import Client, open_engine, run_jobs
from tests.harness.format_1 import (
    CHECKPOINT_END,
    CLASSIC,
    CLASSIC_SESSION_MS,
    END,
    GROUP,
    REGEX,
    STATIC,
    classic_by_kafka,
    unpack,
)
from tests.harness.steps import Unwatched
from tests.unit.cli.rig import OFFSETS, at, run, run_json

ENDS_LINE = f"kcoord.format.1.ends=0:{END}\n"
# Of the group's members; which of them speak the classic protocol.
IS_CLASSIC = {STATIC: False, REGEX: False, CLASSIC: True}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return unpack(tmp_path / "data")


def properties(data: Path) -> str:
    return (data / "meta.properties").read_text()


def open_at(data: Path, seconds: float = 5) -> Engine:
    return open_engine(DiskStorage(str(data)), at(seconds))


def in_state(data: Path, *more: str) -> dict[str, bool]:
    """Members by `kcoord log state`: which of them speak the classic protocol."""
    [group] = run_json("state", data, *more)["other_groups"]
    return {one["member_id"]: one["classic_member_metadata"] is not None for one in group["members"]}


def in_dump(data: Path) -> dict[str, Any]:
    """The classic metadata of members by `kcoord log dump`."""
    lines = [json.loads(line) for line in run("dump", data, OFFSETS, "-o", "json").stdout.splitlines()]
    members = [line for line in lines if line["type"] == "consumer_group_member_metadata" and line.get("value")]
    return {line["key"]["member_id"]: line["value"]["classic_member_metadata"] for line in members}


def described(engine: Engine, seconds: float = 6) -> dict[str, bool]:
    """Members as the server describes them."""
    body = ConsumerGroupDescribeRequest([GROUP])
    answer = Client(engine).ask(apis.CONSUMER_GROUP_DESCRIBE, 1, body, at(seconds))
    return {member.member_id: member.member_type == 0 for member in answer.groups[0].members}


def join(engine: Engine, member: str, seconds: float) -> None:
    body = ConsumerGroupHeartbeatRequest(
        GROUP, member, 0, rebalance_timeout_ms=30_000, subscribed_topic_names=["orders"], topic_partitions=[]
    )
    assert Client(engine).ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, body, at(seconds)).error_code == 0
    run_jobs(engine, at(seconds))


def test_the_archive_is_what_a_broker_misreads(data: Path) -> None:
    assert "kcoord.format=1\n" in properties(data)
    assert classic_by_kafka(data) | {CLASSIC: None} == {
        STATIC: ClassicMemberMetadata(), REGEX: ClassicMemberMetadata(), CLASSIC: None,
    }  # fmt: skip


def test_tools_read_it_before_any_server_did(data: Path) -> None:
    before = properties(data)
    assert in_state(data) == IS_CLASSIC
    assert in_state(data, "--as-of", str(CHECKPOINT_END)) == {STATIC: False, REGEX: False}
    shown = in_dump(data)
    assert shown.pop(CLASSIC)["session_timeout_ms"] == CLASSIC_SESSION_MS
    assert shown == {STATIC: None, REGEX: None}
    assert in_dump(data / OFFSETS)[STATIC] is None
    verified = run("verify", data)
    assert (verified.exit_code, "no problems found" in verified.stdout) == (0, True), verified.output
    assert properties(data) == before


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_a_server_continues_with_it(data: Path, with_checkpoint: bool) -> None:
    if not with_checkpoint:
        (data / OFFSETS / "state-checkpoint").unlink()
    engine = open_at(data)
    assert properties(data).endswith(f"kcoord.format=2\n{ENDS_LINE}")
    assert described(engine) == IS_CLASSIC
    join(engine, "late", 7)
    everybody = IS_CLASSIC | {"late": False}
    assert described(engine, 8) == everybody
    engine.stop()
    # New records are Kafka's, old ones stay as they are.
    assert classic_by_kafka(data)["late"] is None
    assert classic_by_kafka(data)[STATIC] == ClassicMemberMetadata()
    assert in_state(data) == everybody
    assert run("verify", data).exit_code == 0
    again = open_at(data, 9)
    assert described(again, 9) == everybody
    again.stop()
    assert properties(data).endswith(ENDS_LINE)


def test_a_killed_server_and_a_crash_before_the_format_was_noted(data: Path) -> None:
    before = properties(data)
    engine = open_at(data)
    engine.journal.close(clean=False)
    # As if meta.properties had not been written.
    (data / "meta.properties").write_text(before)
    engine = open_at(data)
    assert described(engine) == IS_CLASSIC
    engine.stop()
    assert properties(data).endswith(ENDS_LINE)


def test_a_log_that_became_shorter_gets_new_records_at_old_offsets(data: Path) -> None:
    open_at(data).stop()
    for name in ("state-checkpoint", f"{END:020d}.snapshot"):
        (data / OFFSETS / name).unlink(missing_ok=True)
    (data / ".kafka_cleanshutdown").unlink()
    (data / "recovery-point-offset-checkpoint").unlink()
    segment = data / OFFSETS / f"{0:020d}.log"
    segment.write_bytes(segment.read_bytes()[:-7])
    directory = open_directory(DiskStorage(str(data)), 1, "x", "y")
    log = directory.get("__consumer_offsets", 0)
    assert log is not None and 0 < log.end_offset < END and log.format_1_end == log.end_offset
    Journal(directory, "os").close(clean=True)
    assert properties(data).endswith(f"kcoord.format.1.ends=0:{log.end_offset}\n")


def test_damaged_properties_are_reported(data: Path) -> None:
    open_at(data).stop()
    text = properties(data).replace(ENDS_LINE, "kcoord.format.1.ends=0-16\n")
    (data / "meta.properties").write_text(text)
    shown = run("dump", data)
    assert shown.exit_code != 0 and "its format cannot be read" in shown.output


@pytest.mark.parametrize("was_opened", [True, False])
def test_an_export_is_what_a_broker_reads_right(data: Path, tmp_path: Path, was_opened: bool) -> None:
    if was_opened:
        engine = open_at(data)
        join(engine, "late", 7)
        engine.stop()
    target = tmp_path / "broker"
    done = run("export", target, "--data", data, "-o", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["written"]["records put into Kafka's format"] == 2
    found = classic_by_kafka(target)
    classic = found.pop(CLASSIC)
    assert classic is not None and classic.session_timeout_ms == CLASSIC_SESSION_MS
    assert found == {STATIC: None, REGEX: None} | ({"late": None} if was_opened else {})
    # All else is as it was: every record has its offset, and indexes that no longer fit are left out.
    assert offsets(target) == offsets(data)
    names = {path.name for path in (target / OFFSETS).iterdir()}
    assert f"{0:020d}.log" in names and not any(name.endswith("index") for name in names)
    assert {path.name for path in (target / "orders-0").iterdir()} >= {f"{0:020d}.index", f"{0:020d}.timeindex"}


def offsets(root: Path) -> list[tuple[int, bytes | None]]:
    directory = inspect_directory(str(root / OFFSETS))
    found = []
    for item in directory.batches(directory.partitions[0]):
        found += [(record.offset, record.key) for record in item.records(1 << 20)]  # type: ignore[union-attr]
    return found


def test_snapshots_keep_it(data: Path) -> None:
    directory = open_directory(DiskStorage(str(data)), 1, "x", "y")
    begin_snapshot(directory, str(data), "before", 1).finish(Unwatched())
    Journal(directory, "os").close(clean=True)
    kept = data / "snapshots" / "before"
    assert properties(kept).endswith(ENDS_LINE) and in_state(kept) == IS_CLASSIC
    engine = open_at(data)
    join(engine, "late", 7)
    engine.stop()
    restore_snapshot(str(data), "before", 2, Unwatched())
    assert properties(data).endswith(ENDS_LINE) and in_state(data) == IS_CLASSIC
    engine = open_at(data)
    assert described(engine) == IS_CLASSIC
    engine.stop()


def test_a_snapshot_that_the_older_kcoord_made(data: Path) -> None:
    """It has the older format's mark, also when it lies in a directory that was opened since."""
    older = unpack(data / "snapshots" / "older")
    description = {"name": "older", "created_ms": 1, "cluster_id": "c", "node_id": 1, "ends": {}}
    (older / "snapshot.json").write_text(json.dumps(description))
    engine = open_at(data)
    join(engine, "late", 7)
    engine.stop()
    assert in_state(older) == IS_CLASSIC
    restore_snapshot(str(data), "older", 2, Unwatched())
    assert properties(data).endswith(ENDS_LINE) and in_state(data) == IS_CLASSIC
