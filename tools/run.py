"""`make run` and `make run-compiled`: serve on 127.0.0.1:9092 with ./data.

    run.py [--compile] [ARGUMENTS OF kcoord serve]

With --compile, the hot modules become native code first, which takes minutes. Without it, the server starts at once: on
the compiled tree if that is up to date, otherwise interpreted. An address or folder among the arguments, or in
KCOORD_LISTEN and KCOORD_DATA, overrides the default. KCOORD_INTERPRETED=1 runs the sources in any case.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPILE = ROOT / "tools" / "compile.py"


def say(text: str) -> None:
    print(f"kcoord: {text}", file=sys.stderr, flush=True)


def compiled_tree(wants_compiled: bool) -> str:
    """The folder to put first in the module path, or an empty string to run the sources."""
    if os.environ.get("KCOORD_INTERPRETED"):
        say("running interpreted (KCOORD_INTERPRETED)")
        return ""
    flag = "--quiet" if wants_compiled else "--check"
    done = subprocess.run([sys.executable, COMPILE, flag], stdout=sys.stderr)
    if done.returncode == 0:
        say("running compiled")
        return str(ROOT / "build" / "compiled")
    hint = "" if wants_compiled else "; `make run-compiled` compiles it first, which takes minutes and makes it faster"
    say(f"running interpreted{hint}")
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
    arguments = sys.argv[1:]
    wants_compiled = arguments[:1] == ["--compile"]
    if wants_compiled:
        del arguments[0]
    environment = dict(os.environ)
    tree = compiled_tree(wants_compiled)
    if tree:
        environment["PYTHONPATH"] = tree
    command = [sys.executable, "-P", "-m", "kcoord.cli.main", "serve"]
    command += [*defaults(arguments), *arguments]
    sys.stderr.flush()
    os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    main()
