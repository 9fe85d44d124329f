"""`kcoord transactions` against a server process with a transactional producer of confluent-kafka."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kcoord.cli.main import main
from tests.e2e.process import ServerProcess
from tests.e2e.test_transactions import WAIT_S, producer, write


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data: Path = tmp_path_factory.mktemp("transactions-command") / "data"
    with ServerProcess(data) as server:
        yield server.bootstrap
        assert server.stop() == 0


def run(bootstrap: str, command: str, *arguments: str) -> Result:
    whole = ["transactions", command, "--bootstrap-server", bootstrap, *arguments]
    return CliRunner().invoke(main, whole, catch_exceptions=False)


def run_json(bootstrap: str, command: str, *arguments: str) -> Any:
    result = run(bootstrap, command, *arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_list_and_describe(bootstrap: str) -> None:
    one = producer(bootstrap, "shown")
    two = producer(bootstrap, "idle")
    one.begin_transaction()
    write(one, "shown", [b"a"])
    rows = run_json(bootstrap, "list")
    assert [(row["transactional_id"], row["state"]) for row in rows] == [("idle", "Empty"), ("shown", "Ongoing")]
    producer_id = rows[1]["producer_id"]
    for arguments in (
        ["--state", "Ongoing"], ["--producer-id", str(producer_id)], ["--pattern", "sh.*"],
        ["--state", "Ongoing", "--longer-than", "1ms"],
    ):  # fmt: skip
        assert [row["transactional_id"] for row in run_json(bootstrap, "list", *arguments)] == ["shown"]
    assert run_json(bootstrap, "list", "--state", "Ongoing", "--longer-than", "1h") == []
    state = run_json(bootstrap, "describe", "-i", "shown")
    assert (state["state"], state["producer_id"], state["timeout_ms"]) == ("Ongoing", producer_id, 60_000)
    assert state["partitions"] == [{"topic": "shown", "partition": 0}] and state["duration_ms"] >= 0
    assert "partitions:       shown-0" in run(bootstrap, "describe", "-i", "shown").stdout
    one.commit_transaction(WAIT_S)
    end = time.monotonic() + WAIT_S
    while run_json(bootstrap, "describe", "-i", "shown")["state"] != "CompleteCommit":
        assert time.monotonic() < end
    assert run_json(bootstrap, "describe", "-i", "shown")["duration_ms"] is None
    del two


def test_a_known_transaction_is_not_hanging_and_not_aborted(bootstrap: str) -> None:
    one = producer(bootstrap, "known")
    one.begin_transaction()
    write(one, "known", [b"a"])
    result = run(bootstrap, "list", "--hanging", "--max-duration", "0")
    assert (result.exit_code, result.stdout) == (0, "no hanging transactions\n")
    where = ["--topic", "known", "--partition", "0", "--start-offset", "0"]
    refused = run(bootstrap, "abort", *where)
    assert refused.exit_code == 3 and "the coordinator of known knows this transaction" in refused.output
    aborted = run(bootstrap, "abort", *where, "--force")
    assert aborted.exit_code == 0 and aborted.stdout.startswith("aborted in known-0 from offset 0"), aborted.output
    again = run(bootstrap, "abort", *where, "--force")
    assert again.exit_code == 3 and "has no open transaction that begins at offset 0" in again.output
    one.abort_transaction(WAIT_S)


def test_errors_are_one_line(bootstrap: str) -> None:
    for arguments, code, text in (
        (["describe", "-i", "nobody"], 3, "transactional id nobody: TRANSACTIONAL_ID_NOT_FOUND"),
        (["abort", "-t", "none", "-p", "0", "--start-offset", "1"], 3, "topic none: UNKNOWN_TOPIC_OR_PARTITION"),
        (["abort", "-t", "none", "-p", "0"], 2, "pass either --start-offset"),
        (["list", "--hanging", "--topic", "none"], 3, "topic none: UNKNOWN_TOPIC_OR_PARTITION"),
        (["list", "--pattern", "("], 3, "INVALID_REGULAR_EXPRESSION"),
        (["list", "--topic", "t"], 2, "--topic is for --hanging only"),
        (["list", "--longer-than", "soon"], 2, "is not a duration"),
    ):
        result = run(bootstrap, *arguments)
        assert result.exit_code == code and text in result.output, result.output
    stranger = run("127.0.0.1:1", "list", "--timeout", "5")
    assert stranger.exit_code == 3 and stranger.output.startswith("kcoord: 127.0.0.1:1: cannot connect")
    assert run("nowhere", "list").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-i", "x" * 40_000], "string of 40000 bytes"),
        (["-i", "x\udcff"], "utf-8"),
        (["-i", "x", "--timeout", "1e18"], ""),
    ],
)
def test_values_that_cannot_be_sent(bootstrap: str, arguments: list[str], text: str) -> None:
    result = run(bootstrap, "describe", *arguments)
    assert result.exit_code == 2 and text in result.stderr, result.output
