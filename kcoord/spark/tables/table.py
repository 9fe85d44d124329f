"""What a table of the pipeline declares: one class per table, registered in `tables/registry.py`.

A table's class has everything about it: its name and columns, the topics that its rows come from, and
what makes the rows. The option parser, the filters, the reader, the schemas and docs/spark-tables.md ask the class.

There are three ways to make rows, and a class picks one:

- `DecodedTable` (tables/rows.py) takes one record at a time. A new table nearly always wants this.
- A table with `scan_rows` turns a scan straight into Arrow arrays, for tables that must be fast.
- `HAS_ROW_PER_PARTITION`, and `_corrupt`, which lists what the reader itself finds: the reader makes these.

This module imports neither PyArrow nor PySpark, and neither may a module that the registry imports: the CLI checks
options before it starts Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from kcoord.core.outcome import METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTION_TOPIC
from kcoord.spark.reader.row_filter import RowFilter
from kcoord.spark.reader.slices import Slice
from kcoord.spark.scan.columns import Scan, ScanRange
from kcoord.wire.record_batch import Record

COORDINATOR_TOPICS: Final = (METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTION_TOPIC)

# Types of columns, as Spark's SQL spells them. `tables/arrow.py` has the Arrow type of each.
BINARY: Final = "binary"
BOOLEAN: Final = "boolean"
INT: Final = "int"
BIGINT: Final = "bigint"
STRING: Final = "string"
TIMESTAMP: Final = "timestamp"
INTS: Final = "array<int>"
STRINGS: Final = "array<string>"
HEADERS: Final = "array<struct<key:string,value:binary>>"
PARTITIONS: Final = "array<struct<topic:string,partitions:array<int>>>"

# What `Column.narrows` may be besides a field of RowFilter with a set of values: a bound on the record's offset or
# timestamp, and whether a producer with an id wrote the batch.
BY_OFFSET: Final = "offset"
BY_TIME: Final = "time"
BY_PRODUCER: Final = "producer"

# Offset of a record, position of its batch in the file, and why the record cannot be read.
Corrupt = Callable[[int, int, str], None]


class RowsOfSlice(Protocol):
    """`SliceRows` (tables/columns.py), which needs PyArrow."""

    @property
    def scan(self) -> Scan: ...

    def take(self) -> Any:
        """What the scan has, as a `pyarrow.RecordBatch`; None if there is nothing."""


@dataclass(frozen=True)
class Column:
    """One column of a table; any value may be null. `words` explain it in docs/spark-tables.md.

    `narrows` is the field of RowFilter that a filter on this column sets, or one of BY_OFFSET, BY_TIME and BY_PRODUCER;
    empty if a filter on it does not narrow what is read. `topic` is the only topic whose records have this column.
    """

    name: str
    type: str
    words: str
    narrows: str = ""
    topic: str = ""


@dataclass(frozen=True)
class SliceRequest:
    """What a table's `scan_rows` needs to know of one slice. `corrupt` takes what cannot be read."""

    part: Slice
    wanted: ScanRange
    rows: RowFilter
    columns: tuple[str, ...]
    is_newest: bool
    is_committed_only: bool
    corrupt: Corrupt

    def makes(self, column: str) -> bool:
        """Whether rows have this column."""
        return not self.columns or column in self.columns


class Table:
    """The declaration of a table. The class itself is the declaration; only a DecodedTable has instances."""

    # The value of the option `table`.
    NAME: ClassVar[str] = ""
    # What a row is, for docs/spark-tables.md.
    ROW: ClassVar[str] = ""
    COLUMNS: ClassVar[tuple[Column, ...]] = ()
    # The only topics that rows can come from; empty means any topic.
    TOPICS: ClassVar[tuple[str, ...]] = ()
    # The topics that a read without options takes, for docs/spark-tables.md; needed only if TOPICS is not the answer.
    TOPICS_IN_WORDS: ClassVar[str] = ""
    # Why a stream of the table makes no sense; empty if the table can be streamed.
    UNSTREAMABLE: ClassVar[str] = ""
    # Whether the option `newest` may leave out records that a later one of the same key replaces.
    HAS_NEWEST: ClassVar[bool] = False
    # Whether the table needs names for the topic ids in its records. The reader gets them from the metadata log.
    NEEDS_TOPIC_NAMES: ClassVar[bool] = False
    # Whether a row describes a partition as a whole: `reader/history.py` makes these rows, without slices.
    HAS_ROW_PER_PARTITION: ClassVar[bool] = False

    @classmethod
    def is_read_by_default(cls, topic: str) -> bool:
        """Whether the table reads this topic if no option names topics. TOPICS has been checked before."""
        return True

    @classmethod
    def scan_rows(cls, request: SliceRequest) -> RowsOfSlice | None:
        """The rows of a slice, made without an object for each record; None where records must be decoded."""
        return None

    @classmethod
    def check(cls, topic: str, record: Record) -> None:
        """Raise DecodeError for a record, not of a control batch, that belongs to the table and cannot be shown in it.

        Such records are rows of `_corrupt`.
        """

    @classmethod
    def column_names(cls) -> tuple[str, ...]:
        return tuple(column.name for column in cls.COLUMNS)

    @classmethod
    def column(cls, name: str) -> Column | None:
        """None if the table does not have that column."""
        return next((column for column in cls.COLUMNS if column.name == name), None)


# Where a record is stored. All tables but `messages`, `_corrupt` and `_history` begin with these columns.
PLACE: Final = (
    Column("log", STRING, "the data directory, by its path below the loaded one; `.` is the loaded one itself", "logs"),
    Column("log_topic", STRING, "the topic that stores the record", "log_topics"),
    Column("log_partition", INT, "the partition that stores the record", "log_partitions"),
    Column("log_offset", BIGINT, "the record's offset", BY_OFFSET),
    Column("log_timestamp", TIMESTAMP, "the record's timestamp", BY_TIME),
)
GROUP_ID: Final = Column("group_id", STRING, "the group", "groups")
KIND: Final = Column("kind", STRING, "`classic`, `consumer`, `share` or `streams`", "kinds")
RECORD_NAME: Final = Column("record_name", STRING, "the record type, such as `consumer_group_metadata`", "record_names")
IS_TOMBSTONE: Final = Column("is_tombstone", BOOLEAN, "the record has no value: it deletes its key")
