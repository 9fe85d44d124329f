"""The container image without a container engine: its build script in an empty directory, then its command.

Takes a minute (it compiles a wheel), so `make image` runs it and `make test` does not.
"""

from __future__ import annotations

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

    So does the folder of object files, which CI shares between its builds.
    """
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name == "COMPILE_OBJECTS"}
    return kept | {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment that the build stage leaves behind, made from the tracked files alone."""
    folder = tmp_path_factory.mktemp("image")
    source = folder / "src"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    installed = folder / "opt"
    command: list[str | Path] = ["sh", source / "docker" / "build-steps.sh", source, installed, sys.executable]
    done = subprocess.run(
        command, cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
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
    health: list[str | Path] = [prefix / "bin" / "kcoord", "health", "--bootstrap", address]
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
