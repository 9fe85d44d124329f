"""`kcoord log compact`: of every key the newest record stays, and nothing else is different afterwards."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from kcoord.cli.log.compact import command as compact_command
from kcoord.log.cleaner import CleanConfig, CleanResult, clean
from kcoord.log.storage import DiskStorage
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kcoord.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kcoord.wire.record_batch import decode_records
from tests.harness.engine import Client, finish_turn, open_engine
from tests.harness.metadata import shorten, take_snapshot
from tests.harness.record_batches import parse_batches
from tests.unit.cli.rig import OFFSETS, LogRig, at, run, run_json

COMMITS = 40


def roll(rig: LogRig, topic: str, when: float) -> None:
    log = rig.engine.directory.get(topic, 0)
    assert log is not None
    rig.engine.journal.roll(log)
    finish_turn(rig.engine, at(when))


def closed_segments(path: Path, stop: bool = True) -> Path:
    """Two closed segments of COMMITS commits each by two groups, and one commit more in the last one."""
    rig = LogRig(path)
    rig.create("orders", 1, 0)
    for segment in range(2):
        for number in range(COMMITS):
            rig.commit(f"group-{number % 2}", 1 + segment, orders_0=segment * COMMITS + number)
        roll(rig, "__consumer_offsets", 3)
    rig.commit("group-0", 4, orders_0=1000)
    if stop:
        rig.stop()
    else:
        rig.kill()
    return path


def row_of(found: Any, log: str) -> Any:
    return next(row for row in found["logs"] if row["log"] == log)


def keys_left(path: Path) -> list[tuple[int, bytes | None]]:
    """(offset, value or None) of every record in a log's directory."""
    found = []
    for segment in sorted(path.glob("*.log")):
        data = segment.read_bytes()
        for header in parse_batches(data):
            found += [(r.offset, r.value) for r in decode_records(data, header.pos, header, 1 << 20)]
    return found


def state(path: Path) -> Any:
    return run_json("state", path)["groups"]


def committed(path: Path) -> list[int]:
    engine = open_engine(DiskStorage(str(path)), at(5))
    client = Client(engine)
    found = []
    for group in ("group-0", "group-1"):
        request = OffsetFetchRequest(group, [OffsetFetchRequestTopic("orders", [0])])
        answer = client.ask(apis.OFFSET_FETCH, 5, request, at(5))
        found.append(answer.topics[0].partitions[0].committed_offset)
    engine.stop()
    return found


def test_the_newest_record_of_every_key_stays(tmp_path: Path) -> None:
    before = state(closed_segments(tmp_path))
    found = run_json("compact", tmp_path, "--history", "0")
    row = row_of(found, OFFSETS)
    # Both groups' last commits, of 80; one segment holds what two did.
    assert (row["records_before"], row["records_after"]) == (2 * COMMITS, 2)
    assert (row["segments_before"], row["segments_after"]) == (2, 1)
    assert row["compacted_up_to"] == 2 * COMMITS and row["damage"] is None
    segments = sorted((tmp_path / OFFSETS).glob("*.log"))
    assert [segment.name for segment in segments] == [f"{0:020d}.log", f"{2 * COMMITS:020d}.log"]
    assert row["bytes_after"] == segments[0].stat().st_size < row["bytes_before"]
    assert row["open_bytes"] == segments[1].stat().st_size and row["recent_bytes"] == 0
    assert [offset for offset, _ in keys_left(tmp_path / OFFSETS)] == [78, 79, 80]
    assert state(tmp_path) == before
    assert run("verify", tmp_path, "--strict").exit_code == 0
    assert "__consumer_offsets 0 80" in (tmp_path / "cleaner-offset-checkpoint").read_text()
    assert run_json("ls", tmp_path)["state"] == "clean"
    assert committed(tmp_path) == [1000, 79]


def test_the_last_segment_too(tmp_path: Path) -> None:
    before = state(closed_segments(tmp_path))
    row = row_of(run_json("compact", tmp_path, "--roll", "--history", "0"), OFFSETS)
    assert (row["records_before"], row["records_after"]) == (2 * COMMITS + 1, 2)
    assert row["open_bytes"] == 0
    assert [offset for offset, _ in keys_left(tmp_path / OFFSETS)] == [79, 80]
    assert state(tmp_path) == before
    assert run("verify", tmp_path, "--strict").exit_code == 0
    assert committed(tmp_path) == [1000, 79]


def test_again_there_is_nothing_to_do(tmp_path: Path) -> None:
    closed_segments(tmp_path)
    run_json("compact", tmp_path, "--history", "0")
    files = {path: path.read_bytes() for path in (tmp_path / OFFSETS).iterdir()}
    row = row_of(run_json("compact", tmp_path, "--history", "0"), OFFSETS)
    assert (row["records_before"], row["records_after"]) == (2, 2)
    assert row["bytes_before"] == row["bytes_after"]
    assert {path: path.read_bytes() for path in (tmp_path / OFFSETS).iterdir()} == files


def test_junk_for_the_checkpoint_of_the_cleaner_is_no_obstacle(tmp_path: Path) -> None:
    closed_segments(tmp_path)
    (tmp_path / "cleaner-offset-checkpoint").write_bytes(b"\xff\x00junk")
    row = row_of(run_json("compact", tmp_path, "--history", "0"), OFFSETS)
    assert row["records_after"] == 2
    assert "__consumer_offsets 0 80" in (tmp_path / "cleaner-offset-checkpoint").read_text()


def test_history_is_left_alone(tmp_path: Path) -> None:
    closed_segments(tmp_path)
    result = run("compact", tmp_path, "--history", "36500d")
    assert result.exit_code == 0
    line = next(line for line in result.stdout.splitlines() if line.startswith(OFFSETS))
    assert line.split()[:3] == [OFFSETS, "0", "0"]
    assert "too recent to be compacted" in result.stderr and "in active segments" in result.stderr
    assert len(keys_left(tmp_path / OFFSETS)) == 2 * COMMITS + 1
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_settings_are_those_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a file, the environment and the command line, as `serve` takes them."""
    closed_segments(tmp_path / "data")
    century_ms = 36500 * 86_400_000
    file = tmp_path / "kcoord.toml"
    file.write_text(f'"log.history" = {century_ms}\n')

    def compacted(*arguments: str) -> int:
        row = row_of(run_json("compact", tmp_path / "data", *arguments), OFFSETS)
        return int(row["compacted_up_to"])

    assert compacted("--config", str(file)) == 0
    assert compacted("--set", f"log.history={century_ms}") == 0
    monkeypatch.setenv("KCOORD_LOG_HISTORY", str(century_ms))
    assert compacted() == 0
    # What is typed wins.
    segment = tmp_path / "data" / OFFSETS / f"{0:020d}.log"
    size = segment.stat().st_size
    assert compacted("--set", f"log.history.bytes={2 * size}") == COMMITS
    assert compacted("--history", "0") == 2 * COMMITS


def test_settings_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed_segments(tmp_path)
    result = run("compact", tmp_path, "-s", "log.histroy=1")
    assert result.exit_code == 2 and "did you mean log.history?" in result.stderr
    assert run("compact", tmp_path, "-c", tmp_path / "none.toml").exit_code == 2
    result = run("compact", tmp_path, "-s", "log.cleanup.policy=compact", "--history", "36500d")
    assert result.exit_code == 0 and "log.cleanup.policy (--set) has no effect in kcoord" in result.stderr
    monkeypatch.setenv("KCOORD_LOG_HISTORY", "soon")
    assert run("compact", tmp_path).exit_code == 2
    assert len(keys_left(tmp_path / OFFSETS)) == 2 * COMMITS + 1


def test_topics_by_their_own_policy(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    config = [CreatableTopicConfig("cleanup.policy", "compact")]
    body = CreateTopicsRequest([CreatableTopic("prices", 1, 1, configs=config)])
    assert rig.client.ask(apis.CREATE_TOPICS, 5, body, at(0)).topics[0].error_code == 0
    rig.create("orders", 1, 0)
    for number in range(5):
        rig.produce("prices", b"price %d" % number, 1 + number)
        rig.produce("orders", b"order %d" % number, 1 + number)
    roll(rig, "prices", 7)
    roll(rig, "orders", 7)
    rig.stop()
    found = run_json("compact", tmp_path, "--topic", "prices")
    assert [row["log"] for row in found["logs"]] == ["prices-0"]
    assert keys_left(tmp_path / "prices-0") == [(4, b"price 4")]
    assert len(keys_left(tmp_path / "orders-0")) == 5
    result = run("compact", tmp_path, "-t", "orders")
    assert result.exit_code == 2 and "orders is not compacted" in result.stderr
    result = run("compact", tmp_path, "-t", "nothing")
    assert result.exit_code == 2 and "topic nothing does not exist" in result.stderr
    # Nothing was done, so the directory is as clean as before.
    assert run_json("ls", tmp_path)["state"] == "clean"


def test_after_a_kill(tmp_path: Path) -> None:
    closed_segments(tmp_path, stop=False)
    row = row_of(run_json("compact", tmp_path, "--history", "0"), OFFSETS)
    assert row["records_after"] == 2
    assert committed(tmp_path) == [1000, 79]


def test_more_keys_than_fit_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed_segments(tmp_path)
    rounds: list[int] = []
    exchange = compact_command.exchange

    def with_little_memory(storage: Any, name: str, bases: Any, dirty: int, config: CleanConfig, now: int) -> Any:
        config.keys_max = 1
        return clean(storage, name, bases, dirty, config, now)

    def count(log: Any, result: CleanResult) -> None:
        rounds.append(result.end)
        exchange(log, result)

    monkeypatch.setattr(compact_command, "clean", with_little_memory)
    monkeypatch.setattr(compact_command, "exchange", count)
    run_json("compact", tmp_path, "--history", "0")
    assert rounds[0] < 2 * COMMITS and rounds[-1] == 2 * COMMITS
    assert [offset for offset, _ in keys_left(tmp_path / OFFSETS)] == [78, 79, 80]


def test_damage_is_reported_and_other_logs_continue(tmp_path: Path) -> None:
    closed_segments(tmp_path)
    segment = tmp_path / OFFSETS / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    result = run("compact", tmp_path, "--history", "0")
    assert result.exit_code == 7
    assert "__cluster_metadata-0: begins at" in result.stdout
    text = " ".join(result.stdout.split())
    assert f"{OFFSETS}/{segment.name} is damaged at byte 0 (offset 0): wrong checksum" in text
    assert segment.read_bytes() == data
    assert not list((tmp_path / OFFSETS).glob("*.cleaned"))


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed_segments(tmp_path)
    monkeypatch.setattr(DiskStorage, "free_bytes", lambda self: 10)
    result = run("compact", tmp_path, "--history", "0")
    assert result.exit_code == 8 and "but only 10 B are free" in result.stderr
    assert len(keys_left(tmp_path / OFFSETS)) == 2 * COMMITS + 1


def test_a_failure_half_way_is_settled_at_the_next_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed_segments(tmp_path)
    real = DiskStorage.rename

    def rename(self: DiskStorage, old: str, new: str) -> None:
        if old.endswith(".log.swap"):
            raise OSError(errno.EIO, "input/output error")
        real(self, old, new)

    monkeypatch.setattr(DiskStorage, "rename", rename)
    assert run("compact", tmp_path, "--history", "0").exit_code == 9
    monkeypatch.undo()
    assert committed(tmp_path) == [1000, 79]
    assert [offset for offset, _ in keys_left(tmp_path / OFFSETS)] == [78, 79, 80]


def test_directories_that_are_refused(tmp_path: Path) -> None:
    rig = LogRig(tmp_path / "running")
    result = run("compact", tmp_path / "running")
    assert result.exit_code == 6 and "in use by another process" in result.stderr
    rig.stop()
    assert run("compact", tmp_path / "nothing").exit_code == 4
    assert not (tmp_path / "nothing").exists()
    broker = tmp_path / "broker"
    broker.mkdir()
    (broker / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=abc\n")
    assert run("compact", broker).exit_code == 5
    assert [path.name for path in broker.iterdir()] == ["meta.properties"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run("compact", empty).exit_code == 5 and not list(empty.iterdir())
    result = run("compact", tmp_path / "running", "--history", "long")
    assert result.exit_code == 2 and "'long' is not an age" in result.stderr


def test_topics_that_only_a_snapshot_of_the_metadata_log_has(tmp_path: Path) -> None:
    closed_segments(tmp_path)
    rig = LogRig(tmp_path)
    take_snapshot(rig.engine, at(6))
    shorten(rig.engine, at(7))
    rig.stop()
    assert min((tmp_path / "__cluster_metadata-0").glob("*.log")).name != f"{0:020d}.log"
    row = row_of(run_json("compact", tmp_path, "--history", "0"), OFFSETS)
    assert row["records_after"] == 2
    assert committed(tmp_path) == [1000, 79]
