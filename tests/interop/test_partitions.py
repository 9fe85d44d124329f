"""The golden file of chosen partitions is what the Java client chooses."""

from __future__ import annotations

import subprocess

from tests.client.test_partitioner import GOLDEN
from tests.harness import java

DEADLINE_S = 120


def test_golden_partitions() -> None:
    command = java.command("Partitions")
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert done.stdout == GOLDEN.read_text()
