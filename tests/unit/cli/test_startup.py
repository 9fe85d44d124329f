"""What commands import: for help neither asyncio nor the codec, for an answer only the APIs that they use."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from kcoord.testing.fixture import KcoordServer

SLOW = (
    "asyncio",
    "ssl",
    "kcoord.wire",
    "kcoord.protocol.apis",
    "kcoord.client.cluster",
    "kcoord.log",
    "kcoord.server",
    "pyspark",
)
CODE = """
import sys
from kcoord.cli.main import main
main({arguments!r}, prog_name="kcoord", standalone_mode=False)
print([name for name in {slow!r} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["groups", "--help"],
        ["groups", "describe", "--help"],
        ["groups", "reset", "--help"],
        ["topics", "--help"],
        ["configs", "set", "--help"],
        ["log", "--help"],
        ["pipeline", "--help"],
        ["transactions", "--help"],
        ["bench", "--help"],
        ["bench", "run", "--help"],
        ["bench", "compare", "--help"],
    ],
    ids=" ".join,
)
def test_help_imports_little(arguments: list[str]) -> None:
    code = CODE.format(arguments=arguments, slow=SLOW)
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_a_server_looks_at_no_installed_packages() -> None:
    """Their metadata takes long to read. Only a plug-in needs it."""
    code = "import sys, kcoord.server.main; print('importlib.metadata' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("False\n", "")


APIS = """
import asyncio, sys
from kcoord.cli.main import main
main({arguments!r}, prog_name="kcoord", standalone_mode=False)
names = [name for name in sys.modules if name.startswith("kcoord.protocol.") and name.count(".") == 2]
print(sorted(name.rpartition(".")[2] for name in names), file=sys.stderr)
print([name for name in {slow!r} if name in sys.modules], file=sys.stderr)
"""
TABLES = {"apis", "errors", "records"}
ALL_CONFIGS = {"describe_configs", "describe_log_dirs", "find_coordinator", "incremental_alter_configs"}
SLOW_ONLINE = ("kcoord.log", "kcoord.engine", "kcoord.core", "kcoord.wire.record_batch", "crc32c", "pyspark")


@pytest.mark.parametrize(
    ("arguments", "used"),
    [
        (["groups", "list"], {"list_groups", "describe_groups", "consumer_group_describe", "find_coordinator"}),
        (["topics", "list"], {"list_offsets", "find_coordinator"}),
        (["configs", "describe", "broker", "1"], ALL_CONFIGS),
        (
            ["transactions", "list"],
            {"describe_producers", "describe_transactions", "find_coordinator", "list_transactions"},
        ),
    ],
    ids=lambda given: " ".join(given[:2]) if isinstance(given, list) else "",
)
def test_a_command_imports_the_apis_that_it_uses(kcoord: KcoordServer, arguments: list[str], used: set[str]) -> None:
    code = APIS.format(arguments=[*arguments, "-b", kcoord.bootstrap], slow=SLOW_ONLINE)
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    modules, slow = done.stderr.splitlines()
    assert slow == "[]"
    allowed = TABLES | {"api_versions", "metadata"} | used
    assert set(ast.literal_eval(modules)) <= allowed
