"""The table `topics`: what happened to topics and their partitions, from the metadata log.

Only the first record of a topic has its name; all others have its id. The reader finds the names in the whole metadata
log, so that a row has one even if its part of the log begins after the topic was created.
"""

from __future__ import annotations

from typing import ClassVar, Final, final

from kcoord.core.outcome import METADATA_TOPIC
from kcoord.log.record_plain import uuid_text
from kcoord.log.serde import decode_metadata_record
from kcoord.protocol.records import partition_change_record, partition_record, remove_topic_record, topic_record
from kcoord.spark.tables.records import record_frame
from kcoord.spark.tables.rows import DecodedTable, RecordPlace, place_columns
from kcoord.spark.tables.table import INT, PLACE, STRING, Column
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import BatchHeader, Record

# By record type.
CHANGES: Final = {
    topic_record.RECORD_TYPE: "created",
    partition_record.RECORD_TYPE: "partition_added",
    partition_change_record.RECORD_TYPE: "partition_changed",
    remove_topic_record.RECORD_TYPE: "deleted",
}


@final
class TopicsTable(DecodedTable):
    NAME: ClassVar[str] = "topics"
    ROW: ClassVar[str] = "a change of a topic or of one of its partitions"
    TOPICS: ClassVar[tuple[str, ...]] = (METADATA_TOPIC,)
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        *PLACE,
        Column("topic", STRING, "the topic's name, if the metadata log has it"),
        Column("topic_id", STRING, "the topic's id; a topic that is created again has another one"),
        Column("partition", INT, "the partition; null if the change is of the whole topic"),
        Column("change", STRING, "`created`, `partition_added`, `partition_changed` or `deleted`"),
    )
    NEEDS_TOPIC_NAMES: ClassVar[bool] = True

    @classmethod
    def check(cls, topic: str, record: Record) -> None:
        if topic in cls.TOPICS:
            decode_change(record)

    def add(self, where: RecordPlace, record: Record, header: BatchHeader) -> None:
        change = None if header.is_control else decode_change(record)
        if change is None:
            return
        kind, topic_id, partition = change
        name = self.topic_names.get(topic_id)
        self._put((*place_columns(where, record), name, uuid_text(topic_id), partition, kind))


def decode_change(record: Record) -> tuple[str, bytes, int | None] | None:
    """The change, the topic's id and the partition; None for a record about something else.

    Raises DecodeError, also for a version that is unknown.
    """
    record_type, version, is_known = record_frame(METADATA_TOPIC, record)
    change = CHANGES.get(record_type)
    if change is None:
        return None
    if not is_known:
        raise DecodeError(f"metadata record type {record_type} of unknown version {version}")
    message = decode_metadata_record(record.value or b"")
    topic_id: bytes = getattr(message, "topic_id", b"")
    return change, topic_id, getattr(message, "partition_id", None)
