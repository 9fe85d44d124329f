"""Writes a long log for the jobs of the pipeline, with the pipeline's writer: `spark_log DIR ROWS GROUPS MEMORY`.

Prints JSON. Of a hundred rows, 89 are commits, ten are messages of the committed topics, and one is a new generation of
a classic group. Each row is one millisecond later than the one before, so ten times as many rows cover ten times the
time of the same groups, not ten times as many groups. Some groups commit much more often than others.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, SparkSession

BEGIN_MS: Final = 1_760_000_000_000
COMMITS_PART: Final = 0.89
TOPICS: Final = 25
PARTITIONS: Final = 4
TOPICS_PER_GROUP: Final = 4
OFFSETS_PARTITIONS: Final = 16
# Rows of a Spark partition. Spark repeats a failed task as a whole, and the task's rows wait on the disk.
TASK_ROWS: Final = 5_000_000
OFFSETS_TOPIC: Final = "__consumer_offsets"
MESSAGE_BYTES: Final = 80


def columns(groups: int) -> list[Column]:
    """The writer's columns, computed from the id of `spark.range`. Group records have no value yet."""
    from pyspark.sql import functions as F

    row = F.col("id")
    kind = row % 100
    is_group, is_message = kind == 0, (kind >= 1) & (kind <= 10)
    # A tenth of the rows are messages, one partition after the other.
    written = F.floor(row / (10 * TOPICS * PARTITIONS))
    number = (F.floor(row / 100) * 10 + kind - 1) % (TOPICS * PARTITIONS)
    part = F.pmod(F.xxhash64(row), F.lit(1_000_000)) / F.lit(1e6)
    group = F.when(is_group, F.floor(row / 100) % groups).otherwise(F.floor(part * part * groups)).cast("int")
    chosen = F.pmod(F.xxhash64(row, F.lit(1)), F.lit(TOPICS_PER_GROUP * PARTITIONS)).cast("int")
    topic_number = F.when(is_message, F.floor(number / PARTITIONS)).otherwise(
        (group * 7 + F.floor(chosen / PARTITIONS)) % TOPICS
    )
    partition = F.when(is_message, number % PARTITIONS).otherwise(chosen % PARTITIONS).cast("int")
    topic = F.format_string("domain-%02d.events-%03d", (topic_number % 12).cast("int"), topic_number.cast("int"))
    name = F.format_string("team-%02d.service-%05d.consumer", group % 40, group)
    # Up to 19 messages before the end offset, and never after it.
    offset = F.greatest(written - F.pmod(F.xxhash64(row, F.lit(2)), F.lit(20)), F.lit(0)).cast("bigint")
    at_ms = row + BEGIN_MS
    text_name, text_topic = name.cast("binary"), topic.cast("binary")
    commit_key = F.concat(
        F.unhex(F.lit("0001")), _int(F.length(text_name), 2), text_name, _int(F.length(text_topic), 2), text_topic,
        _int(partition, 4),
    )  # fmt: skip
    # Version 3: offset, leader epoch, metadata, commit timestamp.
    commit_value = F.concat(
        F.unhex(F.lit("0003")),
        _int(offset, 8),
        F.unhex(F.lit("00000007")),
        F.unhex(F.lit("0000")),
        _int(at_ms, 8),
    )
    group_key = F.concat(F.unhex(F.lit("0002")), _int(F.length(text_name), 2), text_name)
    body = F.repeat(F.lit("x"), MESSAGE_BYTES).cast("binary")
    return [
        F.when(is_message, topic).otherwise(F.lit(OFFSETS_TOPIC)).alias("log_topic"),
        F.when(is_message, partition).otherwise(F.lit(0)).alias("log_partition"),
        F.timestamp_millis(at_ms).alias("log_timestamp"),
        F.when(is_group, group_key).when(~is_message, commit_key).alias("key"),
        F.when(is_message, body).when(~is_group, commit_value).alias("value"),
        F.when(is_group, group).alias("group_number"),
        F.when(is_group, F.floor(row / (100 * groups)) + 1).cast("int").alias("generation"),
    ]


def _int(value: Column, size: int) -> Column:
    """The big-endian bytes of a non-negative integer."""
    from pyspark.sql import functions as F

    return F.unhex(F.lpad(F.hex(value.cast("bigint")), 2 * size, "0"))


def with_generations(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add the values of group records, which SQL cannot build, and drop the last two columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in batches:
        made = pa.Table.from_batches([batch])
        is_group = pc.is_valid(made["group_number"])
        groups = made.filter(is_group)
        values = [
            generation(number, generation_id)
            for number, generation_id in zip(
                groups["group_number"].to_pylist(), groups["generation"].to_pylist(), strict=True
            )
        ]
        value = pc.replace_with_mask(
            made["value"].combine_chunks(), is_group.combine_chunks(), pa.array(values, made["value"].type)
        )
        rest = made.drop_columns(["value", "group_number", "generation"])
        yield from rest.append_column("value", value).combine_chunks().to_batches()


def generation(group: int, number: int) -> bytes:
    """The group's record of one generation: two permanent members and a third in every other generation."""
    from kcoord.log.serde import encode_record
    from kcoord.protocol.records.consumer_protocol_assignment import (
        ConsumerProtocolAssignment,
        TopicPartition,
        encode_consumer_protocol_assignment,
    )
    from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
    from kcoord.wire.primitives import BytesWriter, write_int16

    topic = f"domain-{group * 7 % TOPICS % 12:02d}.events-{group * 7 % TOPICS:03d}"
    members = []
    count = 2 + number % 2
    for member in range(count):
        owned = [partition for partition in range(PARTITIONS) if partition % count == member]
        w = BytesWriter()
        write_int16(w, 1)
        assigned = ConsumerProtocolAssignment([TopicPartition(topic, owned)])
        encode_consumer_protocol_assignment(w, assigned, 1)
        members.append(
            MemberMetadata(
                f"pod-{member}-{group:05d}",
                client_id=f"pod-{member}",
                client_host="/10.0.0.1",
                assignment=w.getvalue(),
            )
        )
    value = GroupMetadataValue("consumer", number, "range", members[0].member_id, BEGIN_MS, members)
    encoded = encode_record(GroupMetadataKey(""), value)[1]
    assert encoded is not None
    return encoded


SCHEMA: Final = "log_topic string, log_partition int, log_timestamp timestamp, key binary, value binary"


def write(spark: SparkSession, path: str, rows: int, groups: int) -> None:
    tasks = max(2, -(-rows // TASK_ROWS))
    made = spark.range(0, rows, 1, tasks).select(*columns(groups))
    names = [column.split()[0] for column in SCHEMA.split(", ")]

    def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in with_generations(batches):
            yield batch.select(names)

    writer = made.mapInArrow(encode, SCHEMA).write.format("kcoord").mode("append")
    topics = {
        f"domain-{number % 12:02d}.events-{number:03d}": {
            "partitions": PARTITIONS,
            "configs": {"retention.ms": "-1"},
        }
        for number in range(TOPICS)
    }
    writer.option("offsetsPartitions", str(OFFSETS_PARTITIONS)).option("topics", json.dumps(topics)).save(path)


def main() -> None:
    path, rows, groups, memory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    from bench import process_memory
    from kcoord.spark.session import session

    spark = session("bench", "local[2]", **{"spark.driver.memory": memory})
    with process_memory.Sampler() as memory_used:
        began = time.perf_counter()
        write(spark, path, rows, groups)
        seconds = time.perf_counter() - began
    spark.stop()
    size = sum(file.stat().st_size for file in Path(path).rglob("*.log"))
    figures: dict[str, Any] = {"rows": rows, "seconds": seconds, "bytes": size, **memory_used.peaks()}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
