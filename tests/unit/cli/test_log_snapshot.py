"""`kcoord log snapshot` and `kcoord log restore`: of stopped and of running servers."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kcoord.cli.main import main
from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.log.errors import LogDamaged, StorageError
from kcoord.log.log_config import LogConfig
from kcoord.log.snapshot import begin_snapshot, restore_snapshot
from kcoord.log.storage import DiskStorage
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.server.control_client import ControlError, ask_server
from tests.e2e.process import ServerProcess
from tests.harness.engine import Client, finish_turn, open_engine
from tests.harness.steps import Unwatched
from tests.unit.log.batches import make_batch

NOW = Now(1000, 1_700_000_000_000)


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["log", *arguments])
    assert done.exit_code == code, done.output
    return done.output


def commit_request(offset: int) -> OffsetCommitRequest:
    partitions = [OffsetCommitRequestPartition(0, offset, -1, "")]
    topics = [OffsetCommitRequestTopic("t", bytes(16), partitions)]
    return OffsetCommitRequest("g", -1, "", None, -1, topics)


def produce_request(value: int) -> ProduceRequest:
    batch = make_batch(0, epoch=-1, size=value)
    return ProduceRequest(None, -1, 1000, [TopicProduceData("t", partition_data=[PartitionProduceData(0, batch)])])


def start(data: Path) -> Engine:
    return open_engine(DiskStorage(str(data)), NOW)


def ask(engine: Engine, api_key: int, version: int, body: Any) -> None:
    Client(engine).ask(api_key, version, body, NOW)


def committed(engine: Engine) -> int:
    stored = engine.core.offsets.get("g", "t", 0)
    return stored.committed_offset if stored is not None else -1


def end(engine: Engine, topic: str = "t") -> int:
    log = engine.directory.get(topic, 0)
    assert log is not None
    return log.end_offset


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def engine(data: Path) -> Iterator[Engine]:
    engine = start(data)
    ask(engine, apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic("t", 1, 1)]))
    log = engine.directory.get("t", 0)
    assert log is not None
    log.config = LogConfig(segment_bytes=300)
    for n in range(8):
        ask(engine, apis.PRODUCE, 9, produce_request(100))
        ask(engine, apis.OFFSET_COMMIT, 8, commit_request(n))
    yield engine
    engine.journal.close(clean=False)


def test_there_and_back(engine: Engine, data: Path) -> None:
    engine.stop()
    made = json.loads(run("snapshot", "before", "--data", str(data), "--output", "json"))
    assert made["ends"]["t-0"] == 8
    names = sorted(p.name for p in (data / "t-0").glob("*.log"))
    assert len(names) > 2
    for name in names:
        original, copy = data / "t-0" / name, data / "snapshots" / "before" / "t-0" / name
        assert original.read_bytes() == copy.read_bytes()
        assert (original.stat().st_ino == copy.stat().st_ino) == (name != names[-1])
    assert run("snapshot", "--list", "--data", str(data)).splitlines()[1].startswith("before  20")

    engine = start(data)
    assert (committed(engine), end(engine)) == (7, 8)
    next_id = engine.core.topics.next_producer_id
    ask(engine, apis.OFFSET_COMMIT, 8, commit_request(99))
    ask(engine, apis.PRODUCE, 9, produce_request(5))
    engine.stop()
    for restored in (1, 2):
        aside = json.loads(run("restore", "before", "--data", str(data), "--output", "json"))["replaced"]
        engine = start(data)
        assert (committed(engine), end(engine)) == (7, 8)
        assert engine.core.topics.topics["t"].leader_epoch(0) == restored
        assert engine.core.topics.next_producer_id >= next_id + 1000 * restored
        ask(engine, apis.OFFSET_COMMIT, 8, commit_request(70))
        ask(engine, apis.PRODUCE, 9, produce_request(5))
        assert end(engine) == 9
        engine.stop()
        assert os.path.isdir(os.path.join(aside, "t-0"))


def test_what_is_not_durable_is_not_in_it(engine: Engine, data: Path) -> None:
    client = Client(engine)
    client.send(apis.OFFSET_COMMIT, 8, commit_request(50), NOW)
    client.send(apis.PRODUCE, 9, produce_request(70), NOW)
    ticket = engine.end_turn(NOW)
    assert ticket is not None
    # Written, and on its way to the disk.
    snapshot = begin_snapshot(engine.directory, str(data), "mid", NOW.wall_ms)
    ticket.sync()
    engine.commit_done(ticket, NOW)
    finish_turn(engine, NOW)
    ask(engine, apis.PRODUCE, 9, produce_request(70))
    snapshot.finish(Unwatched())
    engine.stop()
    run("restore", "mid", "--data", str(data))
    engine = start(data)
    assert (committed(engine), end(engine)) == (7, 8)
    engine.stop()


def test_an_interrupted_restore_is_refused_and_can_be_repeated(
    engine: Engine, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.stop()
    run("snapshot", "one", "--data", str(data))
    moves = 0
    rename = DiskStorage.rename

    def limited(self: DiskStorage, old: str, new: str) -> None:
        nonlocal moves
        moves += 1
        if moves == 4:
            raise KeyboardInterrupt
        rename(self, old, new)

    monkeypatch.setattr(DiskStorage, "rename", limited)
    with pytest.raises(KeyboardInterrupt):
        restore_snapshot(str(data), "one", NOW.wall_ms, Unwatched())
    monkeypatch.undo()
    with pytest.raises(StorageError, match="not empty"):
        start(data)
    run("restore", "one", "--data", str(data))
    engine = start(data)
    assert (committed(engine), engine.core.topics.topics["t"].leader_epoch(0)) == (7, 1)
    engine.stop()


def test_refusals(engine: Engine, data: Path) -> None:
    # Open, but with no control socket.
    assert "does not respond" in run("snapshot", "x", "--data", str(data), code=1)
    engine.stop()
    assert "snapshot x does not exist" in run("restore", "x", "--data", str(data), code=2)
    for name in ("../x", ".x", "x.partial", "x/y", "x" * 101):
        assert "not a valid snapshot name" in run("snapshot", name, "--data", str(data), code=2)
    run("snapshot", "x", "--data", str(data))
    assert "already" in run("snapshot", "x", "--data", str(data), code=2)
    run("snapshot", "--data", str(data), code=2)
    run("snapshot", "x", "--list", "--data", str(data), code=2)


def test_of_a_running_server(data: Path) -> None:
    with ServerProcess(data) as server:
        path = data / "kcoord.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        stop = threading.Event()

        def write() -> None:
            from confluent_kafka import Producer

            producer = Producer({"bootstrap.servers": server.bootstrap})
            while not stop.is_set():
                producer.produce("busy", b"x" * 100)
                producer.poll(0.001)
            producer.flush(60)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            made = [json.loads(run("snapshot", f"s{n}", "--data", str(data), "--output", "json")) for n in range(4)]
        finally:
            stop.set()
            writer.join()
        assert "already" in run("snapshot", "s0", "--data", str(data), code=2)
        assert "in use" in run("restore", "s0", "--data", str(data), code=6)
        assert server.stop() == 0
        assert not path.exists()
    ends = [one["ends"].get("busy-0", 0) for one in made]
    assert ends == sorted(ends)
    run("restore", "s3", "--data", str(data))
    engine = start(data)
    assert engine.directory.events == []
    if ends[3]:
        assert end(engine, "busy") == ends[3]
    engine.stop()


def test_the_socket_takes_no_nonsense(data: Path) -> None:
    with ServerProcess(data) as server:
        for nonsense in (
            b"",
            b"\x00",
            b"\xff\xff\xff\xff",
            b"\x00\x00\x00\x02[]",
            b"\x00\x00\x00\x03nul",
            b"GET / HTTP/1.1",
        ):
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(60)
                link.connect(str(data / "kcoord.sock"))
                link.sendall(nonsense)
                link.shutdown(socket.SHUT_WR)
                assert link.recv(100) == b""
        with pytest.raises(ControlError, match="unknown command 'dance'"):
            ask_server(str(data), {"command": "dance"}, Unwatched())
        assert server.stop() == 0


def test_a_directory_whose_name_is_too_long_for_a_socket(tmp_path: Path) -> None:
    data = tmp_path / ("long" * 30)
    with ServerProcess(data) as server:
        assert not (data / "kcoord.sock").exists()
        assert "does not respond" in run("snapshot", "x", "--data", str(data), code=1)
        assert server.stop() == 0


def test_without_hard_links_everything_is_copied(engine: Engine, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.stop()

    def no_links(_source: str, _target: str) -> None:
        raise OSError(errno.EXDEV, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    run("snapshot", "copied", "--data", str(data))
    copies = list((data / "snapshots" / "copied" / "t-0").glob("*.log"))
    assert len(copies) > 2 and all(path.stat().st_nlink == 1 for path in copies)
    run("restore", "copied", "--data", str(data))
    engine = start(data)
    assert (committed(engine), end(engine)) == (7, 8)
    engine.stop()


def test_damage_in_copied_files_is_reported_and_nothing_is_left(engine: Engine, data: Path) -> None:
    snapshot = begin_snapshot(engine.directory, str(data), "bad", NOW.wall_ms)
    log = max((data / "__consumer_offsets-0").glob("*.log"))
    with open(log, "r+b") as file:
        file.seek(80)
        file.write(b"\xff\xff")
    with pytest.raises(LogDamaged):
        snapshot.finish(Unwatched())
    snapshot.abandon()
    assert list((data / "snapshots").iterdir()) == []
