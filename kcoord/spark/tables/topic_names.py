"""Names of topics by their ids, from the metadata log: records of the newer group kinds have only ids."""

from __future__ import annotations

from collections.abc import Iterable

from kcoord.log.serde import decode_metadata_record
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import Record


def topic_names(records: Iterable[Record]) -> dict[bytes, str]:
    """Names by id (16 bytes), from records of `__cluster_metadata` and its snapshots, without those of control batches.

    Removed topics are included, because older records are about them. An id is never used again, so names from many
    logs fit into one mapping. Records that do not decode are skipped: the names are optional.
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
