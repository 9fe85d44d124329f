"""`kcoord log timeline --transactional-id`: every transaction of a transactional id, and why it was aborted."""

from __future__ import annotations

from typing import Any, Final

import click

from kcoord.cli.log.common import emit_json, emit_rows, fail, format_time, note, plural, progress, say, table, wrapped
from kcoord.cli.log.past.scan import Scan
from kcoord.cli.log.points import TimeRange
from kcoord.cli.output import format_duration
from kcoord.core.groups.cause_header import decode_cause
from kcoord.core.outcome import TRANSACTION_TOPIC
from kcoord.core.transactions.state import NO_TIME
from kcoord.history.transactions import ABORTED, COMMITTED, NEW_EPOCH, OPEN, Span, TransactionHistory
from kcoord.log.inspect import DataDirectory
from kcoord.log.lost_logs import lost_logs
from kcoord.log.typed_records import RecordReader
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue
from kcoord.server.failures import EXIT_CONFIG

FIELDS: Final = (
    "transactional_id", "event", "time", "time_ms", "producer_id", "producer_epoch", "next_producer_id",
    "next_producer_epoch", "transaction_version", "timeout_ms", "open_ms", "ending_ms", "is_complete", "cause",
    "detail", "partitions",
)  # fmt: skip


def print_transactions(directory: DataDirectory, transactional_id: str, between: TimeRange, output: str) -> None:
    """Raises LogDamaged and OSError; exits if the log does not have the transactional id."""
    logs = directory.of_topic(TRANSACTION_TOPIC)
    for log in lost_logs(directory):
        if log.topic == TRANSACTION_TOPIC:
            raise log.as_damage(directory.root)
    if not logs:
        fail(f"there is no {TRANSACTION_TOPIC} in {directory.root}", EXIT_CONFIG)
    history = TransactionHistory()
    # A partition without records has no files, so the files do not show which partition has the id.
    scan = Scan()
    source = ""
    reader = RecordReader()
    with progress("Reading", sum(files.size_bytes for files in logs)) as step:
        for files in logs:
            of_log = Scan()
            for batch, record in of_log.records(directory, files, step):
                typed = reader.read(files.topic, batch.header, record)
                key, value = typed.key, typed.value
                if not isinstance(key, TransactionLogKey) or key.transactional_id != transactional_id:
                    continue
                source = files.name
                if value is None or isinstance(value, TransactionLogValue):
                    history.replay(value, record.timestamp, record.offset, decode_cause(record.headers))
            if not of_log.is_whole or source == files.name:
                scan.add(of_log)
    if not history.spans and scan.is_whole:
        fail(f"{directory.root} has no record of transactional id {transactional_id}", EXIT_CONFIG)
    rows = between.of([_row(span) for span in history.spans])
    if output == "json":
        emit_json(
            {
                "transactional_id": transactional_id,
                "source": source or None,
                "history_complete_from": format_time(scan.history.time_ms) or None,
                "history_complete_from_offset": scan.history.offset,
                "transactions": rows,
            }
        )
    elif output == "csv":
        emit_rows(FIELDS, [{"transactional_id": transactional_id, **row} for row in rows])
    else:
        _print_table(transactional_id, source, rows)
    scan.warn("transactions")
    scan.fail_if_damaged()


def _row(span: Span) -> dict[str, Any]:
    cause = span.cause
    is_transaction = span.kind in (OPEN, COMMITTED, ABORTED)
    return {
        "event": span.kind,
        "time_ms": span.time_ms,
        "time": format_time(span.time_ms) or None,
        "producer_id": span.producer_id,
        "producer_epoch": span.producer_epoch,
        "next_producer_id": span.next_producer_id,
        "next_producer_epoch": span.next_epoch,
        "transaction_version": (2 if span.client_version >= 2 else 1) if is_transaction else None,
        "timeout_ms": None if span.timeout_ms == NO_TIME else span.timeout_ms,
        "open_ms": _between(span.time_ms, span.decided_ms),
        "ending_ms": _between(span.decided_ms, span.completed_ms),
        "is_complete": span.completed_ms != NO_TIME if is_transaction else None,
        "cause": None if cause is None else cause.kind,
        "detail": None if cause is None else cause.detail or None,
        "partitions": [{"topic": topic, "partition": partition} for topic, partition in sorted(span.partitions)],
        "states": [
            {"state": one.state, "time_ms": one.time_ms, "time": format_time(one.time_ms) or None, "offset": one.offset}
            for one in span.changes
        ],
    }


def _between(start_ms: int, end_ms: int) -> int | None:
    return None if start_ms == NO_TIME or end_ms == NO_TIME else max(end_ms - start_ms, 0)


def _ms(value: int | None) -> str:
    return "-" if value is None else format_duration(value)


def _detail(row: dict[str, Any]) -> str:
    """Why it was aborted, and its partitions."""
    parts: list[str] = []
    if row["cause"] is not None:
        parts.append(row["cause"] + (f": {row['detail']}" if row["detail"] else ""))
    elif row["event"] == ABORTED:
        parts.append("cause unknown")
    if row["event"] in (COMMITTED, ABORTED) and not row["is_complete"]:
        parts.append("the end is not complete")
    if row["event"] == NEW_EPOCH and row["cause"] is None:
        parts.append(f"InitProducerId, transaction timeout {_ms(row['timeout_ms'])}")
    if row["partitions"]:
        parts.append("partitions " + " ".join(f"{one['topic']}-{one['partition']}" for one in row["partitions"]))
    return "; ".join(parts)


def _print_table(transactional_id: str, source: str, rows: list[dict[str, Any]]) -> None:
    count = sum(row["event"] in (OPEN, COMMITTED, ABORTED) for row in rows)
    say(f"{transactional_id}: {plural(count, 'transaction')}, from {source}", 4, 0)
    cells = [
        [
            row["time"] or "-",
            row["event"],
            str(row["producer_id"]),
            str(row["producer_epoch"]),
            _ms(row["open_ms"]),
            _ms(row["ending_ms"]),
        ]
        for row in rows
    ]
    details = [wrapped(text, 6, 4) if (text := _detail(row)) else [] for row in rows]
    head = ["TIME", "RESULT", "PRODUCER ID", "EPOCH", "OPEN", "ENDING"]
    click.echo("\n".join(table(head, cells, "llrrrr", details)))
    if any(row["event"] == ABORTED and row["cause"] is None for row in rows):
        note("aborts by a Kafka broker have no cause")
