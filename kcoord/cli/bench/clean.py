"""`kcoord bench clean`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from kcoord.cli.bench.options import PREFIX
from kcoord.cli.online.run import EXIT_PROBLEMS, cluster_options, execute_option, friendly, online, warn
from kcoord.cli.options import output_option
from kcoord.cli.output import Column, emit

if TYPE_CHECKING:
    from kcoord.client.admin.admin import Admin
    from kcoord.client.errors import KafkaError

COLUMNS: Final = [Column("kind", "KIND"), Column("name", "NAME"), Column("result", "RESULT")]


@click.command(short_help="Remove what a killed benchmark has left.")
@cluster_options
@execute_option
@output_option
@friendly
def clean(bootstrap: str, timeout: float, execute: bool, output: str) -> None:
    """Remove the topics and groups that a killed benchmark has left behind.

    Their names begin with kcoord-bench-. Do not run this during a benchmark. Without --execute it only lists them. It
    cannot remove a group before the sessions of its members have expired.

    \b
    Example:
      kcoord bench clean -b broker:9092 --execute
    """

    async def work(admin: Admin) -> list[dict[str, Any]]:
        topics = [one.name for one in await admin.list_topics() if one.name.startswith(PREFIX)]
        groups = [one.group_id for one in await admin.list_groups() if one.group_id.startswith(PREFIX)]
        results: dict[tuple[str, str], KafkaError | None] = {}
        if execute and groups:
            removed = await admin.delete_groups(*groups)
            results.update({("group", name): problem for name, problem in removed.items()})
        if execute and topics:
            removed = await admin.delete_topics(*topics)
            results.update({("topic", name): problem for name, problem in removed.items()})
        return [
            _row(kind, name, execute, results)
            for kind, names in (("group", groups), ("topic", topics))
            for name in names
        ]

    rows = online(bootstrap, timeout, work)
    emit(COLUMNS, rows, output)
    if not execute and rows:
        warn("dry run: add --execute to remove them")
    sys.exit(EXIT_PROBLEMS if any(row["result"] not in ("removed", "would be removed") for row in rows) else 0)


def _row(
    kind: str, name: str, execute: bool, results: dict[tuple[str, str], KafkaError | None]
) -> dict[str, Any]:  # fmt: skip
    problem = results.get((kind, name))
    done = "removed" if execute else "would be removed"
    return {"kind": kind, "name": name, "result": str(problem) if problem is not None else done}
