"""Checks Arrow batches for the writer, and converts them to the columns that a packer takes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from kcoord.spark.tables.arrow import BIGINT, BINARY, BOOLEAN, HEADERS, INT, STRING, TIMESTAMP
from kcoord.spark.writer.options import BadColumns
from kcoord.spark.writer.pack import BadRow, CommitRows, RecordRows
from kcoord.wire.primitives import ZERO_UUID
from kcoord.wire.record_batch import Headers

# In microseconds: becomes -1 ms.
NO_TIME_US = -1000
NONE = -1


class Incoming:
    """One batch; names of columns are not case-sensitive."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.count = batch.num_rows
        self.places = {name.lower(): number for number, name in enumerate(batch.schema.names)}

    def column(self, name: str, wanted: Any, fits: Callable[[Any], bool], what: str) -> Any:
        """A column as the Arrow type `wanted`; None if there is none of that name. Raises BadColumns."""
        place = self.places.get(name)
        if place is None:
            return None
        column = self.batch.column(place)
        if not pa.types.is_null(column.type) and not fits(column.type):
            raise BadColumns(f"column {name} is {what}, not {column.type}")
        try:
            return column.cast(wanted)
        except pa.ArrowInvalid as error:
            raise BadRow(f"column {name}: {error}") from None

    def texts(self, name: str) -> Any:
        return self.column(name, STRING, _is_text, "a string")

    def numbers(self, name: str, wanted: Any) -> Any:
        return self.column(name, wanted, pa.types.is_integer, "an integer")

    def required(self, column: Any, name: str) -> list[Any]:
        if column is None:
            raise BadColumns(f"a column {name} is needed")
        if column.null_count:
            raise BadRow(f"{name} is null in {column.null_count} of {self.count} rows")
        values: list[Any] = column.to_pylist()
        return values

    def numbers_or(self, name: str, wanted: Any, default: int) -> list[int]:
        column = self.numbers(name, wanted)
        if column is None or column.null_count == self.count:
            return [default] * self.count
        values: list[int] = column.fill_null(default).to_numpy(zero_copy_only=False).tolist()
        return values

    def bytes_of(self, name: str) -> list[bytes | None]:
        column = self.column(name, BINARY, _is_bytes, "binary or a string")
        if column is None:
            return [None] * self.count
        values: list[bytes | None] = column.to_pylist()
        return values

    def times_ms(self, name: str) -> Any:
        """Milliseconds as a NumPy array, -1 for null; None if there is no such column."""
        column = self.column(name, TIMESTAMP, pa.types.is_timestamp, "a timestamp")
        if column is None:
            return None
        return np.floor_divide(column.cast(BIGINT).fill_null(NO_TIME_US).to_numpy(), 1000)

    def headers(self) -> list[Headers]:
        column = self.column(
            "headers",
            HEADERS,
            _is_headers,
            "array<struct<key: string, value: binary>>, as in Spark's Kafka source",
        )
        if column is None or column.null_count == self.count:
            return []
        return [_headers(row) for row in column.to_pylist()]


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: Any) -> bool:
    return _is_text(kind) or bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    )


def _is_headers(kind: Any) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    of = kind.value_type
    return bool(
        pa.types.is_struct(of)
        and [part.name for part in of] == ["key", "value"]
        and _is_text(of.field(0).type)
        and _is_bytes(of.field(1).type)
    )


def _headers(row: list[dict[str, Any] | None] | None) -> Headers:
    found: Headers = []
    for header in row or ():
        if header is None or header["key"] is None:
            raise BadRow("headers: one without a key")
        found.append((header["key"], header["value"]))
    return found


def record_rows(batch: pa.RecordBatch, topic: str, partition: str, timestamp: str, offset: str) -> RecordRows:
    """Records or messages, by the names of their columns. Raises BadColumns and BadRow."""
    rows = Incoming(batch)
    times = rows.times_ms(timestamp)
    return RecordRows(
        rows.required(rows.texts(topic), topic),
        rows.required(rows.numbers(partition, INT), partition),
        [NONE] * rows.count if times is None else times.tolist(),
        rows.bytes_of("key"),
        rows.bytes_of("value"),
        rows.headers(),
        rows.numbers_or(offset, BIGINT, NONE),
    )


def commit_rows(batch: pa.RecordBatch, now_ms: int) -> CommitRows:
    """Commits without a time get `now_ms`, records without one that of their commit. Raises BadColumns, BadRow."""
    rows = Incoming(batch)
    record_ms = rows.times_ms("log_timestamp")
    commit_ms = rows.times_ms("commit_timestamp")
    if record_ms is None:
        record_ms = np.full(rows.count, NONE, np.int64)
    if commit_ms is None:
        commit_ms = np.full(rows.count, NONE, np.int64)
    commit_ms = np.where(commit_ms == NONE, np.where(record_ms == NONE, now_ms, record_ms), commit_ms)
    record_ms = np.where(record_ms == NONE, commit_ms, record_ms)
    expire_ms = rows.times_ms("expire_timestamp")
    tombstones = rows.column("is_tombstone", BOOLEAN, pa.types.is_boolean, "a boolean")
    metadata = rows.texts("metadata")
    return CommitRows(
        rows.required(rows.texts("group_id"), "group_id"),
        rows.required(rows.texts("topic"), "topic"),
        rows.required(rows.numbers("partition", INT), "partition"),
        rows.numbers("committed_offset", BIGINT).to_pylist(),
        rows.numbers_or("leader_epoch", INT, NONE),
        [""] * rows.count if metadata is None else metadata.fill_null("").to_pylist(),
        commit_ms.tolist(),
        [NONE] * rows.count if expire_ms is None else expire_ms.tolist(),
        _topic_ids(rows),
        [False] * rows.count if tombstones is None else tombstones.fill_null(False).to_pylist(),
        record_ms.tolist(),
        rows.numbers_or("log_offset", BIGINT, NONE),
    )


def _topic_ids(rows: Incoming) -> list[bytes]:
    column = rows.texts("topic_id")
    if column is None or column.null_count == rows.count:
        return [ZERO_UUID] * rows.count
    known: dict[str | None, bytes] = {None: ZERO_UUID}
    texts = column.to_pylist()
    for text in texts:
        if text not in known:
            known[text] = _topic_id(text)
    return [known[text] for text in texts]


def _topic_id(text: str) -> bytes:
    try:
        raw = base64.b64decode(text + "==", b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != len(ZERO_UUID):
        raise BadRow(f"topic_id {text[:40]} is none: 16 bytes in URL-safe base64 without padding")
    return raw
