"""The table `messages`: records of topics, with the columns of Spark's Kafka source.

`message_rows.py` makes the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from kcoord.spark.scan.messages import MessageScan
from kcoord.spark.tables.table import (
    BIGINT,
    BINARY,
    BY_OFFSET,
    BY_TIME,
    COORDINATOR_TOPICS,
    HEADERS,
    INT,
    PLACE,
    STRING,
    TIMESTAMP,
    Column,
    SliceRequest,
    Table,
)

if TYPE_CHECKING:
    from kcoord.spark.tables.message_rows import MessageRows


@final
class MessagesTable(Table):
    NAME: ClassVar[str] = "messages"
    ROW: ClassVar[str] = "a record of a topic, with the columns of Spark's Kafka source, and `log`"
    TOPICS_IN_WORDS: ClassVar[str] = "all topics but the three above"
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("key", BINARY, "the record's key"),
        Column("value", BINARY, "the record's value"),
        Column("topic", STRING, "the topic", "log_topics"),
        Column("partition", INT, "the partition", "log_partitions"),
        Column("offset", BIGINT, "the record's offset", BY_OFFSET),
        Column("timestamp", TIMESTAMP, "the record's timestamp", BY_TIME),
        Column("timestampType", INT, "0: set by the producer, 1: set by the broker"),
        Column("headers", HEADERS, "the record's headers; null if it has none"),
        PLACE[0],
    )

    @classmethod
    def is_read_by_default(cls, topic: str) -> bool:
        return topic not in COORDINATOR_TOPICS

    @classmethod
    def scan_rows(cls, request: SliceRequest) -> MessageRows:
        from kcoord.spark.tables.arrow import schema_of
        from kcoord.spark.tables.message_rows import MessageRows

        scan = MessageScan(request.wanted, request.makes("key"), request.makes("value"), request.makes("headers"))
        return MessageRows(scan, request.part, request.corrupt, schema_of(cls, request.columns))
