"""When a checkout's long work goes on with native code: when that was made from the same sources."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kcoord
from kcoord.cli import compiled


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with a copy that looks compiled."""
    for place in (tmp_path / "kcoord", tmp_path / compiled.TREE / "kcoord"):
        for folder in compiled.FOLDERS:
            (place / folder).mkdir(parents=True)
            (place / folder / "module.py").write_text(f"# {folder}\n")
    (tmp_path / compiled.TREE / "native.so").write_bytes(b"")
    return tmp_path


def test_a_copy_of_the_same_sources(root: Path) -> None:
    assert compiled.compiled_tree(root) == str(root / compiled.TREE)


def test_a_copy_of_others(root: Path) -> None:
    module = root / "kcoord" / "engine" / "module.py"
    module.write_text("# changed\n")
    assert compiled.compiled_tree(root) == ""
    shutil.copy(root / compiled.TREE / "kcoord" / "engine" / "module.py", module)
    assert compiled.compiled_tree(root) != ""
    (root / "kcoord" / "core" / "new.py").write_text("")
    assert compiled.compiled_tree(root) == ""


def test_no_copy(root: Path) -> None:
    (root / compiled.TREE / "native.so").unlink()
    assert compiled.compiled_tree(root) == ""
    shutil.rmtree(root / compiled.TREE)
    assert compiled.compiled_tree(root) == ""


def test_it_begins_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[list[str], str]] = []

    def start(path: str, command: list[str], environment: dict[str, str]) -> None:
        started.append((command[3:], environment["PYTHONPATH"].split(":")[0]))

    monkeypatch.setattr("os.execve", start)
    monkeypatch.setattr(kcoord, "__file__", str(root / "kcoord" / "__init__.py"))
    monkeypatch.setattr(compiled, "is_compiled", lambda: False)
    monkeypatch.delenv("KCOORD_INTERPRETED", raising=False)
    assert compiled.faster_tree() == ""  # this is a test, and no command
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/kcoord", "log", "state", "data"])
    compiled.begin_again(compiled.faster_tree())
    assert started == [(["kcoord.cli.main", "log", "state", "data"], str(root / compiled.TREE))]
    monkeypatch.setenv("KCOORD_INTERPRETED", "1")
    assert compiled.faster_tree() == ""
    monkeypatch.delenv("KCOORD_INTERPRETED")
    monkeypatch.setattr(compiled, "is_compiled", lambda: True)
    assert compiled.faster_tree() == ""
