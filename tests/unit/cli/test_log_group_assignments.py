"""The group assignments of producers (draft of KIP-447) in a data directory: what the tools show, and what survives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcoord.core.transactions.state import Transactions
from kcoord.protocol import apis, errors
from kcoord.protocol.find_coordinator import FindCoordinatorRequest
from kcoord.protocol.init_producer_id import AssignedTopic, GroupAssignment, InitProducerIdRequest
from tests.unit.cli.rig import LogRig, at, run, run_json
from tests.unit.cli.test_log_timeline_transactions import TransactionRig


class AssignmentRig(TransactionRig):
    """Producers whose consumer is the member of `workers`."""

    def claim(self, name: str, when: float, *partitions: int) -> int:
        """The error of one InitProducerId."""
        topics = [AssignedTopic("orders", list(partitions))]
        assigned = GroupAssignment("workers", self.generation, self.member_id, None, topics)
        body = InitProducerIdRequest(name, 60_000, -1, -1, assigned)
        answer = self.client.ask(apis.INIT_PRODUCER_ID, 5, body, at(when))
        self.producer = answer.producer_id, answer.producer_epoch
        error: int = answer.error_code
        return error


def write_history(path: Path) -> AssignmentRig:
    """`y` takes a partition over from `x`, which has a transaction; then the engine is closed."""
    rig = AssignmentRig(path)
    rig.create("orders", 2, 0)
    rig.join(1)
    found = rig.client.ask(apis.FIND_COORDINATOR, 4, FindCoordinatorRequest("", 1, ["x"]), at(1))
    assert found.coordinators[0].error_code == 0
    assert rig.claim("x", 2, 0, 1) == errors.NONE
    rig.add(3, 0)
    assert [rig.claim("y", 4 + i, 1) for i in range(3)] == [
        errors.CONCURRENT_TRANSACTIONS, errors.CONCURRENT_TRANSACTIONS, errors.NONE,
    ]  # fmt: skip
    return rig


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    write_history(tmp_path).stop()
    return tmp_path


def owners(path: Path) -> list[list[str]]:
    """The owners of the two partitions, as a server that starts now knows them."""
    rig = LogRig(path)
    transactions: Transactions = rig.engine.core.transactions
    found = [transactions.assignments.owners("workers", "orders", partition) for partition in range(2)]
    rig.stop()
    return found


def test_dump_shows_them_with_their_transactional_id(stopped: Path) -> None:
    result = run("dump", stopped, "--group", "x", "--type", "transaction_group_assignment")
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert text.count("transaction_group_assignment x ") == 2
    assert "assignment x group workers, generation 1, member " in text and "partitions orders-0 orders-1" in text
    assert "assignment x removed; cause partitions_reassigned" in text


def test_the_timeline_says_who_took_over(stopped: Path) -> None:
    rows: list[dict[str, Any]] = run_json("timeline", stopped, "--transactional-id", "x")["transactions"]
    assert [(row["event"], row["cause"]) for row in rows] == [
        ("new epoch", None),
        ("aborted", "partitions_reassigned"),
        ("new epoch", "partitions_reassigned"),
    ]
    assert rows[1]["detail"] == "of group workers, in generation 1, to y"
    text = run("timeline", stopped, "--transactional-id", "x").output
    assert text.count("InitProducerId") == 1 and text.count("to y") == 2


def test_verify_accepts_them(stopped: Path) -> None:
    result = run("verify", stopped)
    assert result.exit_code == 0, result.output


def test_compaction_keeps_the_last_of_each_transactional_id(stopped: Path) -> None:
    before = owners(stopped)
    assert before == [[], ["y"]]
    assert run("compact", stopped, "--roll", "--history", "0").exit_code == 0
    shown = run("dump", stopped, "--type", "transaction_group_assignment", "-o", "json").output
    assert [json.loads(line)["value"] is None for line in shown.splitlines()] == [True, False]
    assert owners(stopped) == before


def test_a_server_that_was_killed_knows_them(tmp_path: Path) -> None:
    write_history(tmp_path).kill()
    assert owners(tmp_path) == [[], ["y"]]
