"""tools/compile.py without a compiler: when it compiles, and what builds in other folders share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import compile as tool

LIBRARY = "kcoord/wire/crc.cpython-311-x86_64-linux-gnu.so"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The optimization levels of the builds that compiled; each made one library."""
    levels: list[str] = []

    def build(target: Path, modules: list[str], opt_level: str, jobs: int) -> int:
        levels.append(opt_level)
        (target / LIBRARY).write_text(f"native code {opt_level}")
        return len(modules)

    monkeypatch.setattr(tool, "native_build", build)
    monkeypatch.delenv("COMPILE_OBJECTS", raising=False)
    return levels


def test_a_tree_that_is_up_to_date_is_kept(compiled: list[str], tmp_path: Path) -> None:
    assert tool.build(tmp_path / "a", "2", 1, quiet=True)
    assert not tool.build(tmp_path / "a", "2", 1, quiet=True)
    assert tool.is_current(tmp_path / "a", "2")
    assert compiled == ["2"]
    tool.build(tmp_path / "a", "0", 1, quiet=True)
    assert compiled == ["2", "0"]


def test_builds_in_other_folders_share_libraries(
    compiled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPILE_OBJECTS", str(tmp_path / "shared"))
    tool.build(tmp_path / "a", "2", 1, quiet=True)
    tool.build(tmp_path / "b", "2", 1, quiet=True)
    assert compiled == ["2"]
    assert (tmp_path / "b" / "compiled" / LIBRARY).read_text() == "native code 2"
    assert (tmp_path / "b" / "compiled" / "kcoord" / "wire" / "crc.py").is_file()
    tool.build(tmp_path / "c", "0", 1, quiet=True)
    assert compiled == ["2", "0"]
    assert (tmp_path / "c" / "compiled" / LIBRARY).read_text() == "native code 0"


def test_without_a_shared_folder_every_folder_compiles(compiled: list[str], tmp_path: Path) -> None:
    tool.build(tmp_path / "a", "2", 1, quiet=True)
    tool.build(tmp_path / "b", "2", 1, quiet=True)
    assert compiled == ["2", "2"]


def test_every_folder_with_compiled_modules_counts_for_the_fingerprint() -> None:
    folders = {name.split("/")[1] for name in tool.hot_modules()}
    assert folders <= set(tool.NATIVE_FOLDERS)
