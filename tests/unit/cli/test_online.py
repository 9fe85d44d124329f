"""Commands for a running cluster, when no broker answers or a name is wrong."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from kcoord.cli.main import main
from kcoord.cli.online import run as online


@pytest.fixture
def unused() -> Iterator[str]:
    """An address of this machine where nobody listens. The port stays taken, or another test could listen there."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{one.getsockname()[1]}"


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


@pytest.mark.parametrize("words", [("groups", "list"), ("consume", "orders"), ("bench", "run", "commit-1")])
def test_a_wait_for_the_cluster_is_reported(
    monkeypatch: pytest.MonkeyPatch, unused: str, words: tuple[str, ...]
) -> None:
    """Without it a command prints nothing for half a minute."""
    monkeypatch.setattr(online, "PATIENCE_S", 0.0)
    result = run(*words, "--bootstrap", unused, "--timeout", "0.5")
    note, _, end = result.stderr.partition("\n")
    assert note == f"kcoord: no answer from {unused} yet; still trying (--timeout 0.5)"
    assert end == (
        "kcoord: connecting to the cluster: no result within 0.5 s; "
        f"the last attempt: {unused}: Connection refused\n"
    )  # fmt: skip
    assert result.exit_code == online.EXIT_CLUSTER


def test_a_short_wait_is_not_reported(unused: str) -> None:
    result = run("topics", "list", "--bootstrap", unused, "--timeout", "0.2")
    assert "no answer" not in result.stderr and result.exit_code == online.EXIT_CLUSTER


def test_health_names_the_reason(unused: str) -> None:
    result = run("health", "--bootstrap", unused)
    assert result.stderr == f"kcoord: {unused} is not healthy: cannot connect: Connection refused\n"
    assert result.exit_code == 1


def test_trace_names_a_port_that_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = run("trace", "--listen", address)
    assert result.stderr == f"kcoord: cannot listen on {address}: Address already in use\n"
    assert result.exit_code == online.EXIT_PROBLEMS


@pytest.mark.parametrize(("name", "end"), [("grops", "; did you mean 'groups'?\n"), ("xyzzy", ".\n")])
def test_an_unknown_command(name: str, end: str) -> None:
    result = run(name)
    assert result.stderr.endswith(f"No such command {name!r}{end}") and result.exit_code == 2
