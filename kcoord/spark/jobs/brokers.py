"""Tables of many brokers' data directories that belong to one cluster."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

# The columns that identify a record. Tables with several rows for a record have more.
RECORD = ("log_topic", "log_partition", "log_offset")
MESSAGE = ("topic", "partition", "offset")


def one_cluster(table: DataFrame) -> DataFrame:
    """`table` with each record once, if several brokers hold replicas of it, and all in one log, ".".

    For tables with a row for each record: `records`, `offset_commits`, `group_metadata`, `transactions`, `messages`.
    """
    place = RECORD if "log_offset" in table.columns else MESSAGE
    return table.dropDuplicates(list(place)).withColumn("log", F.lit("."))
