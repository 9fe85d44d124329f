"""A restart in a scenario of consumer groups or transactions: the log says all there is, whatever was going on.

What is expected in the files no longer holds after that, since timers and waiting requests are gone; but the core must
go on, and agree with one that only replays. `EVERY` thins out the places; 1 tries them all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.engine_runner import EngineScenario
from tests.scenarios.runner import Scenario
from tests.scenarios.script import parse_script

FOLDER = Path(__file__).resolve().parent
FILES = sorted(path for name in ("consumer", "migration") for path in (FOLDER / name).glob("*.txt"))
TRANSACTIONS = sorted((FOLDER / "transactions").glob("*.txt"))
EVERY = 6


@pytest.mark.parametrize("path", FILES, ids=[path.relative_to(FOLDER).as_posix() for path in FILES])
def test_restart_in_between(path: Path) -> None:
    commands = [block.command for block in parse_script(path.read_text())]
    for place in range(1, len(commands)):
        if (place + len(path.name)) % EVERY or commands[place].startswith("config"):
            continue
        scenario = Scenario()
        for index, command in enumerate(commands):
            lines = scenario.run("restart") if index == place else []
            if not command.startswith("job ") or scenario.jobs:
                # Jobs are gone with the restart.
                lines = lines + scenario.run(command)
            assert not [line for line in lines if line.startswith("DIGEST")], (place, command)
        assert scenario.digest_after_compaction() == scenario.core.digest(), place


@pytest.mark.parametrize("path", TRANSACTIONS, ids=[path.name for path in TRANSACTIONS])
def test_power_cut_in_between(path: Path) -> None:
    """Whatever the producers do after the cut: no transaction stays open for longer than its timeout."""
    commands = [block.command for block in parse_script(path.read_text())]
    place = 2 + len(path.name) % (len(commands) - 2)
    scenario = EngineScenario()
    for index, command in enumerate(commands):
        lines = scenario.run("restart crash=yes") if index == place else []
        lines = lines + scenario.run(command)
        assert not [line for line in lines if line.startswith(("DIGEST", "OFFSETS"))], (place, command)
    scenario.run("advance 1d")
    scenario.run("advance 1ms")
    for name, (stable, end) in scenario.ends().items():
        assert stable == end, (name, place)
