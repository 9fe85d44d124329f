"""`kafka-transactions` against the server. `pytest tests/interop/test_transaction_tool.py --target=kafka` passes."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException, Producer

from tests.interop import tools
from tests.interop.conftest import Target

WAIT_S = 60.0
PLACE = ("--topic", "tool", "--partition", "0")


@pytest.fixture(scope="module")
def open_producer(target: Target) -> Producer:
    """A producer with one record in an open transaction."""
    made = Producer({"bootstrap.servers": target.bootstrap, "transactional.id": "tool-id", "log_level": 0})
    made.init_transactions(WAIT_S)
    made.begin_transaction()
    made.produce("tool", b"x", partition=0)
    assert made.flush(WAIT_S) == 0
    return made


@pytest.fixture(scope="module")
def at(target: Target, open_producer: Producer) -> list[str]:
    """The arguments that name the server."""
    return ["--bootstrap-server", target.bootstrap]


def listed(at: list[str], *arguments: str) -> dict[str, str]:
    """The state by transactional id."""
    done = tools.run(tools.TRANSACTIONS, *at, "list", *arguments)
    assert done.code == 0, done
    rows = [line.split() for line in done.lines]
    assert rows[0] == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"]
    return {row[0]: row[3] for row in rows[1:]}


def producers(at: list[str]) -> list[list[str]]:
    done = tools.run(tools.TRANSACTIONS, *at, "describe-producers", *PLACE)
    assert done.code == 0, done
    return [line.split() for line in done.lines[1:]]


def test_list(at: list[str]) -> None:
    assert listed(at) == {"tool-id": "Ongoing"}
    assert listed(at, "--transactional-id-pattern", "tool-.*") == {"tool-id": "Ongoing"}
    assert listed(at, "--transactional-id-pattern", "tool") == {}
    assert listed(at, "--duration-filter", "1000000") == {}


def test_describe(at: list[str]) -> None:
    done = tools.run(tools.TRANSACTIONS, *at, "describe", "--transactional-id", "tool-id")
    assert done.code == 0, done
    row = dict(zip(done.lines[0].split(), done.lines[1].split(), strict=True))
    assert row["TransactionState"] == "Ongoing"
    assert row["TransactionTimeoutMs"] == "60000"
    assert row["TopicPartitions"] == "tool-0"
    unknown = tools.run(tools.TRANSACTIONS, *at, "describe", "--transactional-id", "nobody")
    assert unknown.code == 1
    assert "the ID could not be found" in unknown.err


def test_what_the_coordinator_knows_is_not_hanging(at: list[str]) -> None:
    hanging = tools.run(tools.TRANSACTIONS, *at, "find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0")
    assert hanging.code == 0, hanging
    assert len(hanging.lines) == 1


def test_abort_and_terminate(at: list[str], open_producer: Producer) -> None:
    """An abort ends the transaction in one partition, a termination ends all of it."""
    before = producers(at)
    assert [(row[1], row[5]) for row in before] == [("0", "0")]
    aborted = tools.run(tools.TRANSACTIONS, *at, "abort", *PLACE, "--start-offset", "0")
    assert aborted.code == 0, aborted
    assert [row[5] for row in producers(at)] == ["None"]
    assert listed(at) == {"tool-id": "Ongoing"}
    done = tools.run(tools.TRANSACTIONS, *at, "forceTerminateTransaction", "--transactionalId", "tool-id")
    assert done.code == 0, done
    assert listed(at) == {"tool-id": "Empty"}
    with pytest.raises(KafkaException):
        open_producer.commit_transaction(WAIT_S)


def test_performance_of_transactions(at: list[str]) -> None:
    """The tool commits many short transactions; a consumer of committed records reads all of them."""
    sent = tools.run(
        tools.PRODUCER_PERFORMANCE, "--topic", "tool-fast", "--num-records", "2000", "--record-size", "20",
        "--throughput", "4000", "--transactional-id", "tool-fast", "--transaction-duration-ms", "20", *at,
    )  # fmt: skip
    assert sent.code == 0, sent
    assert "2000 records sent" in sent.out
    arguments = ["--topic", "tool-fast", "--from-beginning", "--isolation-level", "read_committed"]
    read = tools.run(tools.CONSOLE_CONSUMER, *at, *arguments, "--max-messages", "2000", "--timeout-ms", "20000")
    assert len(read.lines) == 2000
    assert listed(at, "--transactional-id-pattern", "tool-fast") == {"tool-fast": "CompleteCommit"}
