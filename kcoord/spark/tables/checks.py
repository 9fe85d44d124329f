"""Whether a record can be shown: the same answer as the tables give, without making rows."""

from __future__ import annotations

from typing import Final

from kcoord.log.serde import LEGACY_OFFSET_COMMIT, OFFSET_COMMIT, TRANSACTION_LOG
from kcoord.log.typed_records import OFFSETS_TOPIC, TRANSACTION_TOPIC, RecordReader
from kcoord.protocol.records.offset_commit import decode_offset_commit_value
from kcoord.spark.tables import assignments, group_metadata, members
from kcoord.spark.tables.records import VERSIONS, control_frame, record_frame
from kcoord.spark.tables.rows import coordinator_record_type, decode_group_record
from kcoord.spark.tables.transactions import decode_transaction
from kcoord.wire.primitives import Reader
from kcoord.wire.record_batch import BatchHeader, Record

# Types of `__consumer_offsets` that are of another table than `records`.
OWNED: Final = frozenset(
    {LEGACY_OFFSET_COMMIT, OFFSET_COMMIT, *group_metadata.KINDS, *members.KINDS, *assignments.KINDS}
)


def check_record(topic: str, record: Record, header: BatchHeader) -> None:
    """Raises DecodeError, with the reason, for a record of `topic` that a table it belongs to cannot show.

    `records` shows what it does not know, as bytes; a version that is not known of a type that another table is made
    of is missing there.
    """
    if header.is_control:
        control_frame(record)
    elif topic == OFFSETS_TOPIC and coordinator_record_type(record) in OWNED:
        decode_group_record(record)
        if coordinator_record_type(record) in (LEGACY_OFFSET_COMMIT, OFFSET_COMMIT):
            _check_commit(record)
    elif topic == TRANSACTION_TOPIC and coordinator_record_type(record) == TRANSACTION_LOG:
        decode_transaction(record)
    elif topic in VERSIONS and record_frame(topic, record)[2]:
        RecordReader().decode(topic, record)


def _check_commit(record: Record) -> None:
    """Nothing may stand behind the fields of a commit's key and value. Raises DecodeError."""
    r = Reader(record.key or b"")
    r.int16()
    r.string()
    r.string()
    r.int32()
    r.expect_end()
    if record.value is not None:
        r = Reader(record.value)
        decode_offset_commit_value(r, r.int16())
        r.expect_end()
