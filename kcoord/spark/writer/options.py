"""Options of the writer, and the kind of rows that their columns imply."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from kcoord.core.topics.config_defs import check_topic_configs
from kcoord.core.topics.registry import check_topic_name
from kcoord.spark.reader.options import BadOption, whole_number
from kcoord.spark.tables.messages import MessagesTable
from kcoord.spark.tables.offset_commits import OffsetCommitsTable
from kcoord.spark.tables.records import RecordsTable
from kcoord.wire.compression import CODEC_NAMES

KNOWN = (
    "path", "compression", "batchrecords", "segmentbytes", "offsetspartitions", "transactionpartitions",
    "keepoffsets", "topics",
)  # fmt: skip
# Required columns by kind of rows. The first kind that fits counts; names are not case-sensitive.
NEEDED = {
    OffsetCommitsTable.NAME: ("group_id", "topic", "partition", "committed_offset"),
    RecordsTable.NAME: ("log_topic", "log_partition", "value"),
    MessagesTable.NAME: ("topic", "partition", "value"),
}
# Each is a directory with files of its own; as many as the server allows in its own topics.
PARTITIONS_MAX = 10_000
# Stays below a broker's default limit for a producer's batch in most cases.
BATCH_RECORDS = 1000
# Kafka's bounds of `segment.bytes`.
SEGMENT_BYTES_MIN = 1 << 20
SEGMENT_BYTES_MAX = (1 << 31) - 1


class BadColumns(ValueError):
    """Columns that cannot be written; the message names those that can."""


@dataclass(frozen=True)
class TopicPlan:
    """A topic in the option `topics`: its minimum number of partitions, and its configs."""

    partitions: int = 0
    configs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WriteOptions:
    """The checked options of a written log directory."""

    path: str
    codec: int = 0
    batch_records: int = BATCH_RECORDS
    segment_bytes: int = 1 << 30
    offsets_partitions: int = 1
    transaction_partitions: int = 1
    keeps_offsets: bool = False
    topics: dict[str, TopicPlan] = field(default_factory=dict)


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Raises BadOption. Names are not case-sensitive."""
    given = {name.lower(): value for name, value in options.items()}
    for name in given:
        if name not in KNOWN:
            raise BadOption(f"the writer has no option {name}; there are {', '.join(KNOWN)}")
    codecs = {name: codec for codec, name in CODEC_NAMES.items()}
    compression = given.get("compression", "none").lower()
    if compression not in codecs:
        raise BadOption(f"compression is one of {', '.join(codecs)}, not {compression}")
    keeps = given.get("keepoffsets", "false").lower()
    if keeps not in ("true", "false"):
        raise BadOption(f"keepOffsets is true or false, not {keeps}")
    return WriteOptions(
        path=local_path(given.get("path", "")),
        codec=codecs[compression],
        batch_records=whole_number(given, "batchrecords", BATCH_RECORDS, 1, 1 << 20),
        segment_bytes=whole_number(given, "segmentbytes", 1 << 30, SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX),
        offsets_partitions=whole_number(given, "offsetspartitions", 1, 1, PARTITIONS_MAX),
        transaction_partitions=whole_number(given, "transactionpartitions", 1, 1, PARTITIONS_MAX),
        keeps_offsets=keeps == "true",
        topics=_topics(given.get("topics", "{}")),
    )


def local_path(given: str) -> str:
    """An absolute path without links. Raises BadOption for what is not on this machine's file systems."""
    if not given:
        raise BadOption(
            "a path is needed: .save(path) of a new log directory. Spark passes none where SQL writes to a table: "
            "INSERT and CREATE TABLE ... AS SELECT"
        )
    if "://" in given or given.startswith("file:"):
        parts = urlsplit(given)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise BadOption(
                f"{given}: logs are written to a local file system (one that the driver and all executors share); "
                "write to one and copy the directory from there"
            )
        given = unquote(parts.path)
    return os.path.realpath(given)


def kind_of(columns: Iterable[str]) -> str:
    """The table that columns of these names are rows of: commits, records or messages. Raises BadColumns."""
    names = [name.lower() for name in columns]
    for name in names:
        if names.count(name) > 1:
            raise BadColumns(f"there are several columns {name}")
    for kind, needed in NEEDED.items():
        if all(name in names for name in needed):
            return kind
    wanted = "; or ".join(f"{', '.join(needed)} (for {kind})" for kind, needed in NEEDED.items())
    raise BadColumns(f"a log is written from rows with {wanted}; these have {', '.join(names)}")


def _topics(text: str) -> dict[str, TopicPlan]:
    """`{"orders": {"partitions": 6, "configs": {"retention.ms": "-1"}}}`"""
    try:
        given = json.loads(text)
        return {str(name): _topic(str(name), plan) for name, plan in given.items()}
    except (ValueError, AttributeError, TypeError) as error:
        if isinstance(error, BadOption):
            raise
        raise BadOption(
            'topics is JSON like {"orders": {"partitions": 6, "configs": {"retention.ms": "-1"}}}, '
            f"not {text[:200]}"
        ) from None


def _topic(name: str, plan: Mapping[str, Any]) -> TopicPlan:
    wrong = check_topic_name(name)
    if wrong:
        raise BadOption(f"topics: {wrong}")
    for key in plan:
        if key not in ("partitions", "configs"):
            raise BadOption(f"topics: {name} has no {key}; there are partitions and configs")
    partitions = int(plan.get("partitions", 0))
    if not 0 <= partitions <= PARTITIONS_MAX:
        raise BadOption(f"topics: {name} has up to {PARTITIONS_MAX} partitions, not {partitions}")
    configs = {str(key): str(value) for key, value in plan.get("configs", {}).items()}
    wrong = check_topic_configs(configs)
    if wrong:
        raise BadOption(f"topics: {name}: {wrong}")
    return TopicPlan(partitions, configs)
