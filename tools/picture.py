"""Draw the packages and who imports whom in ARCHITECTURE.md, from the imports themselves.

The drawings stand between `<!-- picture NAME -->` and `<!-- end of picture -->`. An arrow points from a package to one
that it imports. An import that a longer way already shows gets no arrow of its own.

Exit codes: 0 drawn, or with --check up to date; 1 with --check when ARCHITECTURE.md shows something else.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ARCHITECTURE = Path(__file__).resolve().parent.parent / "ARCHITECTURE.md"
FRAME = re.compile(r"(<!-- picture (\w+) -->\n).*?(<!-- end of picture -->)", re.DOTALL)
# Modules that all of the core uses: types and tables.
CORE_BASE = ("choices", "cause", "config", "hashing", "outcome")

Edges = dict[str, set[str]]


def package(module: str) -> str | None:
    """The top package of a module: `engine`, `core`."""
    parts = module.split(".")
    return parts[1] if parts[0] == "kcoord" and len(parts) > 1 and parts[1] != "codegen" else None


def part_of(top: str, packages: set[str]) -> Callable[[str], str | None]:
    """Names the package of a module within one of the top packages; modules beside them go by their own names."""

    def name(module: str) -> str | None:
        parts = module.split(".")
        if parts[:2] != ["kcoord", top] or len(parts) < 3 or parts[2] in CORE_BASE:
            return None
        return f"{parts[2]}/" if parts[2] in packages else parts[2]

    return name


def edges_of(graph: grimp.ImportGraph, name: Callable[[str], str | None]) -> Edges:
    edges: Edges = {}
    for module in graph.modules:
        importer = name(module)
        if importer is None:
            continue
        edges.setdefault(importer, set())
        for imported in graph.find_modules_directly_imported_by(module):
            target = name(imported)
            if target is not None and target != importer:
                edges[importer].add(target)
    return edges


def reachable(edges: Edges, start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for target in edges.get(waiting.pop(), ()):
            if target not in found:
                found.add(target)
                waiting.append(target)
    return found


def drawing(edges: Edges) -> str:
    """The edges as a Mermaid flow chart. Raises graphlib.CycleError for packages that import each other."""
    # Sorted throughout: the same imports give the same drawing.
    order = list(TopologicalSorter({name: sorted(edges[name]) for name in sorted(edges)}).static_order())
    lines = ["```mermaid", "flowchart TD"]
    for importer in reversed(order):
        targets = edges.get(importer, set())
        further = set().union(*(reachable(edges, target) for target in targets))
        for target in sorted(targets - further):
            lines.append(f'    {_node(importer)}["{importer}"] --> {_node(target)}["{target}"]')
    return "\n".join([*lines, "```", ""])


def _node(name: str) -> str:
    """`end` and slashes mean something in Mermaid."""
    return "n_" + name.strip("/")


def drawings() -> dict[str, str]:
    graph = grimp.build_graph("kcoord", cache_dir=None)
    names: dict[str, Callable[[str], str | None]] = {"packages": package}
    for top in ("core", "server", "spark"):
        children = graph.find_children(f"kcoord.{top}")
        packages = {child.split(".")[-1] for child in children if graph.find_children(child)}
        names[top] = part_of(top, packages)
    wanted = FRAME.findall(ARCHITECTURE.read_text(encoding="utf-8"))
    return {title: drawing(edges_of(graph, names[title])) for _, title, _ in wanted}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, and exit with 1 if a drawing is old")
    args = parser.parse_args()
    found = drawings()
    text = ARCHITECTURE.read_text(encoding="utf-8")
    drawn = FRAME.sub(lambda frame: frame[1] + found[frame[2]] + frame[3], text)
    if args.check:
        if drawn != text:
            print("ARCHITECTURE.md shows other imports than there are: run `make picture`", file=sys.stderr)
            return 1
        return 0
    ARCHITECTURE.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
