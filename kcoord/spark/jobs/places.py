"""How far each log was compacted, and which file has an offset. Reads directories and checkpoints, not records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F

from kcoord.core.outcome import OFFSETS_TOPIC, TRANSACTION_TOPIC
from kcoord.history.invariants import NEVER
from kcoord.log.directory import CLEANER_OFFSETS, LOG_START_OFFSETS
from kcoord.spark.jobs.history_walk import Place
from kcoord.spark.reader.discovery import data_directory, discover, read_checkpoint
from kcoord.spark.reader.options import parse_options
from kcoord.spark.reader.slices import INT64_MAX, LogPartition
from kcoord.spark.tables.arrow import batch_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# (log, log_topic, log_partition, first offset, the offset after it, file).
SegmentPlace = tuple[str, str, int, int, int, str]
SEGMENTS: Final = pa.schema(
    [
        ("log", pa.string()),
        ("log_topic", pa.string()),
        ("log_partition", pa.int32()),
        ("base_offset", pa.int64()),
        ("next_base_offset", pa.int64()),
        ("file", pa.string()),
    ]
)


def floors_of(options: Mapping[str, str]) -> dict[Place, int]:
    """For `verify`: up to where the logs of coordinators may have been compacted; NEVER where the beginning is lost.

    `options` are the reader's, with the path. A cleaner never compacts the last segment, and its checkpoint has
    the end of its work. Raises BadOption and OSError.
    """
    filesystem, partitions = _partitions(options)
    floors: dict[Place, int] = {}
    for one in partitions:
        directory = data_directory(one)
        name = (one.topic, one.partition)
        last = one.segments[-1].base_offset
        start = (read_checkpoint(filesystem, directory, LOG_START_OFFSETS) or {}).get(name, 0)
        cleaned = (read_checkpoint(filesystem, directory, CLEANER_OFFSETS) or {}).get(name, last)
        floors[(one.log, one.topic, one.partition)] = NEVER if start > 0 else min(cleaned, last)
    return floors


def with_files(rows: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """Rows with a log, log_topic, log_partition and log_offset and the `file` that this is in, as far as it is there.

    Raises BadOption and OSError.
    """
    segments: list[tuple[Any, ...]] = list(segments_of(options))
    # As an Arrow table it is part of the plan; rows would be a job of Spark's.
    files = rows.sparkSession.createDataFrame(pa.Table.from_batches([batch_of(segments, SEGMENTS)]))
    place = ["log", "log_topic", "log_partition"]
    same = [rows[name] == files[name] for name in place]
    same.append(rows["log_offset"] >= files["base_offset"])
    same.append(rows["log_offset"] < files["next_base_offset"])
    return rows.join(F.broadcast(files), same, "left").select(*(rows[name] for name in rows.columns), "file")


def segments_of(options: Mapping[str, str]) -> list[SegmentPlace]:
    """The files of the logs of coordinators. Raises BadOption and OSError."""
    segments: list[SegmentPlace] = []
    for one in partitions_of(options):
        ends = [segment.base_offset for segment in one.segments[1:]] + [INT64_MAX]
        for segment, end in zip(one.segments, ends, strict=True):
            segments.append((one.log, one.topic, one.partition, segment.base_offset, end, segment.path))
    return segments


def partitions_of(options: Mapping[str, str]) -> list[LogPartition]:
    """The logs of coordinators. Raises BadOption and OSError."""
    return _partitions(options)[1]


def _partitions(options: Mapping[str, str]) -> tuple[Any, list[LogPartition]]:
    parsed = parse_options(options)
    filesystem, root = parsed.storage.open()
    found = discover(filesystem, root)
    return filesystem, [one for one in found if one.topic in (OFFSETS_TOPIC, TRANSACTION_TOPIC)]
