"""Build hook for wheels: pure Python by default, with native hot modules when KCOORD_COMPILE=1 is set.

Both wheels hold the same sources; the compiled one holds the libraries beside them and is tagged for its
Python and platform. Its native code contains mypyc's C runtime, so it also has the licence of mypyc and a bill of
materials (PEP 770).
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def wants_native() -> bool:
    return os.environ.get("KCOORD_COMPILE", "") not in ("", "0")


class CompileHook(BuildHookInterface):  # type: ignore[misc, type-arg, unused-ignore]
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What the build needs beyond hatchling: the pinned compiler and what the modules import."""
        if not wants_native():
            return []
        return [*self.metadata.config["dependency-groups"]["compile"], *self.metadata.core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not wants_native():
            return
        root = Path(self.root)
        out = root / "build" / "wheel"
        done = subprocess.run([sys.executable, root / "tools" / "compile.py", "--out", out])
        if done.returncode:
            raise SystemExit("KCOORD_COMPILE is set, but the hot modules could not be compiled")
        tree = out / "compiled"
        for library in sorted([*tree.rglob("*.so"), *tree.rglob("*.pyd")]):
            build_data["force_include"][str(library)] = library.relative_to(tree).as_posix()
        build_data["force_include"][str(mypyc_licence())] = "kcoord/licences/mypyc.txt"
        bill = out / "mypyc.cdx.json"
        bill.write_text(bill_of_materials())
        build_data["sbom_files"].append(bill.relative_to(root).as_posix())
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def mypyc_licence() -> Path:
    files = importlib.metadata.files("mypy") or []
    for file in files:
        if file.name == "LICENSE" and file.parent.name == "licenses":
            return Path(str(file.locate()))
    raise SystemExit("the installed mypy has no licence file, which a compiled wheel must contain")


def bill_of_materials() -> str:
    """What the native code contains that is not kcoord's own, as CycloneDX."""
    version = importlib.metadata.version("mypy")
    runtime = {
        "type": "library",
        "name": "mypyc",
        "version": version,
        "purl": f"pkg:pypi/mypy@{version}",
        "description": "the C runtime that mypyc links into its output",
        "licenses": [{"license": {"id": "MIT"}}, {"license": {"id": "PSF-2.0"}}],
    }
    return json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": [runtime]}, indent=1)
