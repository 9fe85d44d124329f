"""`python -m kcoord.codegen write|check`: make kcoord/protocol from schemas/, or fail on any difference."""

from __future__ import annotations

import sys
from pathlib import Path

from kcoord.codegen.generate import generate_all
from kcoord.codegen.schema import SchemaError

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str]) -> int:
    if arguments not in (["write"], ["check"]):
        print("usage: python -m kcoord.codegen write|check", file=sys.stderr)
        return 2
    try:
        files = generate_all(ROOT / "schemas")
    except SchemaError as error:
        print(f"schema error: {error}", file=sys.stderr)
        return 1
    target = ROOT / "kcoord" / "protocol"
    present = {str(p.relative_to(target)) for p in target.rglob("*.py")}
    stale = sorted(present - set(files))
    changed = sorted(n for n, t in files.items() if n not in present or (target / n).read_text("utf-8") != t)
    if arguments == ["check"]:
        for name in changed + stale:
            print(f"kcoord/protocol/{name} differs from the schemas; run `make gen`", file=sys.stderr)
        return 1 if changed or stale else 0
    for name in changed:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(files[name], "utf-8")
    for name in stale:
        (target / name).unlink()
    print(f"{len(files)} modules, {len(changed)} written, {len(stale)} removed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
