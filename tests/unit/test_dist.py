"""What `make release` refuses, and the pieces of `make dist` that need no build."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHANGES = """# Changelog

Words.

## Unreleased

### Added
- news

## 1.2.0 (2026-11-22)

### Fixed
- a bug

## 1.1.0
"""
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with the tool, a changelog and one commit."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "dist.py", tmp_path / "tools" / "dist.py")
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    (tmp_path / ".gitignore").write_text("dist/\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "a commit")


def dist(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, folder / "tools" / "dist.py", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def archives(folder: Path, *names: str) -> Path:
    out = folder / "dist"
    out.mkdir()
    for name in names:
        (out / name).write_text(name)
    return out


def test_a_commit_without_a_tag_is_not_released(project: Path) -> None:
    done = dist(project, "--release")
    assert done.returncode == 1
    assert "no tag vMAJOR.MINOR.PATCH" in done.stderr


@pytest.mark.parametrize("tag", ["1.2.0", "v1.2", "v1.2.0-hotfix"])
def test_other_tags_are_not_versions(project: Path, tag: str) -> None:
    git(project, "tag", tag)
    assert "no tag vMAJOR.MINOR.PATCH" in dist(project, "--release").stderr


def test_changes_that_are_not_committed_are_not_released(project: Path) -> None:
    git(project, "tag", "v1.2.0")
    (project / "more").write_text("more")
    assert "not committed" in dist(project, "--release").stderr


def test_a_version_needs_its_section_in_the_changelog(project: Path) -> None:
    git(project, "tag", "v1.3.0")
    assert "no section `## 1.3.0`" in dist(project, "--release").stderr


def test_seal_writes_the_changes_of_the_version_and_checksums(project: Path) -> None:
    git(project, "tag", "v1.2.0")
    out = archives(project, "kcoord-1.2.0.tar.gz", "kcoord-1.2.0-py3-none-any.whl", "kcoord-1.2.0-linux-x86_64")
    assert dist(project, "--seal").returncode == 0
    assert (out / "CHANGES.md").read_text() == "### Fixed\n- a bug\n"
    lines = (out / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    assert sorted(sums) == [
        "CHANGES.md",
        "kcoord-1.2.0-linux-x86_64",
        "kcoord-1.2.0-py3-none-any.whl",
        "kcoord-1.2.0.tar.gz",
    ]
    assert sums["kcoord-1.2.0.tar.gz"] == hashlib.sha256(b"kcoord-1.2.0.tar.gz").hexdigest()


def test_seal_refuses_archives_of_another_version(project: Path) -> None:
    git(project, "tag", "v1.2.0")
    archives(project, "kcoord-1.2.0.tar.gz", "kcoord-1.2.0.dev1-py3-none-any.whl", "kcoord-1.1.0-linux-x86_64")
    done = dist(project, "--seal")
    assert done.returncode == 1
    assert "kcoord-1.2.0.dev1-py3-none-any.whl" in done.stderr and "kcoord-1.1.0-linux-x86_64" in done.stderr


def test_the_changelog_has_a_section_that_is_not_released() -> None:
    assert re.search(r"^## Unreleased", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_match_their_schema(path: Path) -> None:
    schema = json.loads((files("check_jsonschema") / "builtin_schemas/vendor/github-workflows.json").read_text())
    document: dict[Any, Any] = yaml.safe_load(path.read_text())
    # YAML 1.1 reads the key `on` as true.
    jsonschema.validate({"on" if key is True else key: value for key, value in document.items()}, schema)
    for job in document["jobs"].values():
        assert job["timeout-minutes"] <= 180


def test_there_are_workflows() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "release.yml"]


def test_every_python_that_the_package_allows_gets_a_compiled_wheel() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    versions = [line.rpartition(" ")[2] for line in table["project"]["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert table["tool"]["cibuildwheel"]["build"].split() == [f"cp{each.replace('.', '')}-*" for each in versions]
