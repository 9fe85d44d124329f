"""`kcoord log timeline --transactional-id`, and how `dump` shows the records and markers of transactions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcoord.protocol import apis
from kcoord.protocol.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.find_coordinator import FindCoordinatorRequest
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from tests.harness.engine import finish_turn
from tests.unit.cli.rig import LogRig, at, run, run_json


class TransactionRig(LogRig):
    """The id `x` with transactions on the topic `orders`."""

    def begin(self, when: float, timeout_ms: int = 60_000) -> None:
        found = self.client.ask(apis.FIND_COORDINATOR, 4, FindCoordinatorRequest("", 1, ["x"]), at(when))
        assert found.coordinators[0].error_code == 0
        made = self.client.ask(apis.INIT_PRODUCER_ID, 4, InitProducerIdRequest("x", timeout_ms), at(when))
        assert made.error_code == 0
        self.producer = made.producer_id, made.producer_epoch

    def add(self, when: float, *partitions: int) -> None:
        topics = [AddPartitionsToTxnTopic("orders", list(partitions))]
        body = AddPartitionsToTxnRequest([], "x", *self.producer, topics)
        answer = self.client.ask(apis.ADD_PARTITIONS_TO_TXN, 3, body, at(when))
        results = answer.results_by_topic_v3_and_below[0].results_by_partition
        assert [one.partition_error_code for one in results] == [0] * len(partitions)

    def end(self, when: float, committed: bool) -> None:
        body = EndTxnRequest("x", *self.producer, committed)
        assert self.client.ask(apis.END_TXN, 3, body, at(when)).error_code == 0


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    rig = TransactionRig(tmp_path)
    rig.create("orders", 2, 0)
    rig.begin(1)
    rig.add(2, 0)
    rig.add(3, 1)
    rig.end(4, True)
    rig.add(5, 1)
    rig.end(6.5, False)
    rig.begin(7, 1000)
    rig.add(8, 0)
    rig.engine.fire_timers(at(9.5))
    finish_turn(rig.engine, at(9.5))
    rig.stop()
    return tmp_path


def test_every_transaction_with_its_end(stopped: Path) -> None:
    document = run_json("timeline", stopped, "--transactional-id", "x")
    assert document["source"] == "__transaction_state-0"
    rows: list[dict[str, Any]] = document["transactions"]
    assert [(row["event"], row["producer_epoch"], row["open_ms"], row["cause"]) for row in rows] == [
        ("new epoch", 0, None, None),
        ("committed", 0, 2000, None),
        ("aborted", 0, 1500, "client_aborted"),
        ("new epoch", 1, None, None),
        ("aborted", 1, 1500, "transaction_timeout"),
    ]
    assert rows[1]["partitions"] == [{"topic": "orders", "partition": 0}, {"topic": "orders", "partition": 1}]
    assert [one["state"] for one in rows[1]["states"]][-2:] == ["PrepareCommit", "CompleteCommit"]
    assert rows[2]["detail"] == "client id test, host /127.0.0.1"
    assert rows[4]["next_producer_epoch"] == 2
    assert all(row["is_complete"] for row in rows if row["event"] in ("committed", "aborted"))


def test_the_table_and_its_filters(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = run("timeline", stopped, "--transactional-id", "x")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "x: 3 transactions, from __transaction_state-0"
    assert lines[1].split() == ["TIME", "RESULT", "PRODUCER", "ID", "EPOCH", "OPEN", "ENDING"]
    assert "    transaction_timeout: not ended within 1000 ms; partitions orders-0" in lines
    assert all(len(line) <= 80 for line in lines), result.stdout
    last = run_json("timeline", stopped, "--transactional-id", "x", "-n", "1")
    assert [row["cause"] for row in last["transactions"]] == ["transaction_timeout"]
    since = run_json("timeline", stopped, "--transactional-id", "x", "--since", "2025-10-09T08:53:27")
    assert len(since["transactions"]) == 2


def test_wrong_use_and_unknown_ids(stopped: Path) -> None:
    for arguments in ([], ["--group", "g", "--transactional-id", "x"]):
        result = run("timeline", stopped, *arguments)
        assert result.exit_code == 2 and "pass either --group or --transactional-id" in result.output
    result = run("timeline", stopped, "--transactional-id", "nobody")
    assert result.exit_code == 2 and "has no record of transactional id nobody" in result.output


def test_a_directory_without_transactions(tmp_path: Path) -> None:
    LogRig(tmp_path).stop()
    result = run("timeline", tmp_path, "--transactional-id", "x")
    assert result.exit_code == 2 and "there is no __transaction_state" in result.output


def test_dump_shows_states_and_markers(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = run("dump", stopped).stdout
    state = "PrepareCommit, producer id 0, epoch 0, timeout 60000 ms, partitions orders-0 orders-1"
    assert f"transaction_log x {state}" in lines
    assert "cause client_aborted: client id test" in lines
    topic = run("dump", stopped, "orders").stdout
    markers = [line.split("Z  ")[-1] for line in topic.splitlines() if "_marker" in line]
    assert markers == [
        "commit_marker; producer id 0, epoch 0",
        "abort_marker; producer id 0, epoch 2",
        "commit_marker; producer id 0, epoch 0",
        "abort_marker; producer id 0, epoch 0",
    ]
