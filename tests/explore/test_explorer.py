"""The explorer covers what it says and finds what is wrong. It copies the core's objects, so it runs interpreted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

BROKEN = """
import sys
from kcoord.core.groups import consumer as consumer_group
consumer_group.ConsumerGroup.partition_epoch = lambda self, topic_id, partition: consumer_group.NO_OWNER
from tests.explore.consumer_groups import main
sys.exit(main(["--seconds", "60", "--seed", "1"]))
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_two_members_in_every_order() -> None:
    ran = run("-P", "-m", "tests.explore.consumer_groups", "--members", "2", "--losses", "0", "--repeats", "0")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "(all of them)" in ran.stdout
    assert "0 violations" in ran.stdout


def test_a_partition_that_is_given_away_too_early_is_found() -> None:
    ran = run("-P", "-c", BROKEN)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "violation: " in ran.stdout
