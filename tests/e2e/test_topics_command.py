"""`kcoord topics`, `kcoord configs` and `kcoord completion`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kcoord.cli.main import main
from kcoord.testing.fixture import KcoordServer
from tests.client.groups import produce
from tests.e2e.process import clean_environment


@pytest.fixture
def at(kcoord: KcoordServer) -> str:
    """The address of a server with a topic `orders` that has three records."""
    made = run(kcoord.bootstrap, "topics", "create", "orders", "-p", "2", "-c", "cleanup.policy=compact")
    assert made.stdout.splitlines()[1].split() == ["orders", "2", "created"]
    produce(kcoord.bootstrap, "orders", {0: 1, 1: 2})
    return kcoord.bootstrap


def run(at: str, family: str, command: str, *arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [family, command, "-b", at, *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def rows(at: str, family: str, command: str, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(at, family, command, *arguments, "-o", "json").stdout)
    return found


def test_list_and_describe(at: str) -> None:
    assert rows(at, "topics", "list") == [{"topic": "orders", "partitions": 2, "internal": False}]
    assert rows(at, "topics", "list", "x*") == []
    assert "__consumer_offsets" in {row["topic"] for row in rows(at, "topics", "list", "--internal")}
    found = rows(at, "topics", "describe", "orders")
    assert [(row["partition"], row["start_offset"], row["end_offset"], row["records"]) for row in found] == [
        (0, 0, 1, 1), (1, 0, 2, 2),
    ]  # fmt: skip
    assert all(row["replicas"] == row["in_sync"] == [row["leader"]] for row in found)


def test_create_alter_and_delete(at: str) -> None:
    again = run(at, "topics", "create", "orders", "other", code=1)
    assert "topic orders: TOPIC_ALREADY_EXISTS" in again.stderr
    assert [line.split()[-1] for line in again.stdout.splitlines()[1:]] == ["refused", "created"]
    run(at, "topics", "create", "orders", "--if-not-exists")
    run(at, "topics", "create", "third", "--dry-run")
    run(at, "topics", "alter", "orders", "--partitions", "3")
    assert len(rows(at, "topics", "describe", "orders")) == 3
    fewer = run(at, "topics", "alter", "orders", "--partitions", "2", code=1)
    assert "INVALID_PARTITIONS" in fewer.stderr
    dry = run(at, "topics", "delete", "other")
    assert "dry run: 1 topic would be deleted" in dry.stderr
    assert [row["topic"] for row in rows(at, "topics", "list")] == ["orders", "other"]
    run(at, "topics", "delete", "other", "--execute")
    assert [row["topic"] for row in rows(at, "topics", "list")] == ["orders"]


def test_configs(at: str) -> None:
    only = {"name": "cleanup.policy", "value": "compact", "source": "topic", "read_only": False}
    assert rows(at, "configs", "describe", "topic", "orders") == [only]
    run(at, "configs", "set", "topic", "orders", "retention.ms=5000", "--dry-run")
    assert rows(at, "configs", "describe", "topic", "orders") == [only]
    run(at, "configs", "set", "topic", "orders", "retention.ms=5000")
    (entry,) = rows(at, "configs", "describe", "topic", "orders", "retention.ms")
    assert (entry["value"], entry["source"]) == ("5000", "topic")
    run(at, "configs", "unset", "topic", "orders", "retention.ms")
    assert rows(at, "configs", "describe", "topic", "orders") == [only]
    assert len(rows(at, "configs", "describe", "topic", "orders", "--all")) > 10
    run(at, "configs", "set", "group", "billing", "consumer.session.timeout.ms=50000")
    (of_group,) = rows(at, "configs", "describe", "group", "billing")
    assert (of_group["name"], of_group["value"]) == ("consumer.session.timeout.ms", "50000")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["topics", "describe", "order"], 1, "topic 'order' does not exist; did you mean 'orders'?"),
        (["topics", "delete", "order"], 1, "did you mean 'orders'?"),
        (["topics", "alter", "order", "-p", "3"], 1, "did you mean 'orders'?"),
        (["topics", "create", "x", "-c", "cleanup.policy"], 2, "give NAME=VALUE"),
        (["topics", "create", "x", "--partitions", "9999999999"], 1, "CreateTopics cannot be sent"),
        (["topics", "create", "x", "--replication-factor", "99999"], 1, "CreateTopics cannot be sent"),
        (["topics", "alter", "orders", "--partitions", "9999999999"], 1, "CreatePartitions cannot be sent"),
        (["topics", "describe", "o" * 40_000], 2, "string of 40000 bytes"),
        (["topics", "create", "o\udcff"], 1, "it is not UTF-8"),
        (["topics", "create", "x", "-c", "retention.ms=\udcff"], 1, "it is not UTF-8"),
        (["configs", "set", "topic", "orders", "retention.ms=\udcff"], 2, "it is not UTF-8"),
        (["configs", "describe", "topic", "order"], 1, "did you mean 'orders'?"),
        (["configs", "describe", "topic", "orders", "retention.mss"], 1, "did you mean 'retention.ms'?"),
        (["configs", "set", "topic", "orders", "retention=1"], 1, "has no config 'retention'"),
        (["configs", "set", "topic", "orders", "retention.ms=soon"], 3, "INVALID_CONFIG"),
    ],
)
def test_mistakes(at: str, arguments: list[str], code: int, text: str) -> None:
    family, command, *rest = arguments
    result = run(at, family, command, *rest, code=code)
    assert text in result.stderr and "Traceback" not in result.output


@pytest.mark.parametrize(("name", "meant"), [("topcis", "topics"), ("group", "groups"), ("serv", "serve")])
def test_unknown_commands(name: str, meant: str) -> None:
    result = CliRunner().invoke(main, [name])
    assert result.exit_code == 2 and f"did you mean {meant!r}?" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0 and "_KCOORD_COMPLETE" in result.stdout


def test_completion(tmp_path: Path) -> None:
    """What the script of bash asks for."""
    environment = {**clean_environment(), "COMP_WORDS": "kcoord groups re", "COMP_CWORD": "2"}
    environment["_KCOORD_COMPLETE"] = "bash_complete"
    code = "from kcoord.cli.main import main; main(prog_name='kcoord')"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60)
    assert done.stdout.split() == ["plain,remove-members", "plain,reset"], done.stderr
