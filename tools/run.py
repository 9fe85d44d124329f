"""`make run`: serve on 127.0.0.1:9092 with ./data, on the compiled tree if it can be built.

Further arguments are passed to `kcoord serve`. An address or folder among them, or in KCOORD_LISTEN and KCOORD_DATA,
overrides the default. KCOORD_INTERPRETED=1 compiles nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def compiled_tree() -> str:
    """The folder to put first in the module path, or an empty string to run the sources."""
    if os.environ.get("KCOORD_INTERPRETED"):
        print("kcoord: running interpreted (KCOORD_INTERPRETED)", file=sys.stderr)
        return ""
    done = subprocess.run([sys.executable, ROOT / "tools" / "compile.py", "--quiet"], stdout=sys.stderr)
    if done.returncode == 0:
        print("kcoord: running compiled", file=sys.stderr)
        return str(ROOT / "build" / "compiled")
    print("kcoord: running interpreted (slower, with the same behaviour)", file=sys.stderr)
    return ""


def defaults(arguments: list[str]) -> list[str]:
    """The address and the folder, unless they are given."""
    found: list[str] = []
    for flag, short, variable, value in (
        ("--listen", "-l", "KCOORD_LISTEN", "127.0.0.1:9092"),
        ("--data", "-d", "KCOORD_DATA", str(ROOT / "data")),
    ):
        given = any(each == short or each.split("=")[0] == flag for each in arguments)
        if not given and variable not in os.environ:
            found += [flag, value]
    return found


def main() -> None:
    environment = dict(os.environ)
    tree = compiled_tree()
    if tree:
        environment["PYTHONPATH"] = tree
    command = [sys.executable, "-P", "-m", "kcoord.cli.main", "serve"]
    command += [*defaults(sys.argv[1:]), *sys.argv[1:]]
    sys.stderr.flush()
    os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    main()
