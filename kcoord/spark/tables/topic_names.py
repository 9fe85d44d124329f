"""Names of topics by their ids, from the metadata log: records of the newer group kinds have the ids only."""

from __future__ import annotations

from collections.abc import Iterable

from kcoord.log.serde import decode_metadata_record
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import Record


def topic_names(records: Iterable[Record]) -> dict[bytes, str]:
    """Names by id (16 bytes), from records of `__cluster_metadata` and its snapshots, without those of control batches.

    Topics that were removed later are in it too: older records are about them. An id is never used again, so names
    from many logs can go into one mapping. What does not decode is passed over: names are only told in addition.
    """
    names: dict[bytes, str] = {}
    for record in records:
        if record.value is None:
            continue
        try:
            message = decode_metadata_record(record.value)
        except DecodeError:
            continue
        if isinstance(message, TopicRecord):
            names[message.topic_id] = message.name
    return names
