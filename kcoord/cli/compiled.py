"""Detects whether the hot modules are native code, and restarts long work of a checkout with native code.

An installed kcoord is either compiled or interpreted. A checkout runs from its sources and may have a compiled copy in
`build/compiled`. The copy is used only if it was built from the same sources.
"""

from __future__ import annotations

import filecmp
import os
import sys
from pathlib import Path
from typing import Final

import kcoord

# The folders whose code long work uses.
FOLDERS: Final = ("wire", "protocol", "core", "engine", "log", "cli")
TREE: Final = "build/compiled"
# The names of the command's program, as opposed to a test that calls the command.
COMMANDS: Final = ("kcoord", "main.py")


def is_compiled() -> bool:
    from kcoord.wire import native

    return native.is_compiled()


def compiled_tree(root: Path) -> str:
    """The compiled copy of the sources at `root`; empty if there is none, or if it has other sources."""
    tree = root / TREE
    if not tree.is_dir() or not any(tree.glob("*.so")):
        return ""
    for folder in FOLDERS:
        ours = {path.relative_to(root) for path in (root / "kcoord" / folder).rglob("*.py")}
        theirs = {path.relative_to(tree) for path in (tree / "kcoord" / folder).rglob("*.py")}
        if ours != theirs or not all(filecmp.cmp(root / path, tree / path, shallow=False) for path in ours):
            return ""
    return str(tree)


def faster_tree() -> str:
    """The tree with native code for `begin_again`, if this process is interpreted; else empty."""
    if is_compiled() or os.environ.get("KCOORD_INTERPRETED") or os.path.basename(sys.argv[0]) not in COMMANDS:
        return ""
    return compiled_tree(Path(kcoord.__file__).resolve().parent.parent)


def begin_again(tree: str) -> None:
    """Replace this process by the same command with the code in `tree`."""
    path = os.pathsep.join(filter(None, (tree, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-P", "-m", "kcoord.cli.main", *sys.argv[1:]]
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": path})
