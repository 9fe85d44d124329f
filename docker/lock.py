"""Writes the locked dependencies of the container image, with hashes: `lock.py UV [OPTION]...`, which `make lock` runs.

`requirements.txt` is what kcoord needs to run, `requirements-build.txt` is what builds its wheel with native code, and
`requirements-sample.txt` is what the sample clients need. They come from pyproject.toml, and are valid for
every platform and for every Python that kcoord supports.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

DOCKER = Path(__file__).resolve().parent
PYPROJECT = DOCKER.parent / "pyproject.toml"


def runtime_requirements() -> list[str]:
    with open(PYPROJECT, "rb") as file:
        return list(tomllib.load(file)["project"]["dependencies"])


def build_requirements() -> list[str]:
    """The build backend, the compiler, and the packages whose types and modules the compiler reads."""
    with open(PYPROJECT, "rb") as file:
        table = tomllib.load(file)
    return [*table["build-system"]["requires"], *table["dependency-groups"]["compile"], *runtime_requirements()]


def sample_requirements() -> list[str]:
    """The client library of the sample, in the version that the tests use."""
    with open(PYPROJECT, "rb") as file:
        group = tomllib.load(file)["dependency-groups"]["dev"]
    return [line for line in group if isinstance(line, str) and line.startswith("aiokafka")]


def lowest_python() -> str:
    """The lowest Python version that kcoord supports; the lock holds from it on."""
    with open(PYPROJECT, "rb") as file:
        wanted = tomllib.load(file)["project"]["requires-python"]
    return str(wanted.partition(">=")[2].partition(",")[0])


def lock(uv: list[str], requirements: list[str], target: Path) -> None:
    """Resolve `requirements` into `target`. Versions that the file already has stay if they are still allowed."""
    subprocess.run(
        [*uv, "--output-file", target.name, "-"], input="\n".join(requirements), text=True, cwd=DOCKER, check=True
    )
    # uv calls what it reads from a pipe "-".
    lines = [line for line in target.read_text().splitlines() if line.strip() != "# via -r -"]
    target.write_text("\n".join(lines) + "\n")


def main() -> int:
    if len(sys.argv) < 2:
        raise SystemExit("usage: lock.py UV [OPTION]...")
    uv = [
        str(Path(sys.argv[1]).absolute()),
        "pip",
        "compile",
        "--quiet",
        "--universal",
        "--generate-hashes",
        "--no-emit-index-url",
    ]
    uv += ["--no-emit-find-links", "--python-version", lowest_python(), "--custom-compile-command", "make lock"]
    uv += sys.argv[2:]
    runtime = DOCKER / "requirements.txt"
    lock(uv, runtime_requirements(), runtime)
    # The compiler reads the versions that the image runs.
    lock([*uv, "--constraints", runtime.name], build_requirements(), DOCKER / "requirements-build.txt")
    lock(uv, sample_requirements(), DOCKER / "requirements-sample.txt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
