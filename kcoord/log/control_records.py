"""Transaction markers: batches of one control record, as Kafka's EndTransactionMarker writes them.

The key is the version and the type, the value is the version and the epoch of the transaction coordinator. The batch
has the id and epoch of the producer, and no sequence.
"""

from __future__ import annotations

from typing import Final

from kcoord.log.transaction_index import ABORT, COMMIT
from kcoord.protocol.records.control_record_type_schema import (
    ControlRecordTypeSchema,
    encode_control_record_type_schema,
)
from kcoord.protocol.records.end_txn_marker import EndTxnMarker, encode_end_txn_marker
from kcoord.wire.primitives import BytesWriter, write_i16_be
from kcoord.wire.record_batch import NO_SEQUENCE, BatchBuilder

# The versions of the key and of the value.
KEY_VERSION: Final = 0
VALUE_VERSION: Final = 0


def end_transaction_batch(
    producer_id: int,
    producer_epoch: int,
    is_commit: bool,
    coordinator_epoch: int,
    offset: int,
    leader_epoch: int,
    wall_ms: int,
) -> bytes:
    """The control batch at `offset` that ends the producer's transaction."""
    key = BytesWriter()
    write_i16_be(key, KEY_VERSION)
    encode_control_record_type_schema(key, ControlRecordTypeSchema(COMMIT if is_commit else ABORT), 0)
    value = BytesWriter()
    write_i16_be(value, VALUE_VERSION)
    encode_end_txn_marker(value, EndTxnMarker(coordinator_epoch), 0)
    builder = BatchBuilder()
    builder.append(wall_ms, key.getvalue(), value.getvalue())
    return builder.build(
        offset, leader_epoch, producer_id, producer_epoch, NO_SEQUENCE, transactional=True, control=True
    )
