"""Whether a record can be shown: the same answer as the tables give, without making rows."""

from __future__ import annotations

from kcoord.spark.tables.records import control_frame
from kcoord.spark.tables.registry import REGISTERED
from kcoord.wire.record_batch import BatchHeader, Record


def check_record(topic: str, record: Record, header: BatchHeader) -> None:
    """Raises DecodeError, with the reason, for a record of `topic` that a table it belongs to cannot show.

    `records` shows an unknown type or version as bytes. A table that is made from a type does not: there an unknown
    version of it is missing, so it counts as damage.
    """
    if header.is_control:
        control_frame(record)
        return
    for table in REGISTERED:
        table.check(topic, record)
