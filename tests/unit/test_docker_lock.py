"""The locked dependencies of the container image: they satisfy pyproject.toml, and name no place to get them from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ["requirements.txt", "requirements-build.txt", "requirements-sample.txt"]
STALE = "the lock does not fit pyproject.toml: run `make lock`"


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def locked(name: str) -> dict[str, tuple[Requirement, list[str]]]:
    """The requirements of a lock by name, each with its hashes."""
    text = (ROOT / "docker" / name).read_text()
    lines = [line for line in text.splitlines() if not line.strip().startswith("#")]
    found: dict[str, tuple[Requirement, list[str]]] = {}
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        text, *hashes = line.split("--hash=")
        requirement = Requirement(text.strip())
        assert requirement.name not in found, f"{requirement.name} is locked twice: pip would refuse it"
        found[canonicalize_name(requirement.name)] = (requirement, [value.strip() for value in hashes])
    return found


def version_of(requirement: Requirement) -> str:
    (pin,) = requirement.specifier
    assert pin.operator == "==" and "*" not in pin.version, requirement
    return pin.version


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_has_one_version_and_hashes(name: str) -> None:
    found = locked(name)
    assert found
    for requirement, hashes in found.values():
        version_of(requirement)
        assert requirement.url is None
        assert hashes and all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for value in hashes), requirement


@pytest.mark.parametrize("name", LOCKS)
def test_no_index_is_named(name: str) -> None:
    text = (ROOT / "docker" / name).read_text()
    assert "://" not in text
    # Every line is a package, one of its hashes, or a comment.
    for line in text.splitlines():
        assert re.match(r"\s*#|    --hash=sha256:|[a-z0-9-]+==", line), line


def wanted(name: str) -> list[str]:
    table = project()
    runtime: list[str] = table["project"]["dependencies"]
    groups = table["dependency-groups"]
    if name == "requirements.txt":
        return runtime
    if name == "requirements-build.txt":
        return [*table["build-system"]["requires"], *groups["compile"], *runtime]
    return [line for line in groups["dev"] if isinstance(line, str) and line.startswith("aiokafka")]


@pytest.mark.parametrize("name", LOCKS)
def test_the_lock_satisfies_the_project(name: str) -> None:
    found = locked(name)
    for text in wanted(name):
        requirement = Requirement(text)
        assert canonicalize_name(requirement.name) in found, f"{STALE} ({text})"
        version = version_of(found[canonicalize_name(requirement.name)][0])
        assert requirement.specifier.contains(version, prereleases=True), f"{STALE} ({text}, {version})"


def test_the_compiler_reads_the_versions_that_the_image_runs() -> None:
    build = locked("requirements-build.txt")
    for name, (requirement, hashes) in locked("requirements.txt").items():
        assert (build[name][0].specifier, build[name][1]) == (requirement.specifier, hashes)


def test_the_image_gets_no_more_than_kcoord_needs() -> None:
    """None of the dependencies has one of its own today; whoever changes that reviews what it brings."""
    names = {canonicalize_name(Requirement(text).name) for text in project()["project"]["dependencies"]}
    assert set(locked("requirements.txt")) == names
