"""The Python of README and docs, run as a reader would: programs against a server, tests with pytest.

A block that is a part of a program must at least be valid Python.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from kcoord.testing.fixture import KcoordServer

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ADDRESS = "127.0.0.1:9092"
RECIPES = "testing-recipes.md"
DEADLINE_S = 60.0
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Snippet(NamedTuple):
    page: str
    number: int
    code: str

    @property
    def name(self) -> str:
        return f"{self.page}-{self.number}"


def snippets() -> list[Snippet]:
    found = []
    for page in PAGES:
        for number, match in enumerate(BLOCK.finditer(page.read_text())):
            found.append(Snippet(page.name, number, match.group(1)))
    return found


def is_program(code: str) -> bool:
    """Whether it runs by itself, with clients that the tests have."""
    uses_client = re.search(r"kcoord\.client|aiokafka|confluent_kafka", code) is not None
    return uses_client and ("asyncio.run(" in code or "confluent_kafka" in code) and "def test_" not in code


ALL = snippets()
PROGRAMS = [one for one in ALL if is_program(one.code) and ADDRESS in one.code]
TESTS = [one for one in ALL if re.search(r"^(async )?def test_", one.code, re.MULTILINE)]
PAGES_WITH_TESTS = sorted({one.page for one in TESTS})


def test_there_are_snippets_of_each_kind() -> None:
    assert len(PROGRAMS) >= 4
    assert len(TESTS) >= 4


@pytest.mark.parametrize("snippet", ALL, ids=lambda one: one.name)
def test_every_block_is_python(snippet: Snippet) -> None:
    compile(snippet.code, snippet.name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("snippet", PROGRAMS, ids=lambda one: one.name)
def test_programs_run(snippet: Snippet, kcoord: KcoordServer, tmp_path: Path) -> None:
    code = snippet.code.replace(ADDRESS, kcoord.bootstrap)
    if "async for" in code:
        # A program that reads for ever gets a record, and ends after it.
        code = code.replace("print(record.partition", "raise SystemExit(0)\n            print(record.partition")
        code = code.replace('group_id="billing"', 'group_id="billing", auto_offset_reset="earliest"')
        fill = f"""
import asyncio
from kcoord.client import Producer
async def fill():
    async with Producer(bootstrap_servers={kcoord.bootstrap!r}) as producer:
        await producer.send("orders", b"value")
asyncio.run(fill())
"""
        _run([sys.executable, "-c", fill], tmp_path)
    path = tmp_path / "program.py"
    path.write_text(code)
    _run([sys.executable, str(path)], tmp_path)


@pytest.mark.parametrize("page", PAGES_WITH_TESTS)
def test_tests_pass(page: str, tmp_path: Path) -> None:
    """All tests of a page in one run, each in a file of its own, named after its place on the page."""
    ours = [one for one in TESTS if one.page == page]
    for snippet in ours:
        (tmp_path / f"test_{snippet.number:02}.py").write_text(snippet.code)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nfaulthandler_timeout = 40\n")
    _run([sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5"], tmp_path)


def test_there_are_twenty_recipes() -> None:
    assert len([one for one in TESTS if one.page == RECIPES]) == 20


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
