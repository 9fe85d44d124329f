"""Create a virtual environment: `make_env.py FOLDER run|dev|release|docs|profile|compare`.

It uses only the standard library.

`run` installs the package and, if there is a C compiler, the tools to compile it; `dev` installs everything that the
checks need; `release`, `docs` and `profile` install a dependency group of that name, without the package.
`compare` prints a target for make if the environment has another Python than the one that runs this.
A stamp file in the environment tells make that this is done; a change of pyproject.toml repeats it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Environments of tools that the package does not share: their dependencies are many.
TOOLS = ("release", "docs", "profile")


def python_of(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def can_compile() -> bool:
    """Whether mypyc's output could be compiled here: a C compiler and Python's headers."""
    compiler = any(shutil.which(name) for name in ("cc", "gcc", "clang"))
    return compiler and Path(sysconfig.get_path("include"), "Python.h").is_file()


IDENTITY = "import sys; print(sys.base_prefix, sys.version)"


def has_this_python(folder: Path) -> bool:
    """Whether the environment was made with the interpreter that runs this."""
    done = subprocess.run([python_of(folder), "-c", IDENTITY], capture_output=True, text=True)
    return done.stdout.strip() == f"{sys.base_prefix} {sys.version}".strip()


def make(folder: Path) -> None:
    """Create the environment unless a working one with this interpreter exists."""
    python = python_of(folder)
    if (
        python.exists()
        and has_this_python(folder)
        and subprocess.run([python, "-c", "import pip"], capture_output=True).returncode == 0
    ):
        return
    print(f"setup: creating {folder} with Python {sys.version.split()[0]}", flush=True)
    done = subprocess.run([sys.executable, "-m", "venv", "--clear", folder])
    if done.returncode:
        raise SystemExit(
            "setup: this Python cannot create virtual environments (on Debian and Ubuntu they need a package of "
            "their own: python3-venv)"
        )


def install(folder: Path, kind: str) -> None:
    pip = [str(python_of(folder)), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    print(f"setup: installing ({kind})", flush=True)
    # Dependency groups need pip 25.1.
    subprocess.run([*pip, "install", "--upgrade", "pip>=25.1"], check=True, cwd=ROOT)
    if kind in TOOLS:
        subprocess.run([*pip, "install", "--group", kind], check=True, cwd=ROOT)
        return
    groups: list[str] = []
    package = "."
    if kind == "dev":
        groups, package = ["--group", "dev"], ".[spark]"
    elif can_compile():
        groups = ["--group", "compile"]
    subprocess.run([*pip, "install", *groups, "--editable", package], check=True, cwd=ROOT)


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[2] not in ("run", "dev", *TOOLS, "compare"):
        raise SystemExit("usage: make_env.py FOLDER run|dev|release|docs|profile|compare")
    if sys.argv[2] == "compare":
        folder = Path(sys.argv[1])
        if python_of(folder).exists() and not has_this_python(folder):
            print("other-python")
        return 0
    if not (3, 11) <= sys.version_info[:2] < (3, 15):
        raise SystemExit(f"setup: Python 3.11 to 3.14 is required, this is {sys.version.split()[0]}")
    folder, kind = Path(sys.argv[1]).absolute(), sys.argv[2]
    make(folder)
    try:
        install(folder, kind)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"setup: pip failed ({error.returncode})") from None
    for stamp in ("run", "dev") if kind == "dev" else (kind,):
        (folder / f".kcoord-{stamp}").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
