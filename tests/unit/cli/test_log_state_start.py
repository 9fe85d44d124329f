"""State checkpoints in `kcoord log state` and `diff`: used where they lie before the point, to the same state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from kcoord.cli.log.past import replay
from kcoord.cli.log.past.replay import PastState, coordinator_logs, replay_until
from kcoord.cli.log.past.state_start import Start, start_for
from kcoord.cli.log.points import Point, parse_point
from kcoord.engine.state_checkpoint import write_state
from kcoord.log.inspect import inspect_directory
from kcoord.log.storage import DiskStorage
from kcoord.spark.planned import read_history_here
from tests.unit.cli.rig import OFFSETS, START_MS, LogRig, batches_of, run, run_json, split_segment
from tests.unit.engine.test_txn_offset_commit import Rig as TransactionRig

SEGMENT = f"{0:020d}.log"
CHECKPOINT = "state-checkpoint"
# What the history's last offsets are.
END = 14


def write_checkpoint(rig: LogRig) -> int:
    """Of what is there now; its end."""
    state = rig.engine.states.logs[OFFSETS]
    state.records_min = 1
    plan = state.plan(False)
    assert plan is not None
    rig.engine.states.written(plan, write_state(state.log.storage, plan))
    return plan.end_offset


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """With a checkpoint at offset 10, behind everything that the usual history has."""
    rig = LogRig(tmp_path)
    rig.history()
    assert write_checkpoint(rig) == 10
    rig.commit("late", 8, orders_0=1)
    rig.commit("late", 9, orders_0=3)
    rig.commit("other", 10, orders_1=8)
    rig.commit("late", 11, orders_0=4)
    rig.stop()
    return tmp_path


def past(path: Path, point: Point) -> PastState:
    directory = inspect_directory(str(path))
    return replay_until(directory, coordinator_logs(directory, "", -1), point, False, lambda _: None)


def start(path: Path, point: str) -> Start:
    directory = inspect_directory(str(path))
    [files] = coordinator_logs(directory, "", -1)
    return start_for(directory, files, parse_point(point))


def damage_the_beginning(path: Path) -> None:
    segment = path / OFFSETS / SEGMENT
    data = bytearray(segment.read_bytes())
    data[data.index(b"range")] ^= 1
    segment.write_bytes(data)


def used(path: Path, point: str) -> bool:
    return start(path, point).found is not None


def test_the_same_state_at_every_point(data: Path) -> None:
    points = [*range(END + 1), *(f"@{START_MS + seconds * 1000}" for seconds in range(13)), "end"]
    with_checkpoint = {point: past(data, parse_point(str(point))) for point in points}
    assert [point for point in points if used(data, str(point))] == [
        *range(10, END + 1), *(f"@{START_MS + seconds * 1000}" for seconds in range(7, 13)), "end",
    ]  # fmt: skip
    (data / OFFSETS / CHECKPOINT).unlink()
    for point, other in with_checkpoint.items():
        alone = past(data, parse_point(str(point)))
        assert other.core.digest() == alone.core.digest(), point
        assert [end.plain() for end in other.ends] == [end.plain() for end in alone.ends], point


def test_what_lies_before_it_is_not_read(data: Path) -> None:
    before = run_json("state", data, "--as-of", "12")
    damage_the_beginning(data)
    # The last segment is looked through for where the log ends; a closed one is not.
    segment = data / OFFSETS / SEGMENT
    kept = segment.read_bytes()
    batches = batches_of(segment)
    tail = b"".join(batch for batch in batches if int.from_bytes(batch[:8], "big") >= 10)
    segment.write_bytes(kept[: len(kept) - len(tail)])
    (data / OFFSETS / f"{10:020d}.log").write_bytes(tail)
    assert run_json("state", data, "--as-of", "12") == before
    assert run_json("diff", data, "10", "12")["groups"][0]["group"] == "late"
    result = run("state", data, "--as-of", "9")
    assert result.exit_code == 7 and "wrong checksum" in result.stderr


def test_why_it_is_not_used(data: Path) -> None:
    assert start(data, "9").reason == "its state checkpoint is at offset 10, after that point"
    early = start(data, f"@{START_MS + 6999}")
    assert early.reason == (
        "its state checkpoint is at offset 10, with records up to 2025-10-09T08:53:27.000Z, after that point"
    )
    marks = data / "recovery-point-offset-checkpoint"
    directory = inspect_directory(str(data))
    directory.in_use = True
    directory.marks[("__consumer_offsets", 0)] = 9
    [files] = coordinator_logs(directory, "", -1)
    assert start_for(directory, files, parse_point("end")).reason.endswith("beyond the durable mark")
    file = data / OFFSETS / CHECKPOINT
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert start(data, "end").reason == "its state checkpoint cannot be used: wrong checksum"
    file.unlink()
    assert start(data, "end").reason == "there is no state checkpoint"
    file.write_bytes(whole)
    assert used(data, "end")
    # A log that was cut has other records there now.
    segment = data / OFFSETS / SEGMENT
    segment.write_bytes(b"".join(batches_of(segment)[:3]))
    marks.unlink()
    assert start(data, "end").reason == "its state checkpoint is at offset 10, and the log ends before it"


def test_the_time_of_closed_segments_is_that_of_their_index(data: Path) -> None:
    split_segment(data / OFFSETS, 6)
    index = data / OFFSETS / f"{0:020d}.timeindex"
    assert used(data, f"@{START_MS + 7000}")
    index.write_bytes((START_MS + 8000).to_bytes(8, "big") + (5).to_bytes(4, "big"))
    assert not used(data, f"@{START_MS + 7000}") and used(data, f"@{START_MS + 8000}")
    assert used(data, "10")


def test_it_reports_what_compaction_removed_from_the_log(data: Path) -> None:
    at_ten = run_json("state", data, "--as-of", "10")
    split_segment(data / OFFSETS, 13, without=(5, 6, 11))
    (data / "cleaner-offset-checkpoint").write_text("0\n1\n__consumer_offsets 0 13\n")
    assert run_json("state", data, "--as-of", "10")["groups"] == at_ten["groups"]
    assert run("state", data, "--as-of", "7").exit_code == 1
    # Behind the checkpoint a record is missing, so not everything that was is known.
    assert run("state", data, "--as-of", "12").exit_code == 1
    assert run("state", data, "--as-of", "13").exit_code == 0


def test_long_work_reports_its_reason(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "are read" not in run("state", data, "--as-of", "9").stderr
    monkeypatch.setattr(replay, "LONG_BYTES", 1)
    text = " ".join(run("state", data, "--as-of", "9").stderr.split())
    assert f"{OFFSETS}: reading all of its " in text
    assert "because its state checkpoint is at offset 10, after that point" in text
    assert "are read" not in run("state", data).stderr


def test_nothing_is_written(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files may be on a medium that can only be read."""
    opened: list[tuple[str, int]] = []
    real = __import__("os").open

    def note(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        opened.append((str(path), flags))
        return int(real(path, flags, *rest, **named))

    monkeypatch.setattr("os.open", note)
    assert run("state", data).exit_code == 0
    inside = [flags for path, flags in opened if path.startswith(str(data))]
    assert inside and all(flags & 3 == 0 for flags in inside)


def compact(path: Path) -> None:
    assert run("compact", path, "--roll", "--history", "0").exit_code == 0


def commits(path: Path, *times: int) -> LogRig:
    """Of group `a`, each at its time, with the time as the offset."""
    rig = LogRig(path)
    rig.create("orders", 2, 0)
    for when in times:
        rig.commit("a", when, orders_0=when)
    return rig


def at_time(path: Path, when: int) -> Result:
    return run("state", path, "--as-of", f"@{START_MS + when * 1000}", "-o", "json")


def offsets_at(path: Path, when: int) -> dict[str, int]:
    result = at_time(path, when)
    assert result.exit_code == 0, result.output
    return {group["group"]: group["offsets"][0]["offset"] for group in json.loads(result.stdout)["groups"]}


def test_a_record_that_compaction_removed_from_the_log_still_counts(tmp_path: Path) -> None:
    rig = commits(tmp_path, 1)
    rig.commit("b", 2, orders_0=2)
    rig.commit("a", 9, orders_0=9)
    assert write_checkpoint(rig) == 3
    rig.commit("a", 20, orders_0=20)
    rig.commit("b", 21, orders_0=21)
    rig.stop()
    assert offsets_at(tmp_path, 5) == {"a": 1, "b": 2}
    compact(tmp_path)
    # The log has no record below the checkpoint's end any more. The checkpoint has one of 9 s.
    result = at_time(tmp_path, 5)
    assert result.exit_code == 1 and "was compacted below offset 5" in " ".join(result.stderr.split())
    assert "with records up to 2025-10-09T08:53:29.000Z" in start(tmp_path, f"@{START_MS + 5000}").reason
    result = run("diff", tmp_path, f"@{START_MS + 5000}", "end")
    assert result.exit_code == 1 and "was compacted" in result.stderr
    # From the checkpoint's last record on, the state is known.
    for when in (9, 19):
        assert offsets_at(tmp_path, when) == {"a": 9, "b": 2}
    assert run_json("state", tmp_path, "--as-of", "3")["groups"][0]["offsets"][0]["offset"] == 9
    assert offsets_at(tmp_path, 21) == {"a": 20, "b": 21}


def test_a_deletion_that_neither_the_log_nor_the_checkpoint_has(tmp_path: Path) -> None:
    rig = commits(tmp_path, 1)
    rig.commit("b", 2, orders_0=2)
    rig.delete_group("b", 9)
    end = write_checkpoint(rig)
    rig.commit("a", 20, orders_0=20)
    rig.commit("a", 21, orders_0=21)
    rig.stop()
    assert offsets_at(tmp_path, 5) == {"a": 1, "b": 2}
    # The checkpoint has no tombstones, and compaction removes them later.
    segment = tmp_path / OFFSETS / SEGMENT
    tombstones = tuple(int.from_bytes(batch[:8], "big") for batch in batches_of(segment)[2:-2])
    assert end == max(tombstones) + 2 > 3
    split_segment(tmp_path / OFFSETS, end + 1, without=(0, 1, *tombstones, end))
    (tmp_path / "cleaner-offset-checkpoint").write_text(f"0\n1\n__consumer_offsets 0 {end + 1}\n")
    assert at_time(tmp_path, 5).exit_code == 1
    reason = f"its state checkpoint is at offset {end}, and compaction removed the last record before it"
    assert start(tmp_path, f"@{START_MS + 5000}").reason == reason
    # A later record that is not after the point shows that the checkpoint is not either.
    assert used(tmp_path, f"@{START_MS + 21000}")
    assert offsets_at(tmp_path, 21) == {"a": 21}


def test_compaction_ahead_of_a_marker(tmp_path: Path) -> None:
    """It may remove what a transaction replaced, though the transaction was still open at the point."""
    rig = TransactionRig(DiskStorage(str(tmp_path)))
    rig.plain(5)
    rig.commit(7)
    rig.commit(8, partition=1, number=1)
    rig.plain(1, partition=2)
    rig.end(True)
    rig.engine.stop()

    def offset_of_partition_0(point: int) -> int:
        return int(run_json("state", tmp_path, "--as-of", str(point))["groups"][0]["offsets"][0]["offset"])

    assert [offset_of_partition_0(point) for point in (2, 3, 4, 5)] == [5, 5, 5, 7]
    compact(tmp_path)
    directory = inspect_directory(str(tmp_path))
    assert directory.cleaned[("__consumer_offsets", 0)] == 2
    for point in (2, 3, 4):
        result = run("state", tmp_path, "--as-of", str(point))
        assert result.exit_code == 1 and "was compacted below offset 2" in " ".join(result.stderr.split())
    assert offset_of_partition_0(5) == 7
    # And the jobs of the pipeline call that complete from where `state` shows it.
    history = read_history_here(str(tmp_path), {"table": "_history", "subscribe": "__consumer_offsets"})
    assert history is not None
    assert history.column("state_complete_from_offset").to_pylist() == [5]
    assert history.column("complete_from_offset").to_pylist()[0] < 5
