"""Ratios of two results with their spread. Quick to import."""

from __future__ import annotations

from typing import Any

from kcoord.cli.bench.results import Document, figures_of, median


def ratios(first: list[float], second: list[float], paired: bool) -> list[float]:
    """The ratios of rounds: of each pair if the rounds were interleaved, otherwise of each with each."""
    if paired:
        return [a / b for a, b in zip(first, second, strict=False) if b]
    return [a / b for a in first for b in second if b]


def compare(first: Document, second: Document, paired: bool) -> list[dict[str, Any]]:
    """One row for each figure of each workload that either has. `ratio` is the median of first / second."""
    others = {row["workload"]: row for row in second["workloads"]}
    mine = [row["workload"] for row in first["workloads"]]
    rows: list[dict[str, Any]] = []
    for row in first["workloads"]:
        other = others.get(row["workload"])
        reasons = [f"{side}: {one['skipped']}" for side, one in (("A", row), ("B", other)) if one and one["skipped"]]
        if other is None:
            reasons = ["B: not measured"]
        if reasons or other is None:
            rows.append(_row(row["workload"], note="; ".join(reasons)))
            continue
        for key, name, digits in figures_of(row):
            a = [one[key] for one in row["rounds"]]
            b = [one[key] for one in other["rounds"]]
            found = ratios(a, b, paired)
            rows.append(
                _row(
                    row["workload"], name, round(median(a), digits), round(median(b), digits),
                    [median(found), min(found), max(found)] if found else None, _errors(row, other),
                )
            )  # fmt: skip
    rows += [_row(name, note="A: not measured") for name in others if name not in mine]
    return rows


def _row(
    workload: str, figure: str = "", a: float | None = None, b: float | None = None,
    ratio: list[float] | None = None, note: str = "",
) -> dict[str, Any]:  # fmt: skip
    middle, least, most = [round(one, 3) for one in ratio] if ratio else [None, None, None]
    return {
        "workload": workload, "figure": figure, "a": a, "b": b, "ratio": middle, "ratio_min": least,
        "ratio_max": most, "note": note,
    }  # fmt: skip


def _errors(row: Document, other: Document) -> str:
    """The errors of both sides in one line, empty without any."""
    found = []
    for side, one in (("A", row), ("B", other)):
        if one["errors"]:
            found.append(f"{side}: " + ", ".join(f"{name} {count}" for name, count in sorted(one["errors"].items())))
    return "; ".join(found)
