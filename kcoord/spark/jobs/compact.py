"""The shortest log with the same state: the newest record of every key of the coordinators.

Values stay the same byte for byte, even those of unknown types, and the records of a partition keep their order, but
not their offsets, unless the writer keeps them. Offsets of committed transactions become plain ones. Open transactions
are left out: `open_transactions` counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.window import Window

from kcoord.core.outcome import OFFSETS_TOPIC, TRANSACTION_TOPIC
from kcoord.spark.jobs.state import LOG_COLUMNS, MARKERS, latest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COLUMNS: Final = ("log_topic", "log_partition", "log_offset", "log_timestamp", "key", "value", "headers")
# The columns of the table `records` for `open_transactions`.
OPEN_COLUMNS: Final = (*LOG_COLUMNS, "log_offset", "record_name", "producer_id")


def compact(records: DataFrame, cluster: Column | None = None, groups: Sequence[str] = ()) -> DataFrame:
    """Rows for `df.write.format("kcoord")`: log_topic, log_partition, log_offset, log_timestamp, key, value, headers.

    `records` is the table of that name with isolationLevel=read_committed, of one log, or of several logs of one
    `cluster` (see `latest`). The rows of a partition are with one task, in their order. Topics are not in it, since the
    writer makes the metadata log anew.
    """
    # Not a global sort, which would read the log once more to find its range partitions.
    of_partitions = latest(records, cluster, groups).select(*COLUMNS).repartition("log_topic", "log_partition")
    return of_partitions.sortWithinPartitions("log_topic", "log_partition", "log_offset")


def open_transactions(records: DataFrame) -> DataFrame:
    """Records of transactions without an end: log, log_topic, log_partition, producer_id, records, first_offset.

    `records` with isolationLevel=read_uncommitted. This is what `compact` leaves out, for each log.
    """
    is_marker = F.coalesce(F.col("record_name").isin(*MARKERS), F.lit(False))
    of_transactions = records.where(
        F.col("log_topic").isin(OFFSETS_TOPIC, TRANSACTION_TOPIC) & F.col("producer_id").isNotNull()
    )
    # No more than this: it is sorted by producers.
    seen = of_transactions.select(*OPEN_COLUMNS[:-2], "producer_id", is_marker.alias("is_marker"))
    of_producer = Window.partitionBy(*LOG_COLUMNS, "producer_id")
    ended = F.max(F.when(F.col("is_marker"), F.col("log_offset"))).over(of_producer)
    left = seen.withColumn("ended", ended).where(~F.col("is_marker"))
    return (
        left.where(F.col("ended").isNull() | (F.col("log_offset") > F.col("ended")))
        .groupBy(*LOG_COLUMNS, "producer_id")
        .agg(F.count("*").alias("records"), F.min("log_offset").alias("first_offset"))
    )
