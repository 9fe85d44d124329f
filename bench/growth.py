"""`make bench-growth`: how the cost of requests grows with groups, members and offsets.

    python -m bench.growth [--only FAMILY] [--sizes N ...] [--output json] [--plots DIR]

One quantity grows, and the others stay as they are. A figure is microseconds of CPU time of the engine alone, without
sockets and files, as in `bench.in_process`: for one request, or for an operation of a whole group divided by its
members. So a request that costs the same at any size has a flat line, and an operation of n log n one that rises with
the logarithm. `growth` is the exponent of the size between the last two sizes: 0.0 is flat, 1.0 would make an operation
of a whole group quadratic. Figures above GROWTH_MAX are marked.

The best of several rounds counts. `--plots` draws the figures, and `--read FILE` shows those of an earlier run with
`--output json`.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
from pathlib import Path
from typing import Any, Final

from bench import growth_plots
from bench.growth_families import FAMILIES, Effort
from kcoord.core import coordinator
from kcoord.server.main import GC_THRESHOLDS

# Engines of each size. Each gives a figure of every kind.
ENGINES: Final = 3
# The exponent of a line that rises with a logarithm is below 0.2 at these sizes. With what caches do, it may be above.
GROWTH_MAX: Final = 0.3
NAME_WIDTH: Final = 36
CELL_WIDTH: Final = 9

# {"tree": "compiled", "families": {family: {figure: {size: microseconds}}}}
Results = dict[str, Any]
Figures = dict[str, dict[int, float]]


def note(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def tree() -> str:
    """Which of the two runs: compiled or interpreted."""
    return "interpreted" if str(coordinator.__file__).endswith(".py") else "compiled"


def measure(families: list[str], sizes: list[int], engines: int, effort: Effort) -> Results:
    gc.set_threshold(*GC_THRESHOLDS)
    results: Results = {"tree": tree(), "families": {}}
    for name in families:
        family = FAMILIES[name]
        figures: Figures = {}
        for size in sizes or family.sizes:
            for number in range(engines):
                note(f"{name}: {size:,} {family.quantity}, {number + 1} of {engines}")
                for figure, cost_us in family.measure(size, effort).items():
                    of_figure = figures.setdefault(figure, {})
                    of_figure[size] = min(cost_us, of_figure.get(size, math.inf))
        results["families"][name] = figures
    return results


def growth(costs: dict[int, float]) -> float:
    """The exponent of the size by which the cost grows between the last two sizes; 0 if there is only one."""
    sizes = sorted(costs)
    if len(sizes) < 2:
        return 0.0
    before, last = sizes[-2:]
    return math.log(costs[last] / costs[before]) / math.log(last / before)


def is_steep(costs: dict[int, float]) -> bool:
    return growth(costs) > GROWTH_MAX


def cost_text(cost_us: float) -> str:
    return f"{cost_us:,.0f}" if cost_us >= 100 else f"{cost_us:.3g}"


def print_tables(results: Results) -> None:
    print(f"µs of CPU ({results['tree']})")
    for name, figures in results["families"].items():
        sizes = sorted({size for costs in figures.values() for size in costs})
        quantity = FAMILIES[name].quantity
        print(
            f"\n{f'{name}: {quantity}':<{NAME_WIDTH}}"
            + "".join(f"{size:>{CELL_WIDTH},}" for size in sizes)
            + "  growth"
        )
        for figure, costs in figures.items():
            cells = "".join(f"{cost_text(costs[size]) if size in costs else '':>{CELL_WIDTH}}" for size in sizes)
            mark = " steep" if is_steep(costs) else ""
            print(f"{figure:<{NAME_WIDTH}}{cells}  {growth(costs):>6.2f}{mark}")


def read(path: Path) -> Results:
    """The results of an earlier run. JSON has only texts as keys."""
    results: Results = json.loads(path.read_text("utf-8"))
    for figures in results["families"].values():
        for name, costs in figures.items():
            figures[name] = {int(size): cost_us for size, cost_us in costs.items()}
    return results


def arguments_of(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=tuple(FAMILIES), action="append", help="measure this family, or several")
    parser.add_argument("--sizes", type=int, nargs="+", default=[], help="other sizes than those of the families")
    parser.add_argument("--engines", type=int, default=ENGINES, help="engines of each size")
    parser.add_argument("--requests", type=int, default=Effort.requests, help="requests of a round")
    parser.add_argument("--rounds", type=int, default=Effort.rounds, help="rounds of requests with an engine")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write SVG files into this folder")
    parser.add_argument("--read", type=Path, metavar="FILE", help="measure nothing, but show what --output json wrote")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    args = arguments_of(words)
    if args.read is not None:
        results = read(args.read)
    else:
        families = args.only or list(FAMILIES)
        results = measure(families, args.sizes, args.engines, Effort(args.requests, args.rounds))
    if args.plots is not None:
        for path in growth_plots.write(results, args.plots):
            note(f"wrote {path}")
    if args.output == "json":
        print(json.dumps(results, indent=2))
    else:
        print_tables(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
