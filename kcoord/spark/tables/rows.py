"""What the tables that are made record by record have in common: rows come together, batches go out.

A decoder is fed records in the order of their log. It takes what is of its table, passes over what certainly is not,
and raises DecodeError for the rest; then no row of that record is in it, and it can go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar, Final

import pyarrow as pa

from kcoord.log.serde import UnknownRecord, decode_record
from kcoord.log.typed_records import record_name
from kcoord.spark.filters import EVERYTHING, RowFilter, Values
from kcoord.spark.plan import TIME_MS_MAX
from kcoord.spark.tables.schemas import arrow_schema
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import BatchHeader, Record

# When a batch is large enough. What a record says of its group stands in every row that comes of it, so rows can take
# far more than their records did; Arrow's columns of text end at 2 GiB.
ROWS_MAX: Final = 10_000
ROW_BYTES_MAX: Final = 32 << 20
# A value in a row, beside its text or bytes.
CELL_BYTES: Final = 8
# Beyond what coordinators write (by default at most 1 MiB); taken apart, a record takes many times its size.
RECORD_BYTES_MAX: Final = 32 << 20

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
SHARE: Final = "share"
STREAMS: Final = "streams"

Row = tuple[Any, ...]


@dataclass(frozen=True)
class RecordPlace:
    """The partition that records are of: `log` is the data directory, as LogPartition names it."""

    log: str
    log_topic: str
    log_partition: int


class TableDecoder(ABC):
    """Rows of one table in the making. Its length is how many there are.

    With `columns` the rows have just these, in that order; what only others need is not made (`makes`). Of records that
    `wanted` does not want there may be rows, or none.
    """

    TABLE: ClassVar[str] = ""

    def __init__(self, columns: Sequence[str] = (), wanted: RowFilter = EVERYTHING) -> None:
        self.wanted = wanted
        self.schema = arrow_schema(self.TABLE, columns)
        names = arrow_schema(self.TABLE).names
        self.made = frozenset(self.schema.names)
        self._chosen = _chooser([names.index(name) for name in columns]) if columns else None
        self._rows: list[Row] = []
        # What each row takes, about.
        self._sizes: list[int] = []
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_full(self) -> bool:
        """Whether `take` should be called before more comes."""
        return len(self._rows) >= ROWS_MAX or self._size_bytes >= ROW_BYTES_MAX

    def makes(self, *columns: str) -> bool:
        """Whether the rows have any of these."""
        return not self.made.isdisjoint(columns)

    @property
    def takes_commits(self) -> bool:
        """Whether commits of offsets may be of this table; if not they need not come."""
        return True

    @abstractmethod
    def add(self, where: RecordPlace, record: Record, header: BatchHeader) -> None:
        """Take what is of this table in a record of a batch with this header. Raises DecodeError."""

    def take(self) -> pa.RecordBatch:
        """The rows that are there, oldest first, as one batch; they are gone from here then.

        As many as ROWS_MAX and ROW_BYTES_MAX allow, at least one: a record of very many members may leave more behind.
        Call it until the length is 0.
        """
        count = 0
        size_bytes = 0
        for size in self._sizes:
            if count == ROWS_MAX or (count > 0 and size_bytes + size > ROW_BYTES_MAX):
                break
            count += 1
            size_bytes += size
        rows = self._rows[:count]
        del self._rows[:count], self._sizes[:count]
        self._size_bytes -= size_bytes
        return batch_of(rows, self.schema)

    def _put(self, row: Row) -> None:
        """A row of all columns; what is in those that are not made does not matter."""
        if self._chosen is not None:
            row = self._chosen(row)
        size = size_of(row)
        self._rows.append(row)
        self._sizes.append(size)
        self._size_bytes += size


class GroupTableDecoder(TableDecoder):
    """A table of records of `__consumer_offsets` whose types are the keys of KINDS."""

    KINDS: ClassVar[Mapping[int, Any]] = {}

    def __init__(self, columns: Sequence[str] = (), wanted: RowFilter = EVERYTHING) -> None:
        super().__init__(columns, wanted)
        self._kinds = {number: about for number, about in self.KINDS.items() if self._is_wanted(about)}
        self._groups = subjects(wanted.groups)

    def add(self, where: RecordPlace, record: Record, header: BatchHeader) -> None:
        if header.is_control:
            return
        record_type = coordinator_record_type(record)
        about = self._kinds.get(record_type)
        if about is not None and is_about(record, self._groups):
            key, value = decode_group_record(record)
            names = self.wanted.record_names
            if names is not None and record_name(key) not in names:
                # All records of a type have one name.
                del self._kinds[record_type]
                return
            self._add(about, place_columns(where, record), key, value, record)

    @property
    def takes_commits(self) -> bool:
        return False

    def _is_wanted(self, about: Any) -> bool:
        """By what KINDS says of a type: the kind of the group."""
        return self.wanted.kinds is None or about in self.wanted.kinds

    @abstractmethod
    def _add(self, about: Any, place: Row, key: Message, value: Message | None, record: Record) -> None:
        """Put the rows of a record of a type that KINDS says `about` of."""


def _chooser(places: list[int]) -> Callable[[Row], Row]:
    """From a row to the cells at these places."""
    if len(places) == 1:
        only = places[0]
        return lambda row: (row[only],)
    return itemgetter(*places)


def batch_of(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns: list[Any] = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in schema]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def size_of(values: Iterable[Any]) -> int:
    """What the cells of a row take, or the items of one of them, about."""
    size = 0
    for value in values:
        size += CELL_BYTES
        kind = type(value)
        if kind is str or kind is bytes:
            size += len(value)
        elif kind is list:
            size += size_of(value)
        elif kind is dict:
            size += size_of(value.values())
    return size


# --- columns


def place_columns(where: RecordPlace, record: Record) -> Row:
    """The columns that the tables begin with."""
    return where.log, where.log_topic, where.log_partition, record.offset, micros(record.timestamp)


def micros(timestamp_ms: int) -> int | None:
    """A timestamp for its column; None for none (-1), and for one that no column can hold."""
    if timestamp_ms < 0 or timestamp_ms > TIME_MS_MAX:
        return None
    return timestamp_ms * 1000


def known(number: int) -> int | None:
    """None for -1, which stands for none in ids and epochs."""
    return None if number == -1 else number


# --- records of __consumer_offsets


def coordinator_record_type(record: Record) -> int:
    """The type in the key. Raises DecodeError where there is none, and for what is too large to be looked into."""
    key = record.key
    if key is None:
        raise DecodeError("a record without a key")
    if len(key) < 2:
        raise DecodeError(f"a record with a key of {len(key)} bytes")
    check_size(record)
    return int.from_bytes(key[:2], "big", signed=True)


def subjects(wanted: Values | None) -> frozenset[bytes] | None:
    """Groups or transactional ids for `is_about`."""
    return None if wanted is None else frozenset(str(one).encode("utf-8", "replace") for one in wanted)


def is_about(record: Record, wanted: frozenset[bytes] | None) -> bool:
    """Whether a coordinator's record is about one of these, as far as its key tells without being decoded.

    All keys whose types are known begin with a group or a transactional id, behind the type; in any other key nothing
    that is wanted stands there. The type has been looked at.
    """
    if wanted is None or record.key is None:
        return True
    size = int.from_bytes(record.key[2:4], "big", signed=True)
    return record.key[4 : 4 + size] in wanted if size >= 0 else True


def check_size(record: Record) -> None:
    """Raises DecodeError."""
    size = len(record.key or b"") + len(record.value or b"")
    if size > RECORD_BYTES_MAX:
        raise DecodeError(f"a record of {size} bytes, more than {RECORD_BYTES_MAX}")


def decode_group_record(record: Record) -> tuple[Message, Message | None]:
    """Key and value of a record whose type is known. Raises DecodeError, also for a form that is not known."""
    if record.key is None:
        raise DecodeError("a record without a key")
    key, value = decode_record(record.key, record.value)
    if isinstance(key, UnknownRecord):
        raise DecodeError(f"record type {key.record_type} in a form that is not known")
    return key, value


def group_columns(kind: str, key: Message) -> Row:
    """Group id, kind and record name."""
    return getattr(key, "group", "") or getattr(key, "group_id", ""), kind, record_name(key)
