"""What tables that are made record by record have in common: `add` collects rows, `take` returns them as a batch.

A decoder gets records in the order of their log. It makes rows of the records of its table, skips those of others, and
raises DecodeError for a record that it cannot decode. It then has no row of that record, and can continue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final

from kcoord.log.serde import UnknownRecord, decode_record
from kcoord.log.typed_records import record_name
from kcoord.spark.reader.row_filter import EVERYTHING, RowFilter, Values
from kcoord.spark.reader.slices import TIME_MS_MAX
from kcoord.spark.tables.table import Table
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import BatchHeader, Record

if TYPE_CHECKING:
    import pyarrow as pa

# When a batch is large enough. The fields of a record about its group are in every row of the record, so rows can take
# far more memory than their records; Arrow's columns of text end at 2 GiB.
ROWS_MAX: Final = 10_000
ROW_BYTES_MAX: Final = 32 << 20
# A value in a row, beside its text or bytes.
CELL_BYTES: Final = 8
# More than coordinators write (by default at most 1 MiB). A decoded record takes many times its size.
RECORD_BYTES_MAX: Final = 32 << 20

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
SHARE: Final = "share"
STREAMS: Final = "streams"

Row = tuple[Any, ...]


@dataclass(frozen=True)
class RecordPlace:
    """The partition that stores a record. `log` is the data directory, as LogPartition names it."""

    log: str
    log_topic: str
    log_partition: int


class DecodedTable(Table, ABC):
    """A table whose rows are made record by record. An instance collects rows of one task; its length is their number.

    With `columns` the rows have only these, in this order; a subclass skips the work for other columns (`makes`). Of
    records that `wanted` excludes there may be rows, or none.
    """

    def __init__(
        self,
        columns: Sequence[str] = (),
        wanted: RowFilter = EVERYTHING,
        topic_names: Mapping[bytes, str] | None = None,
    ) -> None:
        from kcoord.spark.tables.arrow import schema_of

        self.wanted = wanted
        self.topic_names = topic_names if topic_names is not None else {}
        self.schema = schema_of(type(self), columns)
        names = self.column_names()
        self.made = frozenset(self.schema.names)
        self._chosen = _chooser([names.index(name) for name in columns]) if columns else None
        self._rows: list[Row] = []
        # The approximate size of each row.
        self._sizes: list[int] = []
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_full(self) -> bool:
        """Whether `take` should be called before the next `add`."""
        return len(self._rows) >= ROWS_MAX or self._size_bytes >= ROW_BYTES_MAX

    def makes(self, *columns: str) -> bool:
        """Whether the rows have any of these."""
        return not self.made.isdisjoint(columns)

    @property
    def takes_commits(self) -> bool:
        """Whether commits of offsets may belong to this table; if not, the reader may skip them."""
        return True

    @abstractmethod
    def add(self, where: RecordPlace, record: Record, header: BatchHeader) -> None:
        """Make the rows of a record in a batch with this header. Raises DecodeError."""

    def take(self) -> pa.RecordBatch:
        """Remove the oldest rows and return them as one batch.

        At most what ROWS_MAX and ROW_BYTES_MAX allow, at least one row: a record with very many members may need more
        than one batch. Call it until the length is 0.
        """
        from kcoord.spark.tables.arrow import batch_of

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
        """Add a row with a value for every column; the values of columns that are not made do not matter."""
        if self._chosen is not None:
            row = self._chosen(row)
        size = size_of(row)
        self._rows.append(row)
        self._sizes.append(size)
        self._size_bytes += size


class GroupTable(DecodedTable):
    """A table of records of `__consumer_offsets` whose types are the keys of KINDS."""

    KINDS: ClassVar[Mapping[int, Any]] = {}

    def __init__(
        self,
        columns: Sequence[str] = (),
        wanted: RowFilter = EVERYTHING,
        topic_names: Mapping[bytes, str] | None = None,
    ) -> None:
        super().__init__(columns, wanted, topic_names)
        self._kinds = {number: about for number, about in self.KINDS.items() if self._is_wanted(about)}
        self._groups = subjects(wanted.groups)

    @classmethod
    def check(cls, topic: str, record: Record) -> None:
        if topic in cls.TOPICS and coordinator_record_type(record) in cls.KINDS:
            decode_group_record(record)

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
        """By the entry of a type in KINDS: the kind of the group."""
        return self.wanted.kinds is None or about in self.wanted.kinds

    @abstractmethod
    def _add(self, about: Any, place: Row, key: Message, value: Message | None, record: Record) -> None:
        """Put the rows of a record; `about` is the entry of its type in KINDS."""


def _chooser(places: list[int]) -> Callable[[Row], Row]:
    """From a row to the cells at these places."""
    if len(places) == 1:
        only = places[0]
        return lambda row: (row[only],)
    return itemgetter(*places)


def size_of(values: Iterable[Any]) -> int:
    """The approximate size of the cells of a row, or of the items of one of them."""
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
    """The values of PLACE."""
    return where.log, where.log_topic, where.log_partition, record.offset, micros(record.timestamp)


def micros(timestamp_ms: int) -> int | None:
    """A timestamp for its column; None for no timestamp (-1), and for one that does not fit into a column."""
    if timestamp_ms < 0 or timestamp_ms > TIME_MS_MAX:
        return None
    return timestamp_ms * 1000


def known(number: int) -> int | None:
    """None for -1, which means none in ids and epochs."""
    return None if number == -1 else number


# --- records of __consumer_offsets


def coordinator_record_type(record: Record) -> int:
    """The type in the key. Raises DecodeError if there is none, and for a record that is too large to decode."""
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
    """Whether a coordinator's record is about one of these, without decoding the key.

    In all keys of known types, a group or a transactional id follows the type. The caller has checked the type.
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
    """Key and value of a record of a known type. Raises DecodeError, also for an unknown layout."""
    if record.key is None:
        raise DecodeError("a record without a key")
    key, value = decode_record(record.key, record.value)
    if isinstance(key, UnknownRecord):
        raise DecodeError(f"record type {key.record_type} in an unknown layout")
    return key, value


def group_columns(kind: str, key: Message) -> Row:
    """Group id, kind and record name."""
    return getattr(key, "group", "") or getattr(key, "group_id", ""), kind, record_name(key)
