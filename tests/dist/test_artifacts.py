"""What `make dist` has built: each archive installed into an empty environment, and used there.

`make test-dist` runs it, after `make dist`. A missing archive is a failure.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
INSTALL_SECONDS = 600.0
RUN_SECONDS = 120.0
DEPENDENCIES = {"click", "cramjam", "crc32c", "google-re2", "librt", "mypy-extensions", "uvloop", "xxhash"}
RELATIVE_LINK = re.compile(r"\]\((?!https?:|#)[^)]*\)")
PLUGIN_TEST = """
def test_server(kcoord):
    assert kcoord.bootstrap.startswith("127.0.0.1:")
"""


def only(pattern: str) -> Path:
    found = sorted(DIST.glob(pattern))
    assert len(found) == 1, f"{pattern} in dist/: {[path.name for path in found]}"
    return found[0]


def pure() -> Path:
    return only("*-py3-none-any.whl")


def compiled() -> Path:
    return only(f"*-cp3{sys.version_info[1]}-*.whl")


def sdist() -> Path:
    return only("*.tar.gz")


def environment() -> dict[str, str]:
    """An empty environment, with the settings of pip that say where packages come from."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
    return kept | {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


def run(*command: str | Path, folder: Path, seconds: float = RUN_SECONDS) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def installed(archive: Path, folder: Path, *others: str) -> Path:
    """An environment with only this archive and what it depends on; its interpreter."""
    run(sys.executable, "-m", "venv", folder / "env", folder=folder)
    python = folder / "env" / "bin" / "python"
    run(python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", archive, *others,
        folder=folder, seconds=INSTALL_SECONDS)  # fmt: skip
    return python


def version() -> str:
    return sdist().name.removeprefix("kcoord-").removesuffix(".tar.gz")


def smoke(python: Path, kind: str, folder: Path) -> None:
    report = json.loads(run(python, "-P", ROOT / "tools" / "smoke.py", "--expect", kind, folder=folder))
    assert report == {"version": version(), "code": kind, "records": 10, "committed": 10}


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_pure_wheel_serves_and_brings_the_fixture(tmp_path: Path) -> None:
    assert not [name for name in names(pure()) if name.endswith((".so", ".pyd"))]
    python = installed(pure(), tmp_path, "pytest")
    smoke(python, "pure", tmp_path)
    (tmp_path / "test_plugin.py").write_text(PLUGIN_TEST)
    assert "1 passed" in run(python, "-P", "-m", "pytest", "-q", "test_plugin.py", folder=tmp_path)


def test_the_compiled_wheel_serves(tmp_path: Path) -> None:
    smoke(installed(compiled(), tmp_path), "compiled", tmp_path)


def test_the_compiled_wheel_runs_on_other_distributions_and_names_what_it_contains() -> None:
    wheel = compiled()
    if sys.platform == "linux":
        assert re.search(r"manylinux_2_\d+_|musllinux_", wheel.name), wheel.name
    inside = names(wheel)
    # The bill of materials of PEP 770, and the licence of the runtime in the native code.
    assert any(re.search(r"\.dist-info/sboms/mypyc\.cdx\.json$", name) for name in inside)
    with zipfile.ZipFile(wheel) as archive:
        assert "MIT License" in archive.read("kcoord/licences/mypyc.txt").decode()


def test_the_sdist_installs_without_a_compiler(tmp_path: Path) -> None:
    smoke(installed(sdist(), tmp_path), "pure", tmp_path)


def test_the_sdist_has_every_tracked_file(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    with tarfile.open(sdist()) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    assert set(filter(None, listed.stdout.split("\0"))) - inside == set()
    # Its tests are complete: some of them, run on the unpacked sources.
    unpacked = tmp_path / f"kcoord-{version()}"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "tests/unit/wire", "tests/unit/test_dist.py"],
        cwd=unpacked, env=os.environ | {"PYTHONPATH": str(unpacked)}, capture_output=True, text=True,
        timeout=RUN_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("archive", [pure, compiled], ids=["pure", "compiled"])
def test_the_description_has_no_link_that_an_index_cannot_follow(archive: object) -> None:
    wheel = pure() if archive is pure else compiled()
    (metadata,) = [name for name in names(wheel) if name.endswith(".dist-info/METADATA")]
    with zipfile.ZipFile(wheel) as opened:
        text = opened.read(metadata).decode()
    assert "Project-URL: Documentation, https://" in text
    assert "# kcoord" in text
    assert RELATIVE_LINK.findall(text) == []


def test_the_bill_of_materials_lists_the_dependencies_and_not_where_they_came_from() -> None:
    text = only(f"kcoord-{version()}.cdx.json").read_text()
    parts = {part["name"].replace("_", "-"): part for part in json.loads(text)["components"]}
    assert parts.keys() >= DEPENDENCIES | {"kcoord"}
    assert all(part["version"] for part in parts.values())
    assert "file:" not in text and str(Path.home()) not in text


def test_the_checksums_are_those_of_the_files() -> None:
    lines = (DIST / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    assert sums.keys() == {path.name for path in DIST.iterdir()} - {"SHA256SUMS"}
    for name, digest in sums.items():
        assert hashlib.sha256((DIST / name).read_bytes()).hexdigest() == digest, name


def test_the_changes_are_there() -> None:
    assert "### Added" in (DIST / "CHANGES.md").read_text()
