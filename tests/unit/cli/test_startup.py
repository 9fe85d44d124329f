"""What commands import before they know what to do: neither asyncio nor the codec, so that they start quickly."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
    ],
    ids=" ".join,
)
def test_help_imports_little(arguments: list[str]) -> None:
    code = CODE.format(arguments=arguments, slow=SLOW)
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "[]\n")
