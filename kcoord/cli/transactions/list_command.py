"""`kcoord transactions list`: the transactional ids of a cluster, or its hanging transactions."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from kcoord.cli.online.run import EXIT_PROBLEMS, cluster_options, output_option, warn
from kcoord.cli.options import AliasedOption
from kcoord.cli.output import Column, emit, format_time, plural
from kcoord.cli.transactions.cluster import Cluster, ClusterError, check
from kcoord.cli.transactions.common import duration_text, friendly, parse_duration
from kcoord.cli.transactions.hanging import OpenTransaction, hanging, open_transactions
from kcoord.protocol import apis
from kcoord.protocol.list_transactions import ListTransactionsRequest, ListTransactionsResponse

# The versions of ListTransactions that know a filter.
DURATION_FROM: Final = 1
PATTERN_FROM: Final = 2
# The default of a broker's `transaction.max.timeout.ms`: no transaction is open longer.
MAX_DURATION_MS: Final = 900_000

LIST: Final = [
    Column("transactional_id", "TRANSACTIONAL ID"), Column("coordinator", "COORDINATOR", True),
    Column("producer_id", "PRODUCER ID", True), Column("state", "STATE"),
]  # fmt: skip
HANGING: Final = [
    Column("name", "PARTITION"), Column("start_offset", "START OFFSET", True),
    Column("producer_id", "PRODUCER ID", True), Column("producer_epoch", "EPOCH", True),
    Column("last_write", "LAST WRITE", True), Column("transactional_id", "TRANSACTIONAL ID"),
]  # fmt: skip
# The same for programs.
HANGING_FIELDS: Final = [
    Column(name, "")
    for name in (
        "topic", "partition", "leader", "start_offset", "producer_id", "producer_epoch", "coordinator_epoch",
        "last_timestamp_ms", "last_time", "transactional_id",
    )
]  # fmt: skip


@click.command("list")
@cluster_options
@click.option(
    "--state", "-s", "states", multiple=True, metavar="STATE", help="Only this state: Ongoing, ...; repeatable."
)
@click.option(
    "--producer-id", "producer_ids", multiple=True, type=int, metavar="ID", help="Only this producer; repeatable."
)
@click.option(
    "--longer-than",
    type=parse_duration,
    default=-1,
    metavar="DURATION",
    help="Only transactions open for longer than this: 30s, 15m.",
)
@click.option(
    "--pattern",
    cls=AliasedOption,
    aliases=("-p",),
    metavar="REGEX",
    help="Only ids that match this RE2 expression as a whole.",
)
@click.option("--hanging", "is_hanging", is_flag=True, help="Hanging transactions instead, by partition.")
@click.option("--topic", "-t", metavar="TOPIC", help="With --hanging: only this topic.")
@click.option(
    "--max-duration", type=parse_duration, default=MAX_DURATION_MS, metavar="DURATION",
    help="With --hanging: only producers that wrote nothing for so long (default: 15m).",
)  # fmt: skip
@output_option
@friendly
def list_command(
    bootstrap: str, timeout: float, states: tuple[str, ...], producer_ids: tuple[int, ...], longer_than: int,
    pattern: str | None, is_hanging: bool, topic: str | None, max_duration: int, output: str,
) -> None:  # fmt: skip
    """List transactional ids with their coordinator, producer id and state.

    With --hanging, list transactions that are open in a partition and that no coordinator will end. They block
    read_committed consumers of the partition for good. Each line has what `kcoord transactions abort` needs. The exit
    code is 1 if there are any.

    \b
    Examples:
      kcoord transactions list --state Ongoing --longer-than 1m
      kcoord transactions list --hanging
    """
    if topic is not None and not is_hanging:
        raise click.UsageError("--topic is for --hanging only")
    if is_hanging and (states or producer_ids or pattern or longer_than >= 0):
        raise click.UsageError("--hanging takes --topic and --max-duration only")
    with Cluster(bootstrap, timeout) as cluster:
        if is_hanging:
            found = _hanging(cluster, topic, max_duration)
            _print_hanging(found, output)
            if found:
                click.get_current_context().exit(EXIT_PROBLEMS)
            return
        request = ListTransactionsRequest(list(states), list(producer_ids), longer_than, pattern)
        rows, unknown = _list(cluster, request)
    if unknown:
        warn(f"the cluster does not know the state {', '.join(unknown)}")
    emit(LIST, rows, output)


def _list(cluster: Cluster, request: ListTransactionsRequest) -> tuple[list[dict[str, Any]], list[str]]:
    """The transactional ids of all brokers, and the states that one of them does not know."""
    rows: list[dict[str, Any]] = []
    unknown: dict[str, bool] = {}
    for node_id in sorted(cluster.brokers):
        answer = cluster.retrying(lambda node=node_id: _ask(cluster, node, request))  # type: ignore[misc]
        unknown.update(dict.fromkeys(answer.unknown_state_filters, True))
        for one in answer.transaction_states:
            row = {"transactional_id": one.transactional_id, "coordinator": node_id}
            rows.append({**row, "producer_id": one.producer_id, "state": one.transaction_state})
    rows.sort(key=lambda row: str(row["transactional_id"]))
    return rows, list(unknown)


def _ask(cluster: Cluster, node_id: int, request: ListTransactionsRequest) -> ListTransactionsResponse:
    version = cluster.version_of(node_id, apis.LIST_TRANSACTIONS)
    for name, version_min, is_used in (
        ("--longer-than", DURATION_FROM, request.duration_filter >= 0),
        ("--pattern", PATTERN_FROM, request.transactional_id_pattern is not None),
    ):
        if is_used and version < version_min:
            raise ClusterError(f"broker {node_id} is too old for {name}: it knows ListTransactions up to {version}")
    answer = cluster.ask(node_id, apis.LIST_TRANSACTIONS, request, ListTransactionsResponse)
    check(answer.error_code, f"the transactions of broker {node_id}")
    return answer


def _hanging(cluster: Cluster, topic: str | None, max_duration_ms: int) -> list[OpenTransaction]:
    names = None if topic is None else [topic]
    opened = cluster.retrying(lambda: open_transactions(cluster, cluster.topics(names)))
    oldest_ms = time.time_ns() // 1_000_000 - max_duration_ms
    candidates = [one for one in opened if one.producer.last_timestamp <= oldest_ms]
    return hanging(cluster, candidates)


def _print_hanging(found: list[OpenTransaction], output: str) -> None:
    if output == "table":
        if not found:
            click.echo("no hanging transactions")
            return
        now_ms = time.time_ns() // 1_000_000
        emit(HANGING, [_hanging_row(one, now_ms) for one in found], output)
        warn(f"{plural(len(found), 'hanging transaction')}; `kcoord transactions abort` ends them")
        return
    emit(HANGING_FIELDS, [_hanging_fields(one) for one in found], output)


def _hanging_row(one: OpenTransaction, now_ms: int) -> dict[str, Any]:
    last_write = duration_text(now_ms - one.producer.last_timestamp)
    return {**_hanging_fields(one), "name": one.name, "last_write": last_write}


def _hanging_fields(one: OpenTransaction) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "leader": one.leader,
        "start_offset": one.producer.current_txn_start_offset,
        "producer_id": one.producer.producer_id,
        "producer_epoch": one.producer.producer_epoch,
        "coordinator_epoch": one.producer.coordinator_epoch,
        "last_timestamp_ms": one.producer.last_timestamp,
        "last_time": format_time(one.producer.last_timestamp) or None,
        "transactional_id": one.transactional_id or None,
    }
