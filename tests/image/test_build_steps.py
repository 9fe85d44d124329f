"""The container image without a container engine: the steps of its build in empty directories, then its command.

Takes a minute (it compiles a wheel), so `make image` runs it and `make test` does not.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 60.0
CLIENT_SECONDS = 110.0
END_SECONDS = 60.0


def clean_environment() -> dict[str, str]:
    """What a fresh machine would have; pip's own settings stay, as a registry may be configured there.

    So do the settings of `tools/compile.py`: CI's builds share object files.
    """
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "COMPILE_"))}
    return kept | {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


def run_step(source: Path, step: str, *arguments: str | Path, **variables: str) -> str:
    """Run one step of the build as the Dockerfile does; what it printed."""
    command: list[str | Path] = ["sh", source / "docker" / "build-steps.sh", step, *arguments]
    environment = clean_environment() | {"BUILD_PYTHON": sys.executable} | variables
    done = subprocess.run(
        command, cwd=source, env=environment, capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def copy_tracked(names: list[str], target: Path) -> None:
    """Copy these files and folders from the checkout, without what git does not track."""
    command = ["git", "ls-files", "-z", "--", *names]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment of the final image: the Dockerfile's steps, each with only the files that were copied before."""
    folder = tmp_path_factory.mktemp("image")
    source, installed, tools, stage = folder / "src", folder / "opt", folder / "tools", folder / "package"
    copy_tracked(["docker/build-steps.sh", "docker/requirements.txt"], source)
    run_step(source, "dependencies", installed)
    copy_tracked(["docker/requirements-build.txt"], source)
    run_step(source, "tools", tools)
    copy_tracked(["pyproject.toml", "tools", "pyspark_kcoord", "kcoord"], source)
    assert "C files" in run_step(source, "compile", source, tools)
    copy_tracked(["hatch_build.py", "README.md", "LICENSE"], source)
    # The wheel takes the native code as it is: a change of the version or of the README needs no compiler.
    run_step(
        source, "package", source, tools, installed, stage,
        SETUPTOOLS_SCM_PRETEND_VERSION="9.8.7", CC="false",
    )  # fmt: skip
    # COPY --from=package
    shutil.copytree(f"{stage}{installed}", installed, symlinks=True, dirs_exist_ok=True)
    assert "kcoord 9.8.7 (compiled, " in run_step(source, "check", installed)
    return installed


@pytest.fixture
def server(prefix: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The image's command on a free port: (process, host:port)."""
    command: list[str | Path] = [
        prefix / "bin" / "kcoord",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--data",
        tmp_path / "data",
    ]
    log = open(tmp_path / "log", "w")
    process = subprocess.Popen(command, cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE,
                               stderr=log, text=True)  # fmt: skip
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], READY_SECONDS)
        line = process.stdout.readline() if ready else ""
        assert line.startswith("kcoord ready "), line + (tmp_path / "log").read_text()
        yield process, line.split()[2]
    finally:
        process.kill()
        process.wait()
        log.close()


def sample(name: str, address: str) -> str:
    """Run one of the compose file's clients for three records; what it printed."""
    settings = {"BOOTSTRAP": address, "COUNT": "3", "INTERVAL": "0.05", "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-P", ROOT / "docker" / "sample" / name], env=settings,
                          capture_output=True, text=True, timeout=CLIENT_SECONDS, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_image_serves_the_sample_clients_and_stops_cleanly(
    prefix: Path, server: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    process, address = server
    commands: list[list[str | Path]] = [
        [prefix / "bin" / "kcoord", "health", "--bootstrap", address],
        [prefix / "bin" / "python", "-I", "-S", ROOT / "docker" / "health.py", address],
    ]
    for health in commands:
        done = subprocess.run(
            health, env=clean_environment(), capture_output=True, text=True, timeout=END_SECONDS, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "order 2" in sample("producer.py", address)
    assert "order 2" in sample("consumer.py", address)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=END_SECONDS) == 0
    # Nobody was waited for: the deadlines of who stops containers are above that of answers under way.
    log_text = (tmp_path / "log").read_text()
    assert "stopped" in log_text and "not_drained" not in log_text


def test_the_image_has_bytecode_and_no_installer(prefix: Path) -> None:
    """The bytecode is never compared with its source, so that it holds whatever the times of files are."""
    packages = next((prefix / "lib").glob("python3*")) / "site-packages"
    for name in ("kcoord/cli/main.py", "click/core.py", "uvloop/__init__.py"):
        cached = Path(importlib.util.cache_from_source(str(packages / name)))
        # PEP 552: bit 0 for a hash instead of a time, bit 1 for a hash that is compared.
        assert cached.read_bytes()[4:8] == b"\1\0\0\0", name
    distributions = {path.name.partition("-")[0] for path in packages.glob("*.dist-info")}
    assert "kcoord" in distributions
    assert not distributions & {"pip", "setuptools", "wheel", "mypy", "hatchling"}
    assert not (prefix / "bin" / "pip").exists()


def test_the_base_image_loses_its_installer_and_gains_bytecode(tmp_path: Path) -> None:
    """With a Python that is made of a few folders of the one that runs this."""
    library = tmp_path / "lib" / "python3.99"
    standard = Path(json.__file__).parents[1]
    for name in ("json", "ensurepip"):
        shutil.copytree(standard / name, library / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pip", "pip-26.0.dist-info", "setuptools", "setuptools-80.0.dist-info"):
        (library / "site-packages" / name).mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pip3").touch()
    run_step(ROOT, "trim", tmp_path)
    assert list((library / "json" / "__pycache__").glob("decoder.*.pyc"))
    assert not (library / "ensurepip").exists()
    assert not list((library / "site-packages").iterdir())
    assert not list((tmp_path / "bin").iterdir())
