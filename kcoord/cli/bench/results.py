"""What was measured, as a document: the input of tables, of files and of comparisons. Quick to import."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any, Final

from kcoord.cli.bench.options import GROUPS, NEWCOMERS

FORMAT: Final = "kcoord-bench"
FORMAT_VERSION: Final = 1
# (key in rounds, its name in tables, digits after the point) of what is compared.
STEADY_FIGURES: Final = (("per_second", "req/s", 0), ("p50_ms", "p50 ms", 3), ("p99_ms", "p99 ms", 3))
NEWCOMER_FIGURES: Final = (("in_p50_ms", "in p50 ms", 3), ("in_p99_ms", "in p99 ms", 3), ("per_second", "req/s", 0))
GROUP_FIGURES: Final = (("seconds", "seconds", 3), ("step_p50_s", "step p50 s", 3))

Document = dict[str, Any]


class NoResults(ValueError):
    """A file has no results of `kcoord bench`."""


def percentile(values: list[float], share: float) -> float:
    """The smallest value that `share` of all do not exceed, by the nearest rank. 0 for an empty list."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    rank = -int(-share * len(ordered) // 1)
    return ordered[max(min(rank, len(ordered)), 1) - 1]


def median(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0


def spread(values: list[float]) -> float:
    """Half of the distance between the largest and the smallest value, as a share of the median."""
    middle = median(values)
    return (max(values) - min(values)) / 2 / middle if middle else 0.0


def figures_of(row: Document) -> tuple[tuple[str, str, int], ...]:
    if row["workload"] in NEWCOMERS:
        return NEWCOMER_FIGURES
    return GROUP_FIGURES if row["workload"] in GROUPS else STEADY_FIGURES


def load(path: str) -> Document:
    """The document of a file. Raises NoResults or OSError."""
    try:
        found = json.loads(Path(path).read_text())
    except (json.JSONDecodeError, UnicodeDecodeError):
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise NoResults(f"{path} is no file of `kcoord bench --save`")
    if found.get("version") != FORMAT_VERSION:
        raise NoResults(f"{path} was written by another version of kcoord bench")
    return found


def save(path: str, document: Document) -> None:
    """Raises OSError."""
    Path(path).write_text(json.dumps(document, indent=1) + "\n")
