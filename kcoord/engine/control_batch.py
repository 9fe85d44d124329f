"""What a control batch says: the record of a transaction marker (KIP-98).

The key is a version and a type, the value a version and the epoch of the transaction coordinator.
"""

from __future__ import annotations

from typing import Final

from kcoord.log.transaction_index import ABORT, COMMIT
from kcoord.wire.primitives import DecodeError, read_i16_be
from kcoord.wire.record_batch import BatchHeader, decode_records

# A control batch without a marker: a change of the leader, for example.
NO_MARKER: Final = -1
KEY_BYTES: Final = 4
TYPE_AT: Final = 2
# The size limit of a control batch if it is compressed.
CONTROL_BYTES_MAX: Final = 4096


def marker_type(buf: bytes, header: BatchHeader) -> int:
    """COMMIT or ABORT, or NO_MARKER for another control batch or one that compaction has emptied.

    `header` was parsed from `buf`. Raises DecodeError and DecompressionError.
    """
    records = decode_records(buf, header.pos, header, CONTROL_BYTES_MAX)
    if not records:
        return NO_MARKER
    key = records[0].key
    if key is None or len(key) < KEY_BYTES:
        raise DecodeError("a control record without a type")
    kind = int(read_i16_be(key, TYPE_AT))
    return kind if kind in (ABORT, COMMIT) else NO_MARKER
