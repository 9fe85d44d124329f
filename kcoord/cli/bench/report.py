"""Results as documents, and documents as tables. Quick to import."""

from __future__ import annotations

from typing import Any, Final

import click

from kcoord import __version__
from kcoord.cli.bench.options import GROUPS, NEWCOMERS, STEADY, Options
from kcoord.cli.bench.results import FORMAT, FORMAT_VERSION, Document
from kcoord.cli.output import Column, emit, table, wrapped

STEADY_HEAD: Final = ["WORKLOAD", "LOAD", "REQ/S", "SPREAD", "P50 MS", "P99 MS", "P99.9 MS", "MB/S"]
GROUP_HEAD: Final = ["WORKLOAD", "MEMBERS", "SECONDS", "SPREAD", "STEP P50 S", "STEP MAX S", "BEAT P99 MS"]
NEWCOMER_HEAD: Final = ["WORKLOAD", "LOAD", "REQ/S", "NEWCOMERS", "IN P50 MS", "IN P99 MS", "IN MAX MS"]
WITH_BYTES: Final = ("produce", "fetch", "transactions")
CSV_KEYS: Final = (
    "workload", "skipped", "connections", "in_flight", "members", "per_second", "spread", "p50_ms", "p99_ms", "p999_ms",
    "megabytes_per_second", "generator_cores", "seconds", "step_p50_s", "step_max_s", "heartbeats", "heartbeat_p99_ms",
    "newcomers", "in_p50_ms", "in_p99_ms", "in_max_ms", "errors",
)  # fmt: skip
COMPARED: Final = [
    Column("workload", "WORKLOAD"), Column("figure", "FIGURE"), Column("a", "A", True), Column("b", "B", True),
    Column("ratio", "A/B", True), Column("ratio_min", "MIN", True), Column("ratio_max", "MAX", True),
    Column("note", "NOTE"),
]  # fmt: skip
# Above this share of its cores the load generator may be what limits the figures.
BUSY: Final = 0.9


def document(bootstrap: str, options: Options, workloads: list[Document], is_complete: bool = True) -> Document:
    """The results of one cluster, as `--output json` and `--save` write them."""
    from datetime import UTC, datetime

    from kcoord.wire.native import is_compiled

    now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "kcoord": __version__,
        "code": "compiled" if is_compiled() else "interpreted",
        "time": f"{now.isoformat()}Z",
        "bootstrap": bootstrap,
        "complete": is_complete,
        "options": options.as_dict(),
        "workloads": workloads,
    }


def has_problems(found: Document) -> bool:
    return any(row["skipped"] or row["errors"] for row in found["workloads"])


def print_results(found: Document, output: str) -> None:
    """Print the results of one cluster as tables, CSV or JSON."""
    if output == "json":
        from kcoord.cli.output import emit_json

        emit_json(found)
        return
    rows: list[Document] = found["workloads"]
    if output == "csv":
        emit([Column(key, key) for key in CSV_KEYS], [{key: row.get(key) for key in CSV_KEYS} for row in rows], "csv")
        return
    parts = [
        (STEADY_HEAD, [row for row in rows if row["workload"] in STEADY], _steady_cells, "llrrrrrr"),
        (GROUP_HEAD, [row for row in rows if row["workload"] in GROUPS], _group_cells, "lrrrrrr"),
        (NEWCOMER_HEAD, [row for row in rows if row["workload"] in NEWCOMERS], _newcomer_cells, "llrrrrr"),
    ]
    for number, (head, some, cells, right) in enumerate(part for part in parts if part[1]):
        if number:
            click.echo()
        _print(head, some, cells, right)
    _print_remarks(found)


def _print(head: list[str], rows: list[Document], cells: Any, right: str) -> None:
    lines = [[row["workload"], *(cells(row) if row["rounds"] else ["-"] * (len(head) - 1))] for row in rows]
    click.echo("\n".join(table(head, lines, right, [_details(row) for row in rows])))


def _steady_cells(row: Document) -> list[str]:
    megabytes = f"{row['megabytes_per_second']:.1f}" if row["workload"] in WITH_BYTES else "-"
    return [
        f"{row['connections']}x{row['in_flight']}", f"{row['per_second']:.0f}", f"{row['spread']:.0%}",
        f"{row['p50_ms']:.3f}", f"{row['p99_ms']:.3f}", f"{row['p999_ms']:.3f}", megabytes,
    ]  # fmt: skip


def _group_cells(row: Document) -> list[str]:
    return [
        str(row["members"]), f"{row['seconds']:.3f}", f"{row['spread']:.0%}", f"{row['step_p50_s']:.3f}",
        f"{row['step_max_s']:.3f}", f"{row['heartbeat_p99_ms']:.3f}" if row["heartbeats"] else "-",
    ]  # fmt: skip


def _newcomer_cells(row: Document) -> list[str]:
    return [
        f"{row['connections']}x{row['in_flight']}", f"{row['per_second']:.0f}",
        str(row["newcomers"]), f"{row['in_p50_ms']:.1f}", f"{row['in_p99_ms']:.1f}", f"{row['in_max_ms']:.1f}",
    ]  # fmt: skip


def _details(row: Document) -> list[str]:
    """The reason why a workload was skipped, and its errors by name."""
    lines: list[str] = []
    if row["skipped"]:
        lines += wrapped(f"skipped: {row['skipped']}", 4, 2)
    if row["errors"]:
        errors = sorted(row["errors"].items(), key=lambda pair: -pair[1])
        lines += wrapped("errors: " + ", ".join(f"{name} {count}" for name, count in errors), 4, 2)
    return lines


def _print_remarks(found: Document) -> None:
    """What a reader of the figures has to know."""
    processes = found["options"]["processes"]
    busy = [
        row["workload"] for row in found["workloads"]
        if row.get("generator_cores", 0) > BUSY * processes
    ]  # fmt: skip
    remarks = []
    if busy:
        remarks.append(
            f"The load generator used its {processes} processes fully with {', '.join(busy)}: the cluster may be "
            "faster. --processes starts more."
        )
    if busy and found["code"] == "interpreted":
        remarks.append("This kcoord runs interpreted code; a compiled one sends several times more.")
    for remark in remarks:
        click.echo("\n" + "\n".join(wrapped(remark)), err=True)
