"""Options of the reader. Those that Spark's Kafka source has, too, have the same names and meanings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kcoord.spark.reader.batches import DECOMPRESSED_BYTES_MAX
from kcoord.spark.reader.filesystem import Storage, filesystem_of
from kcoord.spark.reader.slices import INT64_MAX, LogPartition
from kcoord.spark.tables.corrupt import CorruptTable
from kcoord.spark.tables.registry import DEFAULT, TABLES
from kcoord.spark.tables.table import Table

EARLIEST = "earliest"
LATEST = "latest"
# Offsets in JSON, as in Spark's Kafka source.
LATEST_OFFSET = -1
EARLIEST_OFFSET = -2
STORAGE_PREFIX = "storage."
KNOWN = (
    "path", "paths", "table", "startingoffsets", "endingoffsets", "startingtimestamp", "endingtimestamp",
    "startingoffsetsbytimestamp", "endingoffsetsbytimestamp", "minpartitions", "maxoffsetspertrigger",
    "maxbytesperpartition", "failondataloss", "subscribe", "subscribepattern", "assign", "isolationlevel", "oncorrupt",
    "pushdown", "filesystem", "decompressedbytesmax", "until", "columns", "where", "newest",
)  # fmt: skip

# (topic, partition) to an offset or a timestamp.
ByPartition = dict[tuple[str, int], int]


class BadOption(ValueError):
    """An invalid option; the message names it, and what it may be."""


@dataclass(frozen=True)
class ReadOptions:
    """The checked options of a read. Offsets and times of single partitions override those for all."""

    storage: Storage
    table: type[Table]
    starting_offsets: str
    starting_by_partition: ByPartition
    ending_by_partition: ByPartition
    starting_ms: int
    ending_ms: int
    starting_ms_by_partition: ByPartition
    ending_ms_by_partition: ByPartition
    min_partitions: int
    bytes_per_partition: int
    offsets_per_trigger: int
    fail_on_data_loss: bool
    topics: tuple[str, ...]
    topic_pattern: str
    assigned: tuple[tuple[str, int], ...]
    is_committed_only: bool
    fails_on_corrupt: bool
    is_pushing_down: bool
    is_durable_only: bool
    decompressed_bytes_max: int
    # The columns of rows, in this order; empty means all.
    columns: tuple[str, ...] = ()
    # Columns and the values that they may have. `filters.asked_for` checks that the table can filter by them.
    where: tuple[tuple[str, tuple[str | int, ...]], ...] = ()
    # Of `records`: the reader may leave out older ones of the same key.
    is_newest: bool = False
    # More paths than that of `storage`, in the same filesystem.
    more_paths: tuple[str, ...] = ()

    def makes(self, column: str) -> bool:
        """Whether rows have this column."""
        return not self.columns or column in self.columns

    def wants(self, partition: LogPartition) -> bool:
        """Whether the table reads this partition, and the options include it."""
        topic = partition.topic
        if self.table.TOPICS and topic not in self.table.TOPICS:
            return False
        if self.assigned:
            return (topic, partition.partition) in self.assigned
        if self.topics:
            return topic in self.topics
        if self.topic_pattern:
            return re.fullmatch(self.topic_pattern, topic) is not None
        return self.table.is_read_by_default(topic)


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Raises BadOption. Names are not case-sensitive."""
    given = {name.lower(): value for name, value in options.items()}
    storage = {
        name[len(STORAGE_PREFIX) :]: value for name, value in options.items() if name.lower().startswith(STORAGE_PREFIX)
    }
    for name in given:
        if name not in KNOWN and not name.startswith(STORAGE_PREFIX):
            raise BadOption(f"there is no option {name}; there are {', '.join(KNOWN)} and {STORAGE_PREFIX}*")
    path, *more_paths = _paths(given)
    table = _table(given.get("table", DEFAULT.NAME).lower())
    starting, starting_by = _offsets(given, "startingoffsets", "")
    ending, ending_by = _offsets(given, "endingoffsets", LATEST)
    if ending == EARLIEST:
        raise BadOption("endingOffsets cannot be earliest")
    pattern = given.get("subscribepattern", "")
    try:
        re.compile(pattern)
    except re.error as error:
        raise BadOption(f"subscribePattern: {error}") from None
    assigned = tuple(_by_partition(given, "assign"))
    topics = tuple(name.strip() for name in given.get("subscribe", "").split(",") if name.strip())
    if sum((bool(topics), bool(pattern), bool(assigned))) > 1:
        raise BadOption("only one of subscribe, subscribePattern and assign may be given")
    is_newest = _flag(given, "newest", False)
    if is_newest and (not table.HAS_NEWEST or given.get("isolationlevel", "").lower() == "read_uncommitted"):
        names = " and ".join(name for name, one in TABLES.items() if one.HAS_NEWEST)
        raise BadOption(f"newest is for the table {names}, and isolationLevel=read_committed")
    return ReadOptions(
        is_newest=is_newest,
        more_paths=tuple(more_paths),
        storage=Storage(path, tuple(sorted(storage.items())), given.get("filesystem", "") == "fsspec"),
        table=table,
        starting_offsets=starting,
        starting_by_partition=starting_by,
        ending_by_partition=ending_by,
        starting_ms=whole_number(given, "startingtimestamp", -INT64_MAX, -INT64_MAX),
        ending_ms=whole_number(given, "endingtimestamp", INT64_MAX, 0),
        starting_ms_by_partition=_by_partition(given, "startingoffsetsbytimestamp"),
        ending_ms_by_partition=_by_partition(given, "endingoffsetsbytimestamp"),
        min_partitions=whole_number(given, "minpartitions", 1, 1),
        bytes_per_partition=whole_number(given, "maxbytesperpartition", 128 << 20, 1 << 16),
        offsets_per_trigger=whole_number(given, "maxoffsetspertrigger", 0, 1),
        fail_on_data_loss=_flag(given, "failondataloss", True),
        topics=topics,
        topic_pattern=pattern,
        assigned=assigned,
        is_committed_only=_choice(given, "isolationlevel", ("read_committed", "read_uncommitted")) == "read_committed",
        fails_on_corrupt=_choice(given, "oncorrupt", ("fail", "collect")) == "fail" and table is not CorruptTable,
        is_pushing_down=_flag(given, "pushdown", False),
        is_durable_only=_choice(given, "until", ("durable", "written")) == "durable",
        decompressed_bytes_max=whole_number(given, "decompressedbytesmax", DECOMPRESSED_BYTES_MAX, 1),
        columns=_columns(given, table),
        where=_where(given),
    )


def _table(name: str) -> type[Table]:
    found = TABLES.get(name)
    if found is None:
        raise BadOption(f"there is no table {name}; there are {', '.join(TABLES)}")
    return found


def _paths(given: Mapping[str, str]) -> list[str]:
    """At least one path. Spark passes several as a list in JSON. Raises BadOption."""
    paths = [given["path"]] if given.get("path") else []
    if not paths and "paths" in given:
        try:
            paths = [str(path) for path in json.loads(given["paths"]) if path]
        except (ValueError, TypeError):
            raise BadOption(f'paths is JSON like ["a", "b"], not {given["paths"]}') from None
    if not paths:
        hint = (
            ""
            if given
            else (
                ". Spark passes no options of a catalog table that was created with a column list or AS SELECT: create "
                "it without columns (the option columns selects some), or read it WITH (path = '...')"
            )
        )
        raise BadOption(f"a path is needed: .load(path) of a data directory, or of a directory of some{hint}")
    filesystems = {filesystem_of(path) for path in paths}
    if len(filesystems) > 1:
        raise BadOption(f"several paths have to be in one filesystem, not in {' and '.join(sorted(filesystems))}")
    return paths


def _columns(given: Mapping[str, str], table: type[Table]) -> tuple[str, ...]:
    """Names in the spelling of the table; Spark ignores their case."""
    text = given.get("columns")
    if text is None:
        return ()
    known = {name.lower(): name for name in table.column_names()}
    names = [name.strip() for name in text.split(",")]
    wrong = [name for name in names if name.lower() not in known]
    if wrong:
        named = ", ".join(name or '""' for name in wrong)
        raise BadOption(f"columns: the table {table.NAME} has no {named}; it has {', '.join(known.values())}")
    found = tuple(known[name.lower()] for name in names)
    if len(set(found)) < len(found):
        raise BadOption(f"columns: each at most once, not {text}")
    return found


def _where(given: Mapping[str, str]) -> tuple[tuple[str, tuple[str | int, ...]], ...]:
    """`{"group_id": ["a", "b"], "record_type": 2}`."""
    text = given.get("where", "{}")
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise BadOption(f'where is JSON like {{"group_id": ["a", "b"]}}, not {text}')
    return tuple(
        (column, tuple(values) if isinstance(values, list) else (values,)) for column, values in document.items()
    )


def _offsets(given: Mapping[str, str], name: str, default: str) -> tuple[str, ByPartition]:
    text = given.get(name, default).strip()
    if text.startswith("{"):
        return "", _by_partition(given, name)
    if text.lower() not in (EARLIEST, LATEST, default):
        raise BadOption(f'{name} is earliest, latest or JSON like {{"topic": {{"0": 23}}}}, not {text}')
    return text.lower(), {}


def _by_partition(given: Mapping[str, str], name: str) -> ByPartition:
    """`{"topic": {"0": 23}}`, and `{"topic": [0, 1]}` for `assign`, where the numbers are 0."""
    text = given.get(name)
    if text is None:
        return {}
    found: ByPartition = {}
    try:
        for topic, partitions in json.loads(text).items():
            numbers = partitions.items() if isinstance(partitions, dict) else [(number, 0) for number in partitions]
            for partition, value in numbers:
                found[(str(topic), int(partition))] = int(value)
    except (ValueError, TypeError, AttributeError):
        raise BadOption(f"{name} is JSON of topics and partitions, not {text}") from None
    return found


def whole_number(given: Mapping[str, str], name: str, default: int, lowest: int, highest: int | None = None) -> int:
    """The number that is given, or the default. Raises BadOption."""
    text = given.get(name)
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        raise BadOption(f"{name} is a whole number, not {text}") from None
    if number < lowest or (highest is not None and number > highest):
        bounds = f"at least {lowest}" if highest is None else f"from {lowest} to {highest}"
        raise BadOption(f"{name} is {bounds}, not {number}")
    return number


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise BadOption(f"{name} is true or false, not {text}")
    return text == "true"


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = given.get(name, choices[0]).lower()
    if text not in choices:
        raise BadOption(f"{name} is {' or '.join(choices)}, not {text}")
    return text
