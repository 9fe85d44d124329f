"""The small benchmarks still run, and measure what they say: with few of everything, whatever the clock says."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from bench import cleaning, endurance, in_process, peers, primitives, servers


def test_the_cleaner_keeps_one_record_of_each_key(tmp_path: Path) -> None:
    seconds, result = cleaning.measure(tmp_path, 1_000_000)
    assert seconds > 0 and result.records_before >= cleaning.COMMIT_BATCHES * cleaning.BATCH_RECORDS
    assert result.records_after == cleaning.GROUPS * cleaning.PARTITIONS


def test_requests_are_answered_in_one_turn_or_in_many() -> None:
    prepare = in_process.frames()["Heartbeat"]
    assert in_process.measure(prepare, 1, 32) > 0
    assert in_process.measure(prepare, 1, 32, 1) > 0


@pytest.mark.parametrize("send", [primitives.by_sendfile, primitives.by_reading])
def test_both_ways_send_whole_answers(tmp_path: Path, send: primitives.Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primitives, "ANSWERS", 3)
    sender, client = primitives.answers(tmp_path, send)
    assert sender > 0 and client > 0


def test_both_ways_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primitives, "SYNCS", 3)
    for sync, name in ((primitives.sync_here, "here"), (primitives.sync_in_thread, "thread")):
        assert sync(tmp_path)[1] > 0
        assert (tmp_path / name).stat().st_size == 3 * primitives.RECORD_BYTES


def test_an_echo_syncs_what_it_writes_back(tmp_path: Path) -> None:
    frames = [bytes([number]) * 100 for number in range(3)]
    with servers.synced_echo(tmp_path / "frames") as server:
        for frame in frames:
            with socket.create_connection((server.host, server.port), 10) as client:
                client.sendall(frame)
                assert client.makefile("rb").read(len(frame)) == frame
    assert (tmp_path / "frames").read_bytes() == b"".join(frames)


def test_a_server_is_loaded_and_its_log_is_looked_at(tmp_path: Path) -> None:
    with servers.kcoord(False, tmp_path / "data", "os") as server:
        minute = endurance.load(server, tmp_path / "data", 2, 4, 0.3, compiled=False)
    assert minute.rate > 0 and minute.p99_ms >= minute.p50_ms > 0
    assert minute.most_mib >= minute.end_mib > 0


def test_a_comparison_of_two_servers_chooses_its_cases() -> None:
    by_words = {
        (): set(peers.CASES),
        ("kfake", "8x1"): {case for case in peers.CASES if case.peer == "kfake" and case.load == "8x1"},
        ("restart-classic",): {case for case in peers.CASES if "restart-classic" in case.workloads},
    }
    for words, cases in by_words.items():
        chosen = [case for group in peers.choose(list(words)).values() for case in group]
        assert len(chosen) == len(cases)
        assert {(case.peer, case.sync, case.load) for case in chosen} == {(c.peer, c.sync, c.load) for c in cases}
    (case,) = peers.choose(["kafka", "8x32", "os", "heartbeat"]).popitem()[1]
    assert case.workloads == ("heartbeat",)
