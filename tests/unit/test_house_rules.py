"""The house rules that a machine can check: imports, sizes, and what may stand in a tracked file."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "kcoord"

FUNCTION_LINES_MAX = 70  # what fits on a screen
FILE_LINES_MAX = 800

# Modules of these rooms are functions of their arguments: time, randomness and input are passed in.
DETERMINISTIC = ("wire", "protocol", "core", "history", "engine")
BANNED = frozenset(
    {"asyncio", "time", "random", "uuid", "os", "socket", "threading", "logging", "structlog"}
    | {"selectors", "subprocess", "secrets", "uvloop", "datetime"}
)

# What each room may import of the package, besides itself and the package's root module.
ALLOWED: dict[str, set[str]] = {
    "wire": set(),
    "protocol": {"wire"},
    "core": {"protocol", "wire"},
    "log": {"protocol", "wire"},
    "history": {"core", "protocol", "wire"},
    "engine": {"history", "log", "core", "protocol", "wire"},
    "server": {"engine", "history", "log", "core", "protocol", "wire"},
    "client": {"engine", "history", "log", "core", "protocol", "wire"},
    "spark": {"history", "log", "core", "protocol", "wire"},
    "codegen": set(),
}

# Paths of one machine and hosts that a build should reach by its own configuration only.
MACHINE_PATHS = re.compile(r"(?<![\w./$}-])/(?:home|root|work|Users|mnt|tmp)/\w[\w./-]*")
REGISTRY_HOSTS = re.compile(
    r"pypi\.org/simple|files\.pythonhosted|repo1?\.maven|//mirror\.|--index-url|--extra-index-url"
)


def tracked_files() -> list[Path]:
    """The files of the checkout that belong to the project; without git, all that are not build output."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]
    skipped = {".venv", "build", "dist", "__pycache__", "data"}
    return [path for path in ROOT.rglob("*") if path.is_file() and not skipped & set(path.parts)]


def python_files(folder: Path = PACKAGE) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def own_python_files() -> list[Path]:
    return [
        path
        for folder in ("kcoord", "pyspark_kcoord", "tests", "tools", "bench")
        for path in python_files(ROOT / folder)
    ]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room_of(path: Path) -> str:
    """`core` for kcoord/core/x.py and `engine` for kcoord/engine.py; empty for the package's own modules."""
    parts = path.relative_to(PACKAGE).parts
    if len(parts) > 1:
        return parts[0]
    return "" if parts[0].startswith("__") else parts[0].removesuffix(".py")


def is_generated(path: Path) -> bool:
    """Generated modules say so in their first lines."""
    return path.is_relative_to(PACKAGE / "protocol") and "generated" in path.read_text()[:400].lower()


def imports_of(path: Path) -> list[tuple[int, str]]:
    """(line, absolute module name) of every import in a file, also those inside functions."""
    package = list(path.relative_to(ROOT).parent.parts)
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found.append((node.lineno, module))
            if module == "kcoord":
                found += [(node.lineno, f"kcoord.{alias.name}") for alias in node.names]
    return found


def report(problems: list[str], rule: str) -> None:
    if problems:
        pytest.fail(rule + ":\n  " + "\n  ".join(problems), pytrace=False)


def test_imports_go_one_way() -> None:
    problems = []
    for path in python_files():
        room = room_of(path)
        for line, module in imports_of(path):
            parts = module.split(".")
            if parts[0] != "kcoord" or len(parts) < 2 or parts[1] == room:
                continue
            wrong = parts[1] == "codegen" or (room in ALLOWED and parts[1] not in ALLOWED[room])
            # `from kcoord import __version__` names no room.
            if wrong and ((PACKAGE / parts[1]).is_dir() or (PACKAGE / f"{parts[1]}.py").is_file()):
                problems.append(f"{name_of(path)}:{line} imports {module}")
    direction = "cli, console, testing -> client, server -> engine, spark -> history -> log | core -> protocol -> wire"
    report(problems, f"imports go one way: {direction}")


def test_import_contracts() -> None:
    """The same direction as import-linter sees it, through every chain of imports."""
    command = [sys.executable, "-m", "importlinter.cli", "lint"]
    program = Path(sys.executable).with_name("lint-imports")
    if program.exists():
        command = [str(program)]
    done = subprocess.run([*command, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_deterministic_rooms_have_no_clock_socket_file_or_log() -> None:
    problems = [
        f"{name_of(path)}:{line} imports {module}"
        for path in python_files()
        if room_of(path) in DETERMINISTIC
        for line, module in imports_of(path)
        if module.split(".")[0] in BANNED
    ]
    report(problems, "wire, protocol, core and engine take time, randomness and input as arguments")


def test_only_one_module_touches_librt() -> None:
    problems = [
        f"{name_of(path)}:{line} imports {module}"
        for path in python_files()
        if name_of(path) != "kcoord/wire/primitives.py"
        for line, module in imports_of(path)
        if module.split(".")[0] == "librt"
    ]
    report(problems, "librt is touched in kcoord/wire/primitives.py alone")


def test_functions_fit_on_a_screen() -> None:
    problems = []
    for folder in (PACKAGE, ROOT / "tools", ROOT / "bench"):
        for path in python_files(folder):
            if is_generated(path):
                continue
            for node in ast.walk(ast.parse(path.read_text(), str(path))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                    lines = node.end_lineno - node.lineno + 1
                    if lines > FUNCTION_LINES_MAX:
                        problems.append(f"{name_of(path)}:{node.lineno} {node.name} has {lines} lines")
    report(problems, f"a function has at most {FUNCTION_LINES_MAX} lines")


def test_files_have_one_reason_to_be_opened() -> None:
    problems = []
    for path in own_python_files():
        lines = path.read_text().count("\n")
        if lines > FILE_LINES_MAX and not is_generated(path):
            problems.append(f"{name_of(path)} has {lines} lines")
    report(problems, f"a file has at most {FILE_LINES_MAX} lines")


def test_no_unfinished_or_skipped_code() -> None:
    words = re.compile(r"\b(TODO|FIXME|NotImplemented(?:Error)?)\b|(pytest|mark)\.(skip|xfail)|importorskip")
    problems = []
    for path in own_python_files():
        if path == Path(__file__).resolve():
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if words.search(line) and "return NotImplemented" not in line:
                problems.append(f"{name_of(path)}:{number} {line.strip()}")
    report(problems, "what is missing stands in docs/gaps.md, not in the code; nothing is skipped")


def test_tracked_files_name_no_machine() -> None:
    problems = []
    for path in tracked_files():
        if path == Path(__file__).resolve() or path.suffix in (".bin", ".png", ".log", ".gz"):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for match in [*MACHINE_PATHS.finditer(line), *REGISTRY_HOSTS.finditer(line)]:
                problems.append(f"{name_of(path)}:{number} {match.group()}")
    report(problems, "no path of one machine and no registry host in a tracked file")


def test_readme_and_architecture_know_every_room() -> None:
    rooms = {room_of(path) for path in python_files()} - {""}
    problems = []
    for document in ("README.md", "ARCHITECTURE.md"):
        text = (ROOT / document).read_text()
        problems += [
            f"{document}: {room}" for room in sorted(rooms) if not re.search(rf"`[\w/]*\b{room}\b", text)
        ]
    report(problems, "README.md and ARCHITECTURE.md mention every room of the package")


def test_files_that_stay_interpreted_have_a_reason() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["kcoord"]["compile"]
    problems = [name for name, reason in table.get("exclude", {}).items() if len(str(reason)) < 10]
    problems += [name for name in table.get("exclude", {}) if not (ROOT / name).is_file()]
    report(problems, "tool.kcoord.compile.exclude names existing files and why they stay interpreted")


@pytest.mark.parametrize("module", ["kcoord.wire.primitives", "kcoord.protocol.offset_commit"])
def test_the_suite_runs_the_tree_it_was_asked_to_run(module: str) -> None:
    """`make test` runs sources, `make test-compiled` native code; neither takes the other's by accident."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import {module} as m; print(m.__file__)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    native = Path(done.stdout.strip()).suffix != ".py"
    assert native == bool(os.environ.get("KCOORD_EXPECT_COMPILED")), done.stdout


def compiled_python_files() -> list[Path]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["kcoord"]["compile"]
    return sorted({path for pattern in settings["include"] for path in ROOT.glob(pattern)})


@pytest.mark.parametrize("path", compiled_python_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_name_holds_exceptions_of_two_types(path: Path) -> None:
    """Compiled code gives a name one type per function: the second clause would raise a TypeError instead."""
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef):
            continue
        types: dict[str, str] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.ExceptHandler) and node.name and node.type:
                text = ast.unparse(node.type)
                first = types.setdefault(node.name, text)
                assert first == text, f"{function.name}: {node.name} is {first} and {text}"
