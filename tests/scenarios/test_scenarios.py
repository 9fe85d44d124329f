"""Runs every scenario file of this folder.

`pytest tests/scenarios --rewrite` replaces the expectations by what happens; read the difference before you commit it.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tests.scenarios.engine_runner import EngineScenario
from tests.scenarios.runner import Scenario
from tests.scenarios.script import format_script, parse_script

FOLDER = Path(__file__).resolve().parent
FILES = sorted(FOLDER.rglob("*.txt"))
# Folders whose scenarios need a whole engine: the logs of data, markers and readers.
OF_ENGINE = ("transactions",)


@pytest.mark.parametrize("path", FILES, ids=[path.relative_to(FOLDER).as_posix() for path in FILES])
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    blocks = parse_script(path.read_text())
    scenario = EngineScenario() if path.parent.name in OF_ENGINE else Scenario()
    is_rewriting = bool(request.config.getoption("--rewrite", default=False))
    name = path.relative_to(FOLDER).as_posix()
    again = f'pytest "tests/scenarios/test_scenarios.py::test_scenario[{name}]"'
    for block in blocks:
        actual = scenario.run(block.command)
        if actual == block.expected:
            continue
        if is_rewriting:
            block.expected = actual
            continue
        difference = "\n".join(difflib.unified_diff(block.expected, actual, "expected", "actual", lineterm="", n=100))
        pytest.fail(f"{name}:{block.line}: {block.command}\n{difference}\n\nto see it again: {again}", pytrace=False)
    if isinstance(scenario, Scenario) and scenario.digest_after_compaction() != scenario.core.digest():
        pytest.fail(f"{name}: compaction changes the state\n\nto see it again: {again}", pytrace=False)
    if is_rewriting:
        path.write_text(format_script(blocks))
