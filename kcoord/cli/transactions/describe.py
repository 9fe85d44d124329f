"""`kcoord transactions describe`: the state of one transactional id."""

from __future__ import annotations

import time

import click

from kcoord.cli.online.run import cluster_options, output_option
from kcoord.cli.output import Column, emit, emit_json, format_time, say
from kcoord.cli.transactions.cluster import Cluster
from kcoord.cli.transactions.common import duration_text, friendly
from kcoord.cli.transactions.hanging import describe_with_coordinator


@click.command()
@cluster_options
@click.option("--transactional-id", "-i", required=True, metavar="ID", help="The transactional id.")
@output_option
@friendly
def describe(bootstrap: str, timeout: float, transactional_id: str, output: str) -> None:
    """Print the coordinator, producer, state, timeout, start and partitions of a transactional id.

    While a transaction is ending, it prints only the partitions that may still lack their marker.

    \b
    Example:
      kcoord transactions describe --transactional-id billing-1
    """
    with Cluster(bootstrap, timeout) as cluster:
        coordinator, state = describe_with_coordinator(cluster, transactional_id)
    now_ms = time.time_ns() // 1_000_000
    start_ms = state.transaction_start_time_ms
    is_open = start_ms >= 0 and state.transaction_state in ("Ongoing", "PrepareCommit", "PrepareAbort")
    duration_ms = max(now_ms - start_ms, 0) if is_open else -1
    partitions = sorted((topic.topic, index) for topic in state.topics for index in topic.partitions)
    fields = {
        "transactional_id": transactional_id,
        "coordinator": coordinator,
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "state": state.transaction_state,
        "timeout_ms": state.transaction_timeout_ms,
        "start_ms": start_ms if start_ms >= 0 else None,
        "start": format_time(start_ms) or None,
        "duration_ms": duration_ms if is_open else None,
    }
    if output == "json":
        emit_json({**fields, "partitions": [{"topic": topic, "partition": index} for topic, index in partitions]})
        return
    names = [f"{topic}-{index}" for topic, index in partitions]
    if output == "csv":
        row = {**fields, "partitions": names}
        emit([Column(name, "") for name in row], [row], output)
        return
    lines = [
        ("transactional id", transactional_id),
        ("coordinator", str(coordinator)),
        ("producer", f"id {state.producer_id}, epoch {state.producer_epoch}"),
        ("state", state.transaction_state),
        ("timeout", duration_text(state.transaction_timeout_ms)),
        ("started", format_time(start_ms) or "-"),
        ("open for", duration_text(duration_ms) or "-"),
        ("partitions", " ".join(names) or "-"),
    ]
    for name, text in lines:
        say(f"{name + ':':18}{text}", 18, 0)
