"""Options of the reader, in the words of Spark's Kafka source where they mean the same."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kcoord.core.outcome import METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTION_TOPIC
from kcoord.spark.batches import DECOMPRESSED_BYTES_MAX
from kcoord.spark.filesystem import Storage, filesystem_of
from kcoord.spark.plan import INT64_MAX, LogPartition

RECORDS = "records"
OFFSET_COMMITS = "offset_commits"
GROUP_METADATA = "group_metadata"
MEMBERS = "members"
ASSIGNMENTS = "assignments"
TRANSACTIONS = "transactions"
MESSAGES = "messages"
CORRUPT = "_corrupt"
HISTORY = "_history"
TABLES = (RECORDS, OFFSET_COMMITS, GROUP_METADATA, MEMBERS, ASSIGNMENTS, TRANSACTIONS, MESSAGES, CORRUPT, HISTORY)
COORDINATOR_TOPICS = (METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTION_TOPIC)
# What a table is made from; messages are of all other topics.
TOPICS_OF = {
    RECORDS: COORDINATOR_TOPICS,
    OFFSET_COMMITS: (OFFSETS_TOPIC,),
    GROUP_METADATA: (OFFSETS_TOPIC,),
    MEMBERS: (OFFSETS_TOPIC,),
    ASSIGNMENTS: (OFFSETS_TOPIC,),
    TRANSACTIONS: (TRANSACTION_TOPIC,),
}

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
    """An option that cannot be understood; the message says which, and what it may be."""


@dataclass(frozen=True)
class ReadOptions:
    """What is to be read, checked. Offsets and times of single partitions win over those for all."""

    storage: Storage
    table: str
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
    # The columns that rows are to have, in that order; none stands for all.
    columns: tuple[str, ...] = ()
    # Columns and the values that they may have. Whether the table can be asked so is seen where it is read.
    where: tuple[tuple[str, tuple[str | int, ...]], ...] = ()
    # Of `records`: older ones of the same key may be left out.
    is_newest: bool = False
    # Paths beside that of `storage`, in the same filesystem.
    more_paths: tuple[str, ...] = ()

    def makes(self, column: str) -> bool:
        """Whether rows have this column."""
        return not self.columns or column in self.columns

    def wants(self, partition: LogPartition) -> bool:
        """Whether the table is made from this partition, and it was asked for."""
        topic = partition.topic
        from_topics = TOPICS_OF.get(self.table)
        if from_topics is not None and topic not in from_topics:
            return False
        if self.assigned:
            return (topic, partition.partition) in self.assigned
        if self.topics:
            return topic in self.topics
        if self.topic_pattern:
            return re.fullmatch(self.topic_pattern, topic) is not None
        if self.table == HISTORY:
            return topic in (OFFSETS_TOPIC, TRANSACTION_TOPIC)
        return self.table != MESSAGES or topic not in COORDINATOR_TOPICS


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Raises BadOption. Names are not case-sensitive."""
    given = {name.lower(): value for name, value in options.items()}
    storage = {
        name[len(STORAGE_PREFIX) :]: value
        for name, value in options.items()
        if name.lower().startswith(STORAGE_PREFIX)
    }
    for name in given:
        if name not in KNOWN and not name.startswith(STORAGE_PREFIX):
            raise BadOption(f"there is no option {name}; there are {', '.join(KNOWN)} and {STORAGE_PREFIX}*")
    path, *more_paths = _paths(given)
    table = given.get("table", OFFSET_COMMITS).lower()
    if table not in TABLES:
        raise BadOption(f"there is no table {table}; there are {', '.join(TABLES)}")
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
    if is_newest and (table != RECORDS or given.get("isolationlevel", "").lower() == "read_uncommitted"):
        raise BadOption("newest is for the table records, and isolationLevel=read_committed")
    return ReadOptions(
        is_newest=is_newest,
        more_paths=tuple(more_paths),
        storage=Storage(path, tuple(sorted(storage.items())), given.get("filesystem", "") == "fsspec"),
        table=table,
        starting_offsets=starting,
        starting_by_partition=starting_by,
        ending_by_partition=ending_by,
        starting_ms=_number(given, "startingtimestamp", -INT64_MAX, -INT64_MAX),
        ending_ms=_number(given, "endingtimestamp", INT64_MAX, 0),
        starting_ms_by_partition=_by_partition(given, "startingoffsetsbytimestamp"),
        ending_ms_by_partition=_by_partition(given, "endingoffsetsbytimestamp"),
        min_partitions=_number(given, "minpartitions", 1, 1),
        bytes_per_partition=_number(given, "maxbytesperpartition", 128 << 20, 1 << 16),
        offsets_per_trigger=_number(given, "maxoffsetspertrigger", 0, 1),
        fail_on_data_loss=_flag(given, "failondataloss", True),
        topics=topics,
        topic_pattern=pattern,
        assigned=assigned,
        is_committed_only=_choice(given, "isolationlevel", ("read_committed", "read_uncommitted"))
        == "read_committed",
        fails_on_corrupt=_choice(given, "oncorrupt", ("fail", "collect")) == "fail" and table != CORRUPT,
        is_pushing_down=_flag(given, "pushdown", False),
        is_durable_only=_choice(given, "until", ("durable", "written")) == "durable",
        decompressed_bytes_max=_number(given, "decompressedbytesmax", DECOMPRESSED_BYTES_MAX, 1),
        columns=_columns(given, table),
        where=_where(given),
    )


def _paths(given: Mapping[str, str]) -> list[str]:
    """At least one path. Spark passes several as a list in JSON. Raises BadOption."""
    paths = [given["path"]] if given.get("path") else []
    if not paths and "paths" in given:
        try:
            paths = [str(path) for path in json.loads(given["paths"]) if path]
        except (ValueError, TypeError):
            raise BadOption(f'paths is JSON like ["a", "b"], not {given["paths"]}') from None
    if not paths:
        hint = "" if given else (
            ". Spark passes no options of a catalog table that was created with a column list or AS SELECT: create it "
            "without columns (the option columns selects some), or read it WITH (path = '...')"
        )
        raise BadOption(f"a path is needed: .load(path) of a data directory, or of a directory of some{hint}")
    filesystems = {filesystem_of(path) for path in paths}
    if len(filesystems) > 1:
        raise BadOption(f"several paths have to be in one filesystem, not in {' and '.join(sorted(filesystems))}")
    return paths


def _columns(given: Mapping[str, str], table: str) -> tuple[str, ...]:
    """Names in the spelling of the table; Spark takes any case for the same."""
    text = given.get("columns")
    if text is None:
        return ()
    from kcoord.spark.tables.schemas import arrow_schema

    known = {name.lower(): name for name in arrow_schema(table).names}
    names = [name.strip() for name in text.split(",")]
    wrong = [name for name in names if name.lower() not in known]
    if wrong:
        named = ", ".join(name or '""' for name in wrong)
        raise BadOption(f"columns: the table {table} has no {named}; it has {', '.join(known.values())}")
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
            numbers = (
                partitions.items() if isinstance(partitions, dict) else [(number, 0) for number in partitions]
            )
            for partition, value in numbers:
                found[(str(topic), int(partition))] = int(value)
    except (ValueError, TypeError, AttributeError):
        raise BadOption(f"{name} is JSON of topics and partitions, not {text}") from None
    return found


def _number(given: Mapping[str, str], name: str, default: int, lowest: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        raise BadOption(f"{name} is a whole number, not {text}") from None
    if number < lowest:
        raise BadOption(f"{name} is at least {lowest}, not {number}")
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
